"""What the client does, told effect by effect: no socket, no clock, no sleeping."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from batchyard._flows import UNSET, Flow, Flows, submission
from batchyard._wire import Effect, Emit, Open, Read, Response, Returned, Send, Sleep, advance
from batchyard.errors import (
    BatchyardError,
    Conflict,
    ConnectionFailed,
    InvalidInput,
    RateLimited,
    Unavailable,
    WaitTimeout,
)
from batchyard.records import Item, JobRecord, job_fields


def job(state: str = "running", **counts: int) -> dict[str, Any]:
    return {
        "id": "job_1",
        "model": "echo",
        "version": "1",
        "state": state,
        "counts": {"total": 10, **counts},
        "created_at": "2026-11-30T17:00:00.000Z",
    }


def ok(body: Any, status: int = 200, **headers: str) -> Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, names, body if isinstance(body, bytes) else json.dumps(body).encode())


def problem(status: int, code: str, retryable: bool = False, **headers: str) -> Response:
    return ok(
        {"status": status, "code": code, "title": code, "detail": "why", "retryable": retryable}, status, **headers
    )


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


Script = list[Any]


class Play:
    """Runs a flow against scripted answers; sleeping moves the clock."""

    def __init__(self, patience: float = 15.0) -> None:
        self.clock = Clock()
        self.sent: list[Send | Open] = []
        self.slept: list[float] = []
        self.emitted: list[Any] = []
        self.flows: Flows[JobRecord] = Flows(
            bind=lambda wire: JobRecord(**job_fields(wire)),
            patience=patience,
            clock=self.clock,
            jitter=lambda: 0.5,
            new_key=lambda: "made-key",
        )

    def run(self, flow: Flow[Any], script: Script) -> Any:
        answers = iter(script)
        effect = advance(flow)
        while not isinstance(effect, Returned):
            effect = advance(flow, self._answer(effect, answers))
        assert next(answers, None) is None, "the flow asked less than was scripted"
        return effect.value

    def _answer(self, effect: Effect, answers: Any) -> Any:
        match effect:
            case Sleep(seconds):
                self.slept.append(seconds)
                self.clock.now += seconds
                return None
            case Emit(value):
                self.emitted.append(value)
                return None
            case Read():
                return next(answers)
            case _:
                self.sent.append(effect)
                answer = next(answers)
                if callable(answer):
                    answer = answer()
                if isinstance(effect, Open) and isinstance(answer, Response) and answer.status < 400:
                    return Response(answer.status, answer.headers, b"")
                return answer

    def paths(self) -> list[str]:
        return [
            effect.request.path
            + ("?" + "&".join("=".join(p) for p in effect.request.params) if effect.request.params else "")
            for effect in self.sent
        ]


def line(index: int) -> bytes:
    return json.dumps({"index": index, "id": str(index), "state": "succeeded", "output": index}).encode() + b"\n"


FIELDS = (
    "items",
    "outputs",
    "parameters",
    "priority",
    "metadata",
    "not_before",
    "queue_seconds",
    "run_seconds",
    "total_seconds",
    "max_attempts",
    "results_expire_after_seconds",
)


def body(**given: Any) -> Any:
    return json.loads(submission("echo", **{"input": UNSET, **dict.fromkeys(FIELDS), **given}))


def test_a_submission_holds_only_what_was_given() -> None:
    assert body(input=None) == {"model": "echo", "input": None}
    assert body(items=[Item(1), {"input": 2, "id": "b"}, Item(3, "c", {"k": 1})]) == {
        "model": "echo",
        "items": [{"input": 1}, {"input": 2, "id": "b"}, {"input": 3, "id": "c", "parameters": {"k": 1}}],
    }


def test_a_submission_holds_every_field_of_the_request() -> None:
    assert body(
        input=1,
        outputs=("y",),
        parameters={"p": 1},
        priority="high",
        metadata={"team": "search"},
        not_before=datetime(2026, 1, 2, tzinfo=UTC),
        queue_seconds=1,
        total_seconds=2.5,
        max_attempts=1,
        results_expire_after_seconds=60,
    ) == {
        "model": "echo",
        "input": 1,
        "outputs": ["y"],
        "parameters": {"p": 1},
        "priority": "high",
        "metadata": {"team": "search"},
        "not_before": "2026-01-02T00:00:00+00:00",
        "timeouts": {"queue_seconds": 1, "total_seconds": 2.5},
        "retry": {"max_attempts": 1},
        "results_expire_after_seconds": 60,
    }


@pytest.mark.parametrize("given", [{}, {"input": 1, "items": []}])
def test_exactly_one_of_input_and_items(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="exactly one"):
        body(**given)


def test_a_time_without_zone_is_refused_here_already() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        body(input=1, not_before=datetime(2026, 1, 2))


def test_floats_that_json_lacks_go_as_the_strings_of_the_api() -> None:
    assert body(input=[math.nan, {"x": (math.inf, -math.inf, 1.5)}])["input"] == [
        "NaN",
        {"x": ["Infinity", "-Infinity", 1.5]},
    ]


def test_arrays_become_lists_without_knowing_their_package() -> None:
    class Array:
        def tolist(self) -> list[float]:
            return [1.0, math.nan]

    assert body(input={"x": Array()})["input"] == {"x": [1.0, "NaN"]}


def test_what_cannot_be_sent_says_so() -> None:
    with pytest.raises(TypeError, match="set cannot be sent"):
        body(input={1, 2})
    with pytest.raises(BatchyardError, match="no valid Unicode"):
        body(input="\ud800")


def test_a_repeated_submission_carries_the_same_key_and_body() -> None:
    play = Play()
    answers = [ConnectionFailed("broke"), problem(503, "unavailable", True), ok(job("queued"), 202)]
    submitted = play.run(play.flows.submit(b"{}", None, None), answers)
    assert submitted.state == "queued"
    assert len({(effect.request.content, effect.request.headers) for effect in play.sent}) == 1
    assert ("Idempotency-Key", '"made-key"') in play.sent[0].request.headers
    assert play.slept == [0.2, 0.4]


def test_a_key_of_the_callers_own_is_quoted() -> None:
    play = Play()
    play.run(play.flows.submit(b"{}", 'a"b\\c', 90), [ok(job(), 202)])
    headers = dict(play.sent[0].request.headers)
    assert headers["Idempotency-Key"] == '"a\\"b\\\\c"'
    assert headers["Prefer"] == "wait=60"
    assert play.sent[0].request.patience == 60
    with pytest.raises(ValueError, match="printable ASCII"):
        play.run(play.flows.submit(b"{}", "ü", None), [])


def test_retry_after_is_honoured_and_what_comes_too_late_is_not_waited_for() -> None:
    play = Play(patience=15)
    play.run(play.flows.get("job_1"), [problem(429, "rate_limited", True, retry_after="7"), ok(job())])
    assert play.slept == [7.0]
    with pytest.raises(RateLimited) as caught:
        play.run(play.flows.get("job_1"), [problem(429, "rate_limited", True, retry_after="16")])
    assert caught.value.retry_after == 16


def test_retries_end_when_patience_does() -> None:
    play = Play(patience=2.9)
    with pytest.raises(Unavailable):
        play.run(play.flows.get("job_1"), [problem(503, "unavailable", True) for _ in range(4)])
    assert play.slept == [0.2, 0.4, 0.8]  # the next, 1.6, would end after 2.9 s


def test_a_refusal_is_not_tried_again() -> None:
    play = Play()
    with pytest.raises(InvalidInput):
        play.run(play.flows.get("job_1"), [problem(400, "invalid_input")])
    assert play.slept == []


def test_wait_asks_until_the_job_is_final() -> None:
    play = Play()
    final = play.run(play.flows.wait("job_1", None, None), [ok(job()), ok(job()), ok(job("succeeded", succeeded=10))])
    assert final.succeeded
    assert play.paths() == ["/v1/jobs/job_1?wait=30"] * 3


def test_wait_tells_the_progress_before_it_pauses() -> None:
    play = Play()
    told: list[int] = []
    script = [ok(job(succeeded=3)), ok(job("succeeded", succeeded=10))]
    play.run(play.flows.wait("job_1", None, lambda j: told.append(j.counts.done)), script)
    assert told == [3, 10]
    assert play.paths() == ["/v1/jobs/job_1", "/v1/jobs/job_1?wait=1"]


def test_wait_gives_up_in_time_and_names_the_job() -> None:
    play = Play()

    def after(seconds: float) -> Callable[[], Response]:
        def answer() -> Response:
            play.clock.now += seconds
            return ok(job(succeeded=4))

        return answer

    with pytest.raises(WaitTimeout, match=r"job_1 is running after 5.5 s \(4 of 10 items done\)") as caught:
        play.run(play.flows.wait("job_1", 5.5, None), [after(5.2), after(0.3)])
    assert caught.value.job.id == "job_1"
    assert play.clock.now == pytest.approx(5.5)
    assert play.paths() == ["/v1/jobs/job_1?wait=5.5", "/v1/jobs/job_1?wait=0.3"]


def test_cancel_whose_first_answer_was_lost_is_still_a_cancel() -> None:
    play = Play()
    script = [ConnectionFailed("broke"), problem(409, "conflict"), ok(job("cancelled", cancelled=10))]
    assert play.run(play.flows.cancel("job_1"), script).state == "cancelled"
    with pytest.raises(Conflict):
        play.run(play.flows.cancel("job_1"), [problem(409, "conflict")])
    with pytest.raises(Conflict):
        play.run(
            play.flows.cancel("job_1"),
            [ConnectionFailed("broke"), problem(409, "conflict"), ok(job("succeeded", succeeded=10))],
        )


def test_list_goes_through_the_pages_and_stops_at_the_limit() -> None:
    play = Play()
    pages = [ok({"data": [job()] * 200, "next": "c1"}), ok({"data": [job()] * 50, "next": "c2"})]
    play.run(play.flows.jobs("running", None, datetime(2026, 1, 1, tzinfo=UTC), {"team": "a"}, 250), pages)
    assert len(play.emitted) == 250
    first, second = (dict(effect.request.params) for effect in play.sent)
    assert first == {
        "state": "running",
        "created_after": "2026-01-01T00:00:00+00:00",
        "metadata.team": "a",
        "limit": "200",
    }
    assert second["after"] == "c1"
    assert second["limit"] == "50"


def test_results_come_line_by_line_and_go_on_where_they_broke() -> None:
    play = Play()
    script = [
        ok(b""), line(0) + line(1)[:9], line(1)[9:] + line(2), ConnectionFailed("broke"),
        ok(b"", batchyard_complete="false", batchyard_next_index="4"), line(3), b"",
        ok(job()),
        ok(b"", batchyard_complete="true"), line(4).rstrip(b"\n"), b"",
    ]  # fmt: skip
    play.run(play.flows.results("job_1", 0, None, follow=True), script)
    assert [result.index for result in play.emitted] == [0, 1, 2, 3, 4]
    assert play.paths() == [
        "/v1/jobs/job_1/results?from_index=0",
        "/v1/jobs/job_1/results?from_index=3",
        "/v1/jobs/job_1?wait=1",
        "/v1/jobs/job_1/results?from_index=4",
    ]
    assert len(play.slept) == 1


def test_results_of_one_state_go_on_behind_what_was_looked_at() -> None:
    play = Play()
    script = [
        ok(b"", batchyard_complete="false", batchyard_next_index="7"), b"",
        ok(job()),
        ok(b""), b"",
    ]  # fmt: skip
    play.run(play.flows.results("job_1", 0, "failed", follow=True), script)
    assert play.paths()[2] == "/v1/jobs/job_1/results?from_index=7&state=failed"


def test_results_without_following_are_those_that_are_there() -> None:
    play = Play()
    play.run(play.flows.results("job_1", 2, None, follow=False), [ok(b"", batchyard_complete="false"), line(2), b""])
    assert [result.index for result in play.emitted] == [2]


def test_a_results_stream_that_never_moves_gives_up() -> None:
    play = Play(patience=1)
    broken = [ok(b""), ConnectionFailed("broke")]
    with pytest.raises(ConnectionFailed):
        play.run(play.flows.results("job_1", 0, None, follow=True), broken * 3)


def test_events_reconnect_with_the_last_id_and_end_with_the_job() -> None:
    play = Play()
    script = [
        ok(b""), b'id: 7\nevent: progress\ndata: {"counts": {}}\n\n', b"",
        ok(b""), b': ping\n\nid: 8\nevent: state\nda', b'ta: {"state": "succeeded"}\n\n',
    ]  # fmt: skip
    play.run(play.flows.events("job_1"), script)
    assert [(event.name, event.id) for event in play.emitted] == [("progress", "7"), ("state", "8")]
    assert ("Last-Event-ID", "7") in play.sent[1].request.headers


def test_ids_cannot_leave_their_place_in_the_path() -> None:
    play = Play()
    play.run(play.flows.get("../models?x=1"), [ok(job())])
    assert play.paths() == ["/v1/jobs/..%2Fmodels%3Fx%3D1"]
