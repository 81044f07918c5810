"""`batchyard submit | get | wait | results | cancel | list`."""

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from batchyard.client import Client, Job
from batchyard.command.screen import Screen

EXIT_CODES = {"succeeded": 0, "partially_failed": 3, "failed": 4, "expired": 5, "cancelled": 6}
QUICK = 3.0  # seconds of retries for a person at the keyboard
STEADY = 30.0  # and where the command is waiting anyway

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job (job_…).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Metadata = Annotated[list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="May be given often.")]


def add_to(app: typer.Typer) -> None:
    commands: tuple[Callable[..., None], ...] = (submit, get, wait, results, cancel)
    for command in commands:
        app.command()(command)
    app.command("list")(list_jobs)


def submit(
    model: Annotated[str, typer.Argument(help="name or name@version")],
    input_: Annotated[
        str | None, typer.Option("--input", metavar="JSON|@FILE|-", help="One item's input; - reads stdin.")
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help='JSON Lines, an item each: {"input": …, "id": …, "parameters": …}'),
    ] = None,
    wait_: Annotated[bool, typer.Option("--wait", help="Wait for the job and print its answers.")] = False,
    timeout: Annotated[float | None, typer.Option(help="With --wait: seconds to wait at most.")] = None,
    priority: Annotated[str | None, typer.Option(help="high, normal or low")] = None,
    metadata: Metadata = None,
    parameters: Annotated[str | None, typer.Option(metavar="JSON|@FILE", help="Given to the handler.")] = None,
    output: Annotated[list[str] | None, typer.Option(help="Only this output (tensor models); may be repeated.")] = None,
    not_before: Annotated[str | None, typer.Option(metavar="TIME", help="ISO 8601 with a zone.")] = None,
    queue_seconds: Annotated[float | None, typer.Option(help="Items not started by then expire.")] = None,
    run_seconds: Annotated[float | None, typer.Option(help="Longest call of the model.")] = None,
    total_seconds: Annotated[float | None, typer.Option(help="The whole job ends by then.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Tries of an item that fails.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key is the same job.")] = None,
    as_json: AsJson = False,
) -> None:
    """Post a job. Prints its id; with --wait its answers, as JSON Lines (one input: its output)."""
    screen = Screen(as_json)
    if (input_ is None) == (items is None):
        raise typer.BadParameter("give exactly one of --input and --items")
    given: dict[str, Any] = {}
    if input_ is not None:
        given["input"] = read_json(input_, "--input")
    else:
        given["items"] = _read_items(items or "-")
    with Client(retry_for=STEADY if wait_ else QUICK) as client:
        job = client.submit(
            model,
            **given,
            priority=priority,
            metadata=pairs(metadata),
            parameters=None if parameters is None else read_json(parameters, "--parameters"),
            outputs=output or None,
            not_before=_time(not_before, "--not-before"),
            queue_seconds=queue_seconds,
            run_seconds=run_seconds,
            total_seconds=total_seconds,
            max_attempts=max_attempts,
            idempotency_key=idempotency_key,
        )
        if not wait_:
            _show_id(screen, job)
            return
        job = _wait(screen, job, timeout)
        if as_json:
            screen.json(job.raw)
        elif input_ is not None and job.succeeded and job.output is not None:
            screen.json(job.output)
        else:
            for result in job.results():
                screen.json_line(result.raw)
        raise typer.Exit(EXIT_CODES[job.state])


def get(job_id: JobId, as_json: AsJson = False) -> None:
    """Show a job."""
    screen = Screen(as_json)
    with Client(retry_for=QUICK) as client:
        _show(screen, client.get(job_id))


def wait(
    job_id: JobId,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait at most (then exit code 1).")] = None,
    as_json: AsJson = False,
) -> None:
    """Wait for a job, with a progress bar. Exit code: 0 succeeded, 3 partially_failed, 4 failed, 5 expired,
    6 cancelled."""
    screen = Screen(as_json)
    with Client(retry_for=STEADY) as client:
        job = _wait(screen, client.get(job_id), timeout)
    _show(screen, job)
    raise typer.Exit(EXIT_CODES[job.state])


def results(
    job_id: JobId,
    from_index: Annotated[int, typer.Option(help="Begin with this item.")] = 0,
    state: Annotated[str | None, typer.Option(help="Only items of this state.")] = None,
    follow: Annotated[bool, typer.Option(help="While the job runs, wait for the next results.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array instead of JSON Lines.")] = False,
) -> None:
    """Print a job's results as JSON Lines, in item order."""
    screen = Screen(as_json)
    with Client(retry_for=STEADY) as client:
        lines = client.results(job_id, from_index, state=state, follow=follow)
        if as_json:
            screen.json([result.raw for result in lines])
            return
        for result in lines:
            screen.json_line(result.raw)


