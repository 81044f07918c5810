"""Times, fingerprints, keys and views: what goes in and comes out, to the letter."""

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest

from api import auth, examples, fingerprint, problems, timestamps
from api.problems import TYPES, Problem
from api.submission import Builder, Request
from api.views import render_job
from jobs.caches.memory import MemoryCache
from jobs.clock import system_clock
from jobs.errors import Conflict, Finding, Gone, IdempotencyMismatch, NotFound, StoreError, Unavailable
from jobs.models.catalog import Catalog, ModelVersion, VersionState
from jobs.models.spec import Tensor
from jobs.records import ApiKey, Counts, Job, Usage
from jobs.settings import Settings
from jobs.states import JobState, Priority
from tests.integration.api_kit import spec

AT = datetime(2026, 11, 30, 17, 0, 0, 123456, UTC)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-30T17:00:00Z", "2026-11-30T17:00:00.000Z"),
        ("2026-11-30T17:00:00.5+05:45", "2026-11-30T11:15:00.500Z"),
        ("2026-11-01T01:30:00-04:00", "2026-11-01T05:30:00.000Z"),
        ("2026-11-01T01:30:00-05:00", "2026-11-01T06:30:00.000Z"),
        ("2026-11-30 17:00:00.123456789z", "2026-11-30T17:00:00.123Z"),
    ],
)
def test_a42_a_time_with_its_zone_is_one_instant(text: str, instant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for zone in ("America/New_York", "Asia/Kolkata"):
        monkeypatch.setenv("TZ", zone)
        assert timestamps.show(timestamps.read(text)) == instant


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30T17:00:00",
        "2026-11-30",
        "17:00",
        "",
        "2026-W49-1",
        "2026-13-01T00:00:00Z",
        "1e9",
        "²026-11-30T17:00:00Z",
    ],
)
def test_a42_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        timestamps.read(text)


def test_the_fingerprint_is_of_the_parsed_request() -> None:
    one = fingerprint.of(b'{"a":{"x":1,"y":[1,2]},"b":"\\u0041"}')
    assert one == fingerprint.of(b' { "b" : "A", "a":{"y":[1, 2],"x":1} } ')
    assert one != fingerprint.of(b'{"a":{"x":1,"y":[2,1]},"b":"A"}')
    huge = b'{"a":123456789012345678901234567890, "b":1}'
    assert fingerprint.of(huge) == fingerprint.of(b'{"b":1,"a":123456789012345678901234567890}')
    assert fingerprint.of(huge) != fingerprint.of(b'{"b":1,"a":123456789012345678901234567891}')


@pytest.mark.parametrize(
    ("header", "key"),
    [(b"abc", "abc"), (b'"abc"', "abc"), (b'"a\\"b\\\\c"', 'a"b\\c'), (b" abc ", "abc"), (b"a" * 255, "a" * 255)],
)
def test_idempotency_keys_quoted_or_not(header: bytes, key: str) -> None:
    assert fingerprint.key(header) == key


@pytest.mark.parametrize("header", [b"", b'""', b"a" * 256, b"\xe9", b"a\tb"])
def test_what_is_no_idempotency_key(header: bytes) -> None:
    with pytest.raises(ValueError, match="Idempotency-Key"):
        fingerprint.key(header)


def job(**fields: object) -> Job:
    given: dict[str, object] = {
        "id": "job_1", "tenant": "acme", "kind": "inline", "model": "embed", "version": "2",
        "priority": Priority.NORMAL, "state": JobState.RUNNING,
        "counts": Counts(1000, succeeded=523, failed=1, running=64), "sealed": True, "paused": False, "single": False,
        "created_at": AT, "started_at": AT, "finished_at": None, "deadline_at": None, "results_expire_at": None,
        "not_before": None, "stop_as": None, "error": None, "parent_job": None, "metadata": {"team": "search"},
        "usage": Usage(1.92, 81234, 0),
    }  # fmt: skip
    return Job(**(given | fields))  # type: ignore[arg-type]


def test_a_job_is_shown_to_the_letter() -> None:
    assert json.loads(render_job(job())) == {
        "id": "job_1", "kind": "inline", "model": "embed", "version": "2", "state": "running", "paused": False,
        "priority": "normal",
        "counts": {"total": 1000, "queued": 412, "running": 64, "succeeded": 523, "failed": 1, "cancelled": 0,
                   "expired": 0},
        "sealed": True, "created_at": "2026-11-30T17:00:00.123Z", "started_at": "2026-11-30T17:00:00.123Z",
        "finished_at": None, "deadline_at": None, "results_expire_at": None, "queue": None,
        "usage": {"engine_seconds": 1.92, "input_bytes": 81234, "output_bytes": 0}, "error": None, "output": None,
        "parent_job": None, "metadata": {"team": "search"},
        "links": {"results": "/v1/jobs/job_1/results", "events": "/v1/jobs/job_1/events", "explain": None},
    }  # fmt: skip


