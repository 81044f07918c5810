"""Everything the client does, once for both kinds of client: generators that yield effects (see _wire.py)."""

import json
import math
import random
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from batchyard._wire import Effect, Emit, Lines, Open, Read, Request, Response, Send, ServerSentEvents, Sleep, encode
from batchyard.errors import BatchyardError, Conflict, ConnectionFailed, WaitTimeout
from batchyard.records import FINAL_STATES, Event, Item, JobRecord, Model, Result

J = TypeVar("J", bound=JobRecord)
T = TypeVar("T")
Flow = Generator[Effect, Any, T]

LONG_POLL = 30  # seconds that one question waits at the API
WATCHED_POLL = 1  # the same while someone looks at the progress
PAGE = 200


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()
"""Tells `input=None` (JSON null, a valid input) from no input."""


@dataclass
class Retries:
    """Backoff of one undertaking: tries again for at most `patience` seconds since the last sign of progress."""

    patience: float
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    first: float = 0.2
    most: float = 5.0
    _since: float | None = None
    _failures: int = 0

    def delay(self, failure: BatchyardError) -> float:
        """Seconds to sleep before the next try; raises the failure where another try is no use or comes too late."""
        now = self.clock()
        if self._since is None:
            self._since = now
        if not failure.retryable:
            raise failure
        backoff = min(self.most, self.first * float(2**self._failures)) * (0.5 + self.jitter())
        delay = max(backoff, failure.retry_after or 0.0)
        if now + delay - self._since > self.patience:
            raise failure
        self._failures += 1
        return delay

    def progressed(self) -> None:
        self._since, self._failures = None, 0


def submission(
    model: str,
    *,
    input: Any,  # noqa: A002 - the API's word
    items: Iterable[Item | Mapping[str, Any]] | None,
    outputs: Iterable[str] | None,
    parameters: Mapping[str, Any] | None,
    priority: str | None,
    metadata: Mapping[str, str] | None,
    not_before: datetime | None,
    queue_seconds: float | None,
    run_seconds: float | None,
    total_seconds: float | None,
    max_attempts: int | None,
    results_expire_after_seconds: float | None,
) -> bytes:
    """The body of POST /v1/jobs; fields that were not given are left out, so the server's defaults hold."""
    if (input is UNSET) == (items is None):
        raise TypeError("give exactly one of input= (one item) and items= (many)")
    if not_before is not None and not_before.tzinfo is None:
        raise ValueError("not_before has no time zone; use for example datetime.now(timezone.utc) + timedelta(hours=1)")
    body: dict[str, Any] = {"model": model}
    if items is None:
        body["input"] = input
    else:
        body["items"] = [item.to_wire() if isinstance(item, Item) else dict(item) for item in items]
    timeouts = {"queue_seconds": queue_seconds, "run_seconds": run_seconds, "total_seconds": total_seconds}
    timeouts = {name: seconds for name, seconds in timeouts.items() if seconds is not None}
    given: dict[str, Any] = {
        "outputs": list(outputs) if outputs is not None else None,
        "parameters": parameters,
        "priority": priority,
        "metadata": metadata,
        "not_before": not_before.isoformat() if not_before is not None else None,
        "timeouts": timeouts or None,
        "retry": {"max_attempts": max_attempts} if max_attempts is not None else None,
        "results_expire_after_seconds": results_expire_after_seconds,
    }
    body.update({name: value for name, value in given.items() if value is not None})
    return encode(body)