def cancel(job_id: JobId, as_json: AsJson = False) -> None:
    """Ask a job to stop. Finished items are kept."""
    screen = Screen(as_json)
    with Client(retry_for=QUICK) as client:
        _show(screen, client.cancel(job_id))


def list_jobs(
    state: Annotated[str | None, typer.Option(help="queued, running, succeeded, failed, …")] = None,
    model: Annotated[str | None, typer.Option(help="Only jobs of this model.")] = None,
    created_after: Annotated[str | None, typer.Option(metavar="TIME", help="ISO 8601 with a zone.")] = None,
    metadata: Metadata = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    screen = Screen(as_json)
    with Client(retry_for=QUICK) as client:
        found = list(
            client.list(
                state=state,
                model=model,
                created_after=_time(created_after, "--created-after"),
                metadata=pairs(metadata),
                limit=limit,
            )
        )
    if as_json:
        screen.json([job.raw for job in found])
        return
    rows = [
        (
            job.id,
            f"{job.model}@{job.version}",
            job.state,
            f"{job.counts.done}/{job.counts.total}",
            _stamp(job.created_at),
        )
        for job in found
    ]
    screen.table(("ID", "MODEL", "STATE", "ITEMS", "CREATED"), rows)


def read_json(text: str, name: str) -> Any:
    """The value itself, ``@file`` or ``-``."""
    try:
        if text == "-":
            return json.load(sys.stdin)
        if text.startswith("@"):
            return json.loads(Path(text[1:]).read_text("utf-8"))
        return json.loads(text)
    except OSError as error:
        raise typer.BadParameter(f"{name}: {error}") from error
    except ValueError as error:
        hint = f" (to read the file, write @{text})" if Path(text[:255]).is_file() else ""
        raise typer.BadParameter(f"{name} is no JSON: {error}{hint}") from error


def pairs(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    split = [entry.partition("=") for entry in given]
    for name, equals, _ in split:
        if not name or not equals:
            raise typer.BadParameter("--metadata takes KEY=VALUE")
    return {name: value for name, _, value in split}


def _read_items(source: str) -> list[Any]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source.removeprefix("@")).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--items: {error}") from error
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise typer.BadParameter(f"--items, line {number} is no JSON: {error}") from error
        if not isinstance(item, dict) or "input" not in item:
            raise typer.BadParameter(
                f'--items, line {number}: an item is {{"input": …}}, with "id" and "parameters" if wanted'
            )
        found.append(item)
    return found


def _time(text: str | None, name: str) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {error}") from error
    if at.tzinfo is None:
        raise typer.BadParameter(f"{name} has no time zone: write for example {text}Z or {text}+02:00")
    return at


def _wait(screen: Screen, job: Job, timeout: float | None) -> Job:
    try:
        with screen.progress(job.id) as watch:
            return job.wait(timeout, on_progress=watch.told)
    except KeyboardInterrupt:
        screen.say(f"the job goes on: `batchyard wait {job.id}` waits again, `batchyard cancel {job.id}` stops it")
        raise


def _show_id(screen: Screen, job: Job) -> None:
    if screen.as_json:
        screen.json(job.raw)
    else:
        screen.line(job.id)


def _show(screen: Screen, job: Job) -> None:
    if screen.as_json:
        screen.json(job.raw)
        return
    counts = job.counts
    parts = [
        f"{number} {name}"
        for name, number in (
            ("succeeded", counts.succeeded),
            ("failed", counts.failed),
            ("cancelled", counts.cancelled),
            ("expired", counts.expired),
            ("running", counts.running),
            ("queued", counts.queued),
        )
        if number
    ]
    screen.fields(
        {
            "id": job.id,
            "model": f"{job.model}@{job.version}",
            "state": job.state,
            "items": f"{counts.total}: {', '.join(parts)}" if parts else counts.total,
            "priority": job.priority,
            "created": _stamp(job.created_at),
            "started": job.started_at and _stamp(job.started_at),
            "finished": job.finished_at and _stamp(job.finished_at),
            "error": job.error and f"{job.error.code}: {job.error.message}",
            "output": None if job.output is None else json.dumps(job.output, ensure_ascii=False),
            "metadata": ", ".join(f"{name}={value}" for name, value in job.metadata.items()),
        }
    )


def _stamp(at: datetime) -> str:
    return at.astimezone().isoformat(sep=" ", timespec="seconds")