def test_outputs_and_errors_pass_verbatim() -> None:
    body = render_job(job(single=True), b'{"y": 1.0}', None)
    assert b'"output":{"y": 1.0}' in body
    assert json.loads(render_job(job(error={"code": "model_removed"})))["error"] == {"code": "model_removed"}


def test_problems_say_what_clients_need() -> None:
    problem = Problem("invalid_input", "bad", (Finding("/items/3/input/x", "shape", "expected [64], got [63]", 3),))
    assert json.loads(problems.render(problem, "/v1/jobs", "req_1")) == {
        "type": "/errors/invalid-input", "title": "Invalid input", "status": 400, "code": "invalid_input",
        "detail": "bad", "instance": "/v1/jobs", "request_id": "req_1", "retryable": False,
        "errors": [{"pointer": "/items/3/input/x", "index": 3, "code": "shape", "detail": "expected [64], got [63]"}],
    }  # fmt: skip
    headers = dict(problems.headers_of(Problem("unavailable", "later", retry_after=timedelta(seconds=2.2))))
    assert headers["retry-after"] == "3"
    assert dict(problems.headers_of(Problem("unavailable", "later")))["retry-after"] == "1"


def test_errors_of_the_core_have_a_status_each() -> None:
    for error, status in (
        (NotFound("x"), 404), (Conflict("x"), 409), (Gone("x"), 410), (IdempotencyMismatch("x"), 422),
        (Unavailable("x"), 503), (StoreError("/secret/path: SELECT"), 500),
    ):  # fmt: skip
        problem = problems.of_error(error)
        assert problem.type.status == status
        assert "secret" not in problem.detail
    assert {kind.slug for kind in TYPES.values()} == {kind.path.removeprefix("/errors/") for kind in TYPES.values()}


def test_open_paths_are_exactly_those_that_need_no_key() -> None:
    for path in ("/health/live", "/health/ready", "/openapi.json", "/docs", "/errors", "/errors/gone", "/v1/blobs/x"):
        assert auth.is_open(path)
    for path in ("/v1/jobs", "/", "/docs/x", "/openapi.json/", "/healthx", "/v1/blobs", "/admin/v1/workers"):
        assert not auth.is_open(path)


def test_keys_are_cached_by_digest_and_expire() -> None:
    now = [AT]
    cache = MemoryCache(clock=lambda: now[0])
    asked: list[bytes] = []

    async def look_up(digest: bytes) -> ApiKey | None:
        asked.append(digest)
        known = digest == hashlib.sha256(b"bysk_1").digest()
        return ApiKey("key_1", "acme", frozenset({"jobs:read"}), AT + timedelta(seconds=8)) if known else None

    checker = auth.Authenticator(cache, look_up, lambda: now[0])
    run = asyncio.run
    assert checker.cached(b"Bearer bysk_1") is None
    assert run(checker.key(b"Bearer bysk_1")).tenant == "acme"
    assert checker.cached(b"bearer  bysk_1 ") == run(checker.key(b"Bearer bysk_1"))
    assert len(asked) == 1
    now[0] += timedelta(seconds=6)  # beyond the cache's time
    assert run(checker.key(b"Bearer bysk_1")).id == "key_1"
    assert len(asked) == 2
    now[0] += timedelta(seconds=3)  # beyond the key's own, though it is cached
    for header in (b"Bearer bysk_1", b"Bearer bysk_2", b"Basic eDp5", b"Bearer ", None):
        with pytest.raises(Problem) as caught:
            run(checker.key(header))
        assert caught.value.code == "unauthenticated"


def test_every_documented_submission_is_accepted() -> None:
    catalog = Catalog()
    ready, x, y = VersionState.READY, Tensor("x", "FP32", (4,)), Tensor("y", "FP32", (2,))
    catalog.replace_all(
        [
            ModelVersion(spec("embed", version="2", default_version="2"), ready, described=True),
            ModelVersion(spec("mlp", "tensors", inputs=(x,), outputs=(y,)), ready, described=True),
        ]
    )
    builder = Builder(catalog, Settings(), system_clock)
    for name, example in examples.SUBMISSIONS.items():
        assert builder.build(Request("acme", json.dumps(example["value"]).encode())).job.total, name
    assert list(examples.JOB) == list(json.loads(render_job(job())))
