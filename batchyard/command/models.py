"""`batchyard models list | inspect | init | run`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from batchyard.client import Client
from batchyard.command.jobs import QUICK, AsJson, read_json
from batchyard.command.local import Models, repository, server_module
from batchyard.command.screen import Screen
from batchyard.errors import BatchyardError

app = typer.Typer(help="What is served, and making and trying a model of your own.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the model.")]


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models that are served."""
    screen = Screen(as_json)
    with Client(retry_for=QUICK) as client:
        found = client.models()
    if as_json:
        screen.json([model.raw for model in found])
        return
    rows = [
        (
            model.name,
            f"{version.version}{' (default)' if version.version == model.default_version else ''}",
            version.state,
            version.engine or "",
            model.input,
            (model.raw.get("batch") or {}).get("max_size", ""),
            model.raw.get("batching") or "",
            version.error or "",
        )
        for model in found
        for version in model.versions
    ]
    screen.table(("NAME", "VERSION", "STATE", "ENGINE", "INPUT", "MAX BATCH", "BATCHING", "ERROR"), rows)


@app.command()
def inspect(name: Name, as_json: AsJson = False) -> None:
    """Show one model: versions, inputs, outputs, batching, statistics."""
    screen = Screen(as_json)
    with Client(retry_for=QUICK) as client:
        model = client.model(name)
    if as_json:
        screen.json(model.raw)
        return
    raw = model.raw
    versions = ", ".join(
        f"{v.version} {v.state}{f' ({v.error})' if v.error else ''}"
        + (" (default)" * (v.version == model.default_version))
        for v in model.versions
    )
    screen.fields(
        {
            "name": model.name,
            "versions": versions,
            "engine": next((v.engine for v in model.versions if v.version == model.default_version), None),
            "input": model.input,
            "inputs": _tensors(raw.get("inputs")),
            "outputs": _tensors(raw.get("outputs")),
            "batch": ", ".join(f"{key} {value}" for key, value in (raw.get("batch") or {}).items()),
            "batching": ": ".join(filter(None, (raw.get("batching"), raw.get("batching_reason")))),
            "workers": raw.get("workers"),
            "queue": _compact(raw.get("queue")),
            "stats": _compact(raw.get("stats")),
        }
    )


@app.command()
def init(
    name: Name,
    onnx: Annotated[Path, typer.Option(metavar="FILE.onnx", help="The network to serve.")],
    models: Models = None,
    as_json: AsJson = False,
) -> None:
    """Make a model repository entry of an ONNX file, with a filled model.yaml."""
    screen = Screen(as_json)
    module = server_module("batchyard.local.models")
    written = module.init(repository(models) or Path("models"), name, onnx)
    if as_json:
        screen.json({"written": str(written)})
    else:
        screen.line(str(written))
        where = f" --models {models}" if models is not None else ""
        screen.say(f"look it over, then: batchyard models run {name} --input x.json{where}, and batchyard up{where}")


@app.command()
def run(
    name: Name,
    input_: Annotated[str, typer.Option("--input", metavar="JSON|@FILE|-", help="One item's input; also a file name.")],
    parameters: Annotated[str | None, typer.Option(metavar="JSON|@FILE", help="Given to the handler.")] = None,
    models: Models = None,
    as_json: AsJson = False,
) -> None:
    """Run one item here, without a server. A failing handler shows its full traceback."""
    screen = Screen(as_json)
    folder = repository(models)
    if folder is None:
        raise BatchyardError("no model repository: name it with --models, or work in a folder that has ./models")
    item = read_json(f"@{input_}" if Path(input_[:255]).is_file() else input_, "--input")
    given = None if parameters is None else read_json(parameters, "--parameters")
    screen.json(server_module("batchyard.local.models").run(folder, name, item, given))


def _tensors(tensors: Any) -> str:
    return ", ".join(f"{t['name']} {t['datatype']} {t['shape']}" for t in tensors or ())


def _compact(value: Any) -> str:
    return json.dumps(value) if value else ""
