"""`batchyard up | doctor`: what runs on this machine. The server's code is imported only when one of them is called."""

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from batchyard.command.screen import Screen
from batchyard.errors import BatchyardError

SERVER_PACKAGES = frozenset(
    {"alembic", "fastapi", "ml_dtypes", "msgspec", "numpy", "orjson", "sqlalchemy", "uvicorn", "yaml"}
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
OURS = frozenset({"api", "batcher", "jobs", "migrations", "workers"})

Data = Annotated[Path, typer.Option(help="Folder of the ledger, blobs and keys.")]
Models = Annotated[Path | None, typer.Option(help="Model repository (default: ./models if there is one).")]


def add_to(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(doctor)


def up(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 = a free one.")] = 8000,
    admin_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the admin API; 0 = a free one.")] = 8001,
    data: Data = Path(".batchyard"),
    models: Models = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "warning",
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Run the local stack until Ctrl-C: API, ledger and workers on this machine, nothing to install."""
    if log_level not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter("--log-level is debug, info, warning or error")
    for variable in THREADS:
        # Before the first import of a library that reads it; the engine processes inherit it. Engines run side by side
        # here: a thread for each core in each of them would only be in the others' way.
        os.environ.setdefault(variable, "1")
    stack = server_module("batchyard.local.stack")
    given = {"port": port, "admin_port": admin_port, "data": data, "models": models}
    options = stack.Options(
        # What was left at its default does not win over the file and the environment.
        given={name: value for name, value in given.items() if _named(context, name)},
        default_models=repository(None),
        log_level=log_level,
        as_json=as_json,
    )
    raise typer.Exit(stack.up(options))


def doctor(
    port: Annotated[int, typer.Option(help="Port that `up` would use for the API.")] = 8000,
    admin_port: Annotated[int, typer.Option(help="And for the admin API.")] = 8001,
    data: Data = Path(".batchyard"),
    models: Models = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine, the data folder, the models and a running stack, and say what to do (exit code 1)."""
    screen = Screen(as_json)
    module = server_module("batchyard.local.doctor")
    findings = module.examine(port=port, admin_port=admin_port, data=data, models=repository(models))
    if as_json:
        screen.json([finding.to_json() for finding in findings])
    else:
        for finding in findings:
            screen.verdict(finding.good, finding.name, finding.detail, finding.to_do)
    raise typer.Exit(0 if all(finding.good for finding in findings) else 1)


def _named(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def repository(models: Path | None) -> Path | None:
    """The model repository to use where none was named."""
    if models is not None:
        return models
    default = Path("models")
    return default if default.is_dir() else None


def server_module(name: str) -> ModuleType:
    """A module of batchyard.local; BatchyardError says what to install where the server's packages are missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in SERVER_PACKAGES:
            raise BatchyardError(
                f"this needs the server's packages ({missing} is missing): pip install 'batchyard[server,onnxruntime]'"
            ) from error
        if missing in OURS or error.name in ("batchyard.local", name):
            raise BatchyardError(
                "this needs the server, which ships as source: clone the repository and run `make venv` there, or "
                "pip install -e '.[server,onnxruntime]' in it"
            ) from error
        raise
