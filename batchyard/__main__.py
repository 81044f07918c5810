"""``python -m batchyard``: the same as the `batchyard` command."""

from batchyard.command.main import main

main()
