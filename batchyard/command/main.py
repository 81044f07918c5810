"""The `batchyard` command: its groups, and the one place where failures become messages and exit codes."""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from batchyard import __version__
from batchyard.command import jobs, local, models
from batchyard.command.screen import Screen
from batchyard.errors import BatchyardError

INTERRUPTED = 130


class _Guarded(TyperGroup):
    """One line and what to do instead of a traceback (``--debug`` shows it all)."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (BatchyardError, OSError, ValueError) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            Screen().complain(str(error) or type(error).__name__)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="batchyard",
    cls=_Guarded,
    help="Asynchronous batch inference: post jobs, wait for them, read their results; run a local stack.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Boxes and colours are for people; pipes and logs get plain text.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """Asynchronous batch inference: post jobs, wait for them, read their results; run a local stack.

    The address and the key come from BATCHYARD_URL and BATCHYARD_API_KEY, from a batchyard.toml, or from the local
    stack of this folder (`batchyard up`).

    Exit codes: 0 done; 1 failed, with the reason on stderr; 2 wrong usage; of `wait` (and `submit --wait`) also
    3 partially_failed, 4 failed, 5 expired, 6 cancelled; 130 interrupted.
    """


@app.command()
def version(json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the version."""
    screen = Screen(json_)
    if json_:
        screen.json({"version": __version__})
    else:
        screen.line(__version__)


jobs.add_to(app)
local.add_to(app)
app.add_typer(models.app, name="models")


def main() -> None:
    """Entry point of the `batchyard` script."""
    app()
