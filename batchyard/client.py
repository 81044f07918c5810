"""The blocking client. AsyncClient (async_client.py) is its twin; what they do is in _flows.py."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from batchyard._flows import UNSET, Flow, Flows, submission
from batchyard._http import FAILURES, arguments, head, options, told
from batchyard._wire import Effect, Emit, Open, Read, Request, Response, Returned, Send, Sleep, advance
from batchyard.errors import BatchyardError, JobNotSucceeded
from batchyard.records import Event, Item, JobRecord, Model, Result, job_fields
from batchyard.target import Target, locate

T = TypeVar("T")


@dataclass(frozen=True)
class Job(JobRecord):
    """A job as it was when it was read. Frozen: the verbs ask the API and give a new Job."""

    _client: "Client" = field(repr=False, compare=False)

    def refresh(self) -> "Job":
        """The job as it is now."""
        return self._client.get(self.id)

    def wait(self, timeout: float | None = None, on_progress: Callable[["Job"], None] | None = None) -> "Job":
        """The final job; see Client.wait."""
        return self._client.wait(self.id, timeout, on_progress)

    def results(self, from_index: int = 0, *, state: str | None = None, follow: bool = True) -> Iterator[Result]:
        """The results in item order; see Client.results."""
        return self._client.results(self.id, from_index, state=state, follow=follow)

    def cancel(self) -> "Job":
        """Asks the job to stop; see Client.cancel."""
        return self._client.cancel(self.id)

    def events(self) -> Iterator[Event]:
        """Progress and the final state as they happen; see Client.events."""
        return self._client.events(self.id)

    def raise_for_state(self) -> "Job":
        """Itself, or JobNotSucceeded for a final job that did not (wholly) succeed."""
        if self.final and not self.succeeded:
            raise JobNotSucceeded(self)
        return self


class Client:
    """Posts jobs and reads their results. Safe to share between threads; close it, or use it in a ``with`` block.

        with Client() as client:
            job = client.submit("mlp", input={"x": [0.0] * 64}).wait()
            print(job.state, job.output)

    Address and key come from the arguments, the environment (BATCHYARD_URL, BATCHYARD_API_KEY), a ``batchyard.toml``,
    or the local stack of this folder, in this order (target.py).

    ``timeout`` is how long (seconds) one answer may take. ``retry_for`` is how long (seconds) a call goes on trying
    when the API is not reached, is busy (503) or limits the rate (429), with growing, jittered pauses; Retry-After is
    honoured. A repeated submission carries the same Idempotency-Key, so it never makes a second job.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 15.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._timeout = timeout
        self._target = locate(url, api_key)
        self._http = httpx.Client(**options(self._target, timeout), transport=transport)
        self._flows = Flows(bind=lambda wire: Job(**job_fields(wire), _client=self), patience=retry_for)

    @property
    def target(self) -> Target:
        """The address in use, and where it came from."""
        return self._target

    def submit(
        self,
        model: str,
        *,
        input: Any = UNSET,  # noqa: A002 - the API's word
        items: Iterable[Item | Mapping[str, Any]] | None = None,
        outputs: Iterable[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        priority: str | None = None,
        metadata: Mapping[str, str] | None = None,
        not_before: datetime | None = None,
        queue_seconds: float | None = None,
        run_seconds: float | None = None,
        total_seconds: float | None = None,
        max_attempts: int | None = None,
        results_expire_after_seconds: float | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
    ) -> Job:
        """Posts a job and gives it as soon as it is on disk (before it has run).

        model: ``"name"`` (its default version) or ``"name@version"``.
        input: one item's input; its answer is then ``job.output``. items: up to 1,000 of them, each an Item or
            ``{"input": …, "id": …, "parameters": …}``. Exactly one of the two. numpy arrays are welcome.
        outputs: names of the outputs wanted (tensor models). priority: high, normal or low.
        queue_seconds, run_seconds, total_seconds: the three clocks. max_attempts: tries of an item that fails.
        idempotency_key: two submissions with the same key are one job; the client makes one where none is given.
        wait: up to 60 s for the job to end before this returns (it may still be running then).

            job = client.submit("embed", items=[Item({"text": "a"}, id="doc-17"), Item({"text": "b"}, id="doc-18")])
            for result in job.results():
                print(result.id, result.output if result.succeeded else result.error)

        Raises InvalidInput (``.findings`` has everything that is wrong), TooLarge, TooManyRequests, Unavailable …
        """
        content = submission(
            model,
            input=input,
            items=items,
            outputs=outputs,
            parameters=parameters,
            priority=priority,
            metadata=metadata,
            not_before=not_before,
            queue_seconds=queue_seconds,
            run_seconds=run_seconds,
            total_seconds=total_seconds,
            max_attempts=max_attempts,
            results_expire_after_seconds=results_expire_after_seconds,
        )
        return self._run(self._flows.submit(content, idempotency_key, wait))

    def get(self, job: str) -> Job:
        """The job with this id. NotFound if this key's tenant has none."""
        return self._run(self._flows.get(job))

    def wait(self, job: str, timeout: float | None = None, on_progress: Callable[[Job], None] | None = None) -> Job:
        """Waits until the job is final and gives it; it does not raise for one that failed (``raise_for_state`` does).

        timeout: seconds; WaitTimeout afterwards (the job goes on). on_progress is called about once a second.

            job = client.wait(job_id, timeout=60, on_progress=lambda job: print(job.counts))
        """
        return self._run(self._flows.wait(job, timeout, on_progress))

    def results(
        self, job: str, from_index: int = 0, *, state: str | None = None, follow: bool = True
    ) -> Iterator[Result]:
        """Iterates over the results in item order, while the job runs too: it then waits for the next one.

        from_index: where to begin. state: only results of this state. follow=False: only what is there now.
        A broken connection is taken up where it broke; nothing is given twice.
        """
        return self._iterate(self._flows.results(job, from_index, state, follow))

    def cancel(self, job: str) -> Job:
        """Asks the job to stop: what has not started ends now, what runs is told, finished items are kept.
        Conflict if it is final already."""
        return self._run(self._flows.cancel(job))

    def list(
        self,
        *,
        state: str | None = None,
        model: str | None = None,
        created_after: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Iterates over the tenant's jobs, newest first, asking for further pages as they are needed.

        for job in client.list(state="failed", metadata={"team": "search"}, limit=20): ...
        """
        return self._iterate(self._flows.jobs(state, model, created_after, metadata, limit))

    def models(self) -> tuple[Model, ...]:
        """Every model that is served."""
        return self._run(self._flows.models())

    def model(self, name: str) -> Model:
        """One model with its versions, inputs, outputs and statistics (in ``raw``)."""
        return self._run(self._flows.model(name))

    def events(self, job: str) -> Iterator[Event]:
        """Iterates over the job's events (``progress`` at most once a second, then ``state``) until it is final."""
        return self._iterate(self._flows.events(job))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        with _Wire(self._http, self._target, self._timeout) as wire:
            effect = advance(flow)
            while not isinstance(effect, Returned):
                effect = advance(flow, wire.perform(effect))
        value: T = effect.value
        return value

    def _iterate(self, flow: Flow[None]) -> Iterator[Any]:
        with _Wire(self._http, self._target, self._timeout) as wire:
            effect = advance(flow)
            while not isinstance(effect, Returned):
                if isinstance(effect, Emit):
                    yield effect.value
                effect = advance(flow, wire.perform(effect))


class _Wire:
    """Performs the effects of one flow."""

    def __init__(self, http: httpx.Client, target: Target, timeout: float) -> None:
        self._http = http
        self._target = target
        self._timeout = timeout
        self._open: httpx.Response | None = None
        self._bytes: Iterator[bytes] = iter(())

    def perform(self, effect: Effect) -> Response | bytes | BatchyardError | None:
        """The effect's answer, or why there is none."""
        try:
            match effect:
                case Send(request):
                    response = self._http.send(self._built(request))
                    return head(response, response.content)
                case Open(request):
                    self.close()
                    self._open = self._http.send(self._built(request), stream=True)
                    self._bytes = self._open.iter_bytes()
                    return head(self._open, self._open.read() if self._open.status_code >= 400 else b"")
                case Read():
                    return next(self._bytes, b"")
                case Sleep(seconds):
                    time.sleep(seconds)
        except FAILURES as error:
            return told(error, self._target)
        return None

    def _built(self, request: Request) -> httpx.Request:
        return self._http.build_request(**arguments(request, self._timeout))

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
