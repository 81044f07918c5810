"""Fails when a module is longer than it may be; prints the longest and the median.

Modules are meant to have 60 to 250 lines. Migrations (one file a step, never edited) are left out.
"""

import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 400
LEFT_OUT = ("migrations/versions/", "build/", "dist/")


def modules(root: Path) -> dict[str, int]:
    """Lines of every Python module that is or may be committed, by its path; empty ones left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    )
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith(LEFT_OUT)]
    lengths = {name: len((root / name).read_bytes().splitlines()) for name in names if (root / name).is_file()}
    return {name: lines for name, lines in lengths.items() if lines}


def main() -> int:
    lengths = modules(ROOT)
    ours = {name: lines for name, lines in lengths.items() if not name.startswith("tests/")}
    for what, found in (("modules", ours), ("modules with tests", lengths)):
        name = max(found, key=lambda key: found[key])
        print(f"{len(found)} {what}: longest {found[name]} ({name}), median {statistics.median(found.values()):.0f}")
    too_long = {name: lines for name, lines in lengths.items() if lines > LONGEST}
    for name, lines in sorted(too_long.items()):
        print(f"{name}: {lines} lines, more than {LONGEST}: split it by what it does")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