@dataclass(frozen=True)
class Flows(Generic[J]):
    """`bind` makes a Job of the API's job object; clock and jitter are injected for tests."""

    bind: Callable[[Mapping[str, Any]], J]
    patience: float
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    new_key: Callable[[], str] = field(default=lambda: str(uuid.uuid4()))

    def submit(self, content: bytes, idempotency_key: str | None, wait: float | None) -> Flow[J]:
        key = idempotency_key or self.new_key()
        headers = [("Content-Type", "application/json"), ("Idempotency-Key", _quoted(key))]
        patience = 0.0
        if wait is not None and wait > 0:
            patience = min(math.ceil(wait), 60)
            headers.append(("Prefer", f"wait={patience}"))
        request = Request("POST", "/v1/jobs", headers=tuple(headers), content=content, patience=patience)
        response = yield from self._send(request)
        return self.bind(response.json())

    def get(self, job: str, wait: float = 0) -> Flow[J]:
        params = (("wait", f"{math.ceil(wait * 1000) / 1000:g}"),) if wait else ()
        response = yield from self._send(Request("GET", _path(job), params=params, patience=wait))
        return self.bind(response.json())

    def wait(self, job: str, timeout: float | None, on_progress: Callable[[J], None] | None) -> Flow[J]:
        until = None if timeout is None else self.clock() + timeout
        at_once = on_progress is not None  # show the state before the first pause
        while True:
            poll: float = 0 if at_once else WATCHED_POLL if on_progress else LONG_POLL
            if until is not None:
                poll = max(0.0, min(poll, until - self.clock()))
            current = yield from self.get(job, poll)
            if on_progress is not None:
                on_progress(current)
            if current.final:
                return current
            if until is not None and self.clock() >= until:
                raise WaitTimeout(current, timeout or 0)
            at_once = False

    def cancel(self, job: str) -> Flow[J]:
        retries = self._retries()
        repeated = False
        while True:
            try:
                response = yield from self._once(Send(Request("POST", f"{_path(job)}/cancel")))
                return self.bind(response.json())
            except Conflict:
                # The first try may have done it though its answer never came.
                if repeated and (current := (yield from self.get(job))).state == "cancelled":
                    return current
                raise
            except BatchyardError as failure:
                yield Sleep(retries.delay(failure))
                repeated = True

    def jobs(
        self,
        state: str | None,
        model: str | None,
        created_after: datetime | None,
        metadata: Mapping[str, str] | None,
        limit: int | None,
    ) -> Flow[None]:
        """Emits jobs, newest first."""
        where = {"state": state, "model": model, "created_after": created_after.isoformat() if created_after else None}
        params = [(name, value) for name, value in where.items() if value is not None]
        params += [(f"metadata.{name}", value) for name, value in (metadata or {}).items()]
        left, after = limit, None
        while left is None or left > 0:
            page = [("limit", str(PAGE if left is None else min(PAGE, left)))] + ([("after", after)] if after else [])
            response = yield from self._send(Request("GET", "/v1/jobs", params=(*params, *page)))
            answer = response.json()
            for wire in answer["data"]:
                yield Emit(self.bind(wire))
            left = None if left is None else left - len(answer["data"])
            after = answer.get("next")
            if not after:
                return

    def models(self) -> Flow[tuple[Model, ...]]:
        response = yield from self._send(Request("GET", "/v1/models"))
        return tuple(Model.parse(wire) for wire in response.json()["data"])

    def model(self, name: str) -> Flow[Model]:
        response = yield from self._send(Request("GET", f"/v1/models/{quote(name, safe='')}"))
        return Model.parse(response.json())

    def results(self, job: str, from_index: int, state: str | None, follow: bool) -> Flow[None]:
        """Emits results in item order; while the job runs, waits for the next ones. A broken connection is taken up
        behind the last result that was emitted."""
        retries = self._retries()
        index = from_index
        while True:
            params = [("from_index", str(index))] + ([("state", state)] if state else [])
            try:
                response = yield from self._once(Open(Request("GET", f"{_path(job)}/results", params=tuple(params))))
                lines = Lines()
                while data := (yield Read()):
                    for line in lines.feed(data):
                        index = yield from self._result(line, index)
                        retries.progressed()
                index = yield from self._result(lines.rest(), index)
            except BatchyardError as failure:
                yield Sleep(retries.delay(failure))
                continue
            retries.progressed()
            if response.headers.get("batchyard-complete", "true").lower() != "false" or not follow:
                return
            index = max(index, int(response.headers.get("batchyard-next-index", index)))
            yield from self.get(job, WATCHED_POLL)

    def _result(self, line: bytes, index: int) -> Flow[int]:
        """Emits the result on this line, if there is one; gives the index to go on from."""
        if not line.strip():
            return index
        try:
            result = Result.parse(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise ConnectionFailed(f"the API sent a results line that is none: {line[:80]!r}") from error
        yield Emit(result)
        return result.index + 1

    def events(self, job: str) -> Flow[None]:
        """Emits events until the job is final; reconnects with Last-Event-ID."""
        retries = self._retries()
        stream = ServerSentEvents()
        while True:
            headers = [("Accept", "text/event-stream")]
            if stream.last_id is not None:
                headers.append(("Last-Event-ID", stream.last_id))
            request = Request("GET", f"{_path(job)}/events", headers=tuple(headers), patience=60)
            try:
                yield from self._once(Open(request))
                lines = Lines()
                while data := (yield Read()):
                    for line in lines.feed(data):
                        event = stream.feed(line)
                        if event is None:
                            continue
                        retries.progressed()
                        parsed = Event(event[0], json.loads(event[1]), stream.last_id)
                        yield Emit(parsed)
                        if parsed.name == "state" and parsed.data.get("state") in FINAL_STATES:
                            return
                raise ConnectionFailed("the event stream ended before the job did")
            except BatchyardError as failure:
                yield Sleep(retries.delay(failure))

    def _retries(self) -> Retries:
        return Retries(self.patience, self.clock, self.jitter)

    def _send(self, request: Request) -> Flow[Response]:
        """Tries again for as long as patience lasts. Everything sent through here may be repeated: submissions carry
        an Idempotency-Key, the rest reads."""
        retries = self._retries()
        while True:
            try:
                return (yield from self._once(Send(request)))
            except BatchyardError as failure:
                yield Sleep(retries.delay(failure))

    def _once(self, effect: Send | Open) -> Flow[Response]:
        response: Response = yield effect
        failure = response.failure()
        if failure is not None:
            raise failure
        return response


def _path(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}"


def _quoted(key: str) -> str:
    """A structured-field string, as the Idempotency-Key draft has it."""
    if not key.isascii() or not key.isprintable():
        raise ValueError("an idempotency key must be printable ASCII")
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
