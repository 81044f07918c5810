"""The `batchyard` command in a process of its own, against a small server that answers like the API."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def wire(state: str, job_id: str = "job_1", **more: Any) -> dict[str, Any]:
    counts = {"total": 3, "succeeded": 3 if state == "succeeded" else 1, "failed": 2 if state == "failed" else 0}
    return {
        "id": job_id,
        "model": "echo",
        "version": "1",
        "state": state,
        "priority": "normal",
        "counts": counts,
        "created_at": "2026-11-30T17:00:00.000Z",
        "output": None,
        **more,
    }


LINES = [{"index": n, "id": f"i{n}", "state": "succeeded", "output": {"ä": n}, "error": None} for n in range(3)]
MODEL = {
    "name": "echo",
    "default_version": "1",
    "versions": [{"version": "1", "state": "ready", "engine": "python", "error": None}],
    "input": "json",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [64]}],
    "batch": {"max_size": 32},
    "batching": "unsound",
    "batching_reason": "fixed batch of 1",
    "ready": True,
}


class Api:
    """``state`` is that of every job; ``bodies`` are what was posted."""

    def __init__(self) -> None:
        self.state = "succeeded"
        self.output: Any = None
        self.bodies: list[tuple[dict[str, str], Any]] = []
        self.polled = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.get(self)

            def do_POST(self) -> None:
                api.post(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def get(self, asked: BaseHTTPRequestHandler) -> None:
        path, _, query = asked.path.partition("?")
        if asked.headers["Authorization"] != "Bearer bysk_test":
            return answer(asked, 401, {"status": 401, "code": "unauthenticated", "title": "Not authenticated"})
        if path == "/v1/jobs":
            return answer(asked, 200, {"data": [wire(self.state), wire("running", "job_2")], "next": None})
        if path == "/v1/jobs/job_1":
            if "wait=" in query:
                self.polled.set()
            return answer(asked, 200, wire(self.state, output=self.output))
        if path == "/v1/jobs/job_1/results":
            return answer(asked, 200, b"".join(json.dumps(one).encode() + b"\n" for one in LINES))
        if path == "/v1/models":
            return answer(asked, 200, {"data": [MODEL]})
        if path == "/v1/models/echo":
            return answer(asked, 200, MODEL)
        return answer(asked, 404, {"status": 404, "code": "not_found", "title": "Not found", "detail": f"no {path}"})

    def post(self, asked: BaseHTTPRequestHandler) -> None:
        content = asked.rfile.read(int(asked.headers.get("Content-Length", 0)))
        self.bodies.append((dict(asked.headers), json.loads(content) if content else None))
        if asked.path.endswith("/cancel"):
            return answer(asked, 409, {"status": 409, "code": "conflict", "title": "Conflict", "detail": "it is final"})
        return answer(asked, 202, wire(self.state))


def answer(asked: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked.send_response(status)
    asked.send_header("Content-Length", str(len(content)))
    asked.end_headers()
    asked.wfile.write(content)


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


def environ(api: Api | None, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    found = {"BATCHYARD_URL": api.url, "BATCHYARD_API_KEY": "bysk_test"} if api else {}
    return {**kept, **found, **more}


def command(
    api: Api | None, *arguments: str, stdin: str = "", folder: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batchyard", *arguments],
        env=environ(api, PYTHONPATH=str(ROOT), **more),
        cwd=folder or ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", 0), ("partially_failed", 3), ("failed", 4), ("expired", 5), ("cancelled", 6)]
)
def test_wait_exits_with_the_state(api: Api, state: str, code: int) -> None:
    api.state = state
    done = command(api, "wait", "job_1")
    assert done.returncode == code, done.stderr
    assert f"state     {state}\n" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_submit_prints_the_id_alone(api: Api) -> None:
    done = command(
        api, "submit", "echo@1", "--input", '{"id": 1}', "--priority", "high", "--metadata", "team=a=b",
        "--metadata", "x=", "--parameters", '{"p": 1}', "--run-seconds", "5", "--queue-seconds", "6",
        "--total-seconds", "7", "--max-attempts", "1", "--idempotency-key", "mine",
        "--not-before", "2026-12-01T00:00:00Z", "--output", "y",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "job_1\n"), done.stderr
    headers, body = api.bodies[0]
    assert headers["Idempotency-Key"] == '"mine"'
    assert body == {
        "model": "echo@1",
        "input": {"id": 1},
        "outputs": ["y"],
        "parameters": {"p": 1},
        "priority": "high",
        "metadata": {"team": "a=b", "x": ""},
        "not_before": "2026-12-01T00:00:00+00:00",
        "timeouts": {"queue_seconds": 6.0, "run_seconds": 5.0, "total_seconds": 7.0},
        "retry": {"max_attempts": 1},
    }


def test_submit_reads_files_and_stdin(api: Api, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1]")
    (tmp_path / "items.jsonl").write_text('{"input": 1, "id": "a\u2028"}\n\n{"input": null}\n')
    command(api, "submit", "echo", "--input", "@x.json", folder=tmp_path)
    command(api, "submit", "echo", "--input", "-", stdin="[2]")
    command(api, "submit", "echo", "--items", "items.jsonl", folder=tmp_path)
    command(api, "submit", "echo", "--items", "-", stdin='{"input": 3}')
    assert [body.get("input", body.get("items")) for _, body in api.bodies] == [
        [1],
        [2],
        [{"input": 1, "id": "a\u2028"}, {"input": None}],
        [{"input": 3}],
    ]


def test_submit_and_wait_prints_the_answers(api: Api) -> None:
    api.output = {"y": "NaN"}
    one = command(api, "submit", "echo", "--input", "1", "--wait")
    assert (one.returncode, json.loads(one.stdout)) == (0, {"y": "NaN"})
    many = command(api, "submit", "echo", "--items", "-", "--wait", stdin='{"input": 3}')
    assert [json.loads(line) for line in many.stdout.splitlines()] == LINES
    api.state = "failed"
    assert command(api, "submit", "echo", "--input", "1", "--wait", "--json").returncode == 4


def test_results_are_json_lines_as_the_api_wrote_them(api: Api) -> None:
    done = command(api, "results", "job_1")
    assert [json.loads(line) for line in done.stdout.splitlines()] == LINES
    assert '{"ä":0}' in done.stdout
    assert json.loads(command(api, "results", "job_1", "--json").stdout) == LINES


def test_every_answer_has_a_json_form(api: Api) -> None:
    for arguments, holds in (
        (("get", "job_1"), lambda value: value["id"] == "job_1"),
        (("wait", "job_1"), lambda value: value["state"] == "succeeded"),
        (("submit", "echo", "--input", "1"), lambda value: value["id"] == "job_1"),
        (("list",), lambda value: [job["id"] for job in value] == ["job_1", "job_2"]),
        (("models", "list"), lambda value: value == [MODEL]),
        (("models", "inspect", "echo"), lambda value: value == MODEL),
        (("version",), lambda value: value["version"]),
    ):
        done = command(api, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        assert holds(json.loads(done.stdout)), arguments


def test_tables_are_tab_separated_in_a_pipe(api: Api) -> None:
    rows = [line.split("\t") for line in command(api, "list").stdout.splitlines()]
    assert rows[0] == ["ID", "MODEL", "STATE", "ITEMS", "CREATED"]
    assert [row[:4] for row in rows[1:]] == [
        ["job_1", "echo@1", "succeeded", "3/3"],
        ["job_2", "echo@1", "running", "1/3"],
    ]
    models = command(api, "models", "list").stdout.splitlines()
    assert models[1].split("\t")[:4] == ["echo", "1 (default)", "ready", "python"]
    assert "fixed batch of 1" in command(api, "models", "inspect", "echo").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("submit", "echo"), "exactly one of --input and --items"),
        (("submit", "echo", "--input", "1", "--items", "x"), "exactly one of --input and --items"),
        (("submit", "echo", "--input", "{"), "--input is no JSON"),
        (("submit", "echo", "--input", "pyproject.toml"), "write @pyproject.toml"),
        (("submit", "echo", "--input", "@no-such-file"), "No such file"),
        (("submit", "echo", "--input", "1", "--metadata", "team"), "KEY=VALUE"),
        (("submit", "echo", "--input", "1", "--not-before", "2026-01-01"), "no time zone"),
        (("list", "--created-after", "yesterday"), "--created-after"),
        (("wait",), "JOB"),
        (("no-such-command",), "no-such-command"),
        (("up", "--log-level", "loud"), "--log-level"),
    ],
)
def test_wrong_usage_exits_with_2(api: Api, arguments: tuple[str, ...], message: str) -> None:
    done = command(api, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())


def test_bad_items_name_their_line(api: Api) -> None:
    done = command(api, "submit", "echo", "--items", "-", stdin='{"input": 1}\n{"inptu": 2}\n')
    assert done.returncode == 2
    assert "line 2" in done.stderr
    assert api.bodies == []


def test_failures_are_a_line_and_exit_with_1(api: Api, tmp_path: Path) -> None:
    for done, message in (
        (command(api, "get", "job_9"), "Not found: no /v1/jobs/job_9"),
        (command(api, "cancel", "job_1"), "Conflict: it is final"),
        (command(api, "get", "job_1", BATCHYARD_API_KEY="bysk_wrong"), "Set BATCHYARD_API_KEY"),
        (command(None, "get", "job_1", folder=tmp_path), "start a local stack with `batchyard up`"),
    ):
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ")
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert "Traceback" in command(api, "--debug", "get", "job_9").stderr


def test_an_interrupted_wait_says_that_the_job_goes_on(api: Api) -> None:
    api.state = "running"
    process = subprocess.Popen(
        [sys.executable, "-m", "batchyard", "wait", "job_1"],
        env=environ(api),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert api.polled.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "the job goes on: `batchyard wait job_1` waits again, `batchyard cancel job_1` stops it" in err
    assert "Traceback" not in err


def test_a_terminal_gets_a_bar_and_colours(api: Api) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "batchyard", "wait", "job_1"],
        env=environ(api, TERM="xterm", COLUMNS="120"),
        cwd=ROOT,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(30) == 0
    text = seen.decode()
    assert "job_1 succeeded" in text
    assert "3/3" in text
    assert "\x1b[32msucceeded" in text


def test_help_names_every_command() -> None:
    text = command(None, "--help").stdout
    for name in ("up", "submit", "get", "wait", "results", "cancel", "list", "models", "doctor", "version"):
        assert f"\n  {name} " in text
        assert command(None, name, "--help").returncode == 0
    models = command(None, "models", "--help").stdout
    assert all(f"\n  {name} " in models for name in ("list", "inspect", "init", "run"))


def test_without_the_server_packages_the_message_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; sys.modules['msgspec'] = None; sys.modules['sqlalchemy'] = None\n"
        "sys.argv = ['batchyard', 'up']\n"
        "from batchyard.command.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ(None), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install" in done.stderr
    assert "server" in done.stderr
