"""The asyncio client: the twin of client.py."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
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
class AsyncJob(JobRecord):
    """A job as it was when it was read. Frozen: the verbs ask the API and give a new AsyncJob."""

    _client: "AsyncClient" = field(repr=False, compare=False)

    async def refresh(self) -> "AsyncJob":
        """The job as it is now."""
        return await self._client.get(self.id)

    async def wait(
        self, timeout: float | None = None, on_progress: Callable[["AsyncJob"], None] | None = None
    ) -> "AsyncJob":
        """The final job; see AsyncClient.wait."""
        return await self._client.wait(self.id, timeout, on_progress)

    def results(self, from_index: int = 0, *, state: str | None = None, follow: bool = True) -> AsyncIterator[Result]:
        """The results in item order; see AsyncClient.results."""
        return self._client.results(self.id, from_index, state=state, follow=follow)

    async def cancel(self) -> "AsyncJob":
        """Asks the job to stop; see AsyncClient.cancel."""
        return await self._client.cancel(self.id)

    def events(self) -> AsyncIterator[Event]:
        """Progress and the final state as they happen; see AsyncClient.events."""
        return self._client.events(self.id)

    def raise_for_state(self) -> "AsyncJob":
        """Itself, or JobNotSucceeded for a final job that did not (wholly) succeed."""
        if self.final and not self.succeeded:
            raise JobNotSucceeded(self)
        return self


class AsyncClient:
    """Client for asyncio; arguments and meaning are those of Client.

    async with AsyncClient() as client:
        job = await client.submit("mlp", input={"x": [0.0] * 64}, wait=10)
        jobs = await asyncio.gather(*(client.submit("echo", input={"id": n}) for n in range(100)))
        async for result in jobs[0].results():
            print(result.output)
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 15.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout = timeout
        self._target = locate(url, api_key)
        self._http = httpx.AsyncClient(**options(self._target, timeout), transport=transport)
        self._flows = Flows(bind=lambda wire: AsyncJob(**job_fields(wire), _client=self), patience=retry_for)

    @property
    def target(self) -> Target:
        """The address in use, and where it came from."""
        return self._target

    async def submit(
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
    ) -> AsyncJob:
        """Posts a job and gives it as soon as it is on disk; the arguments are those of Client.submit."""
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
        return await self._run(self._flows.submit(content, idempotency_key, wait))

    async def get(self, job: str) -> AsyncJob:
        """The job with this id. NotFound if this key's tenant has none."""
        return await self._run(self._flows.get(job))

    async def wait(
        self, job: str, timeout: float | None = None, on_progress: Callable[[AsyncJob], None] | None = None
    ) -> AsyncJob:
        """Waits until the job is final and gives it; see Client.wait. ``asyncio.timeout`` works as well."""
        return await self._run(self._flows.wait(job, timeout, on_progress))

    def results(
        self, job: str, from_index: int = 0, *, state: str | None = None, follow: bool = True
    ) -> AsyncIterator[Result]:
        """Iterates over the results in item order, while the job runs too; see Client.results."""
        return self._iterate(self._flows.results(job, from_index, state, follow))

    async def cancel(self, job: str) -> AsyncJob:
        """Asks the job to stop; see Client.cancel."""
        return await self._run(self._flows.cancel(job))

    def list(
        self,
        *,
        state: str | None = None,
        model: str | None = None,
        created_after: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[AsyncJob]:
        """Iterates over the tenant's jobs, newest first; see Client.list."""
        return self._iterate(self._flows.jobs(state, model, created_after, metadata, limit))

    async def models(self) -> tuple[Model, ...]:
        """Every model that is served."""
        return await self._run(self._flows.models())

    async def model(self, name: str) -> Model:
        """One model with its versions, inputs, outputs and statistics (in ``raw``)."""
        return await self._run(self._flows.model(name))

    def events(self, job: str) -> AsyncIterator[Event]:
        """Iterates over the job's events until it is final; see Client.events."""
        return self._iterate(self._flows.events(job))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        async with _Wire(self._http, self._target, self._timeout) as wire:
            effect = advance(flow)
            while not isinstance(effect, Returned):
                effect = advance(flow, await wire.perform(effect))
        value: T = effect.value
        return value

    async def _iterate(self, flow: Flow[None]) -> AsyncIterator[Any]:
        async with _Wire(self._http, self._target, self._timeout) as wire:
            effect = advance(flow)
            while not isinstance(effect, Returned):
                if isinstance(effect, Emit):
                    yield effect.value
                effect = advance(flow, await wire.perform(effect))


class _Wire:
    """Performs the effects of one flow."""

    def __init__(self, http: httpx.AsyncClient, target: Target, timeout: float) -> None:
        self._http = http
        self._target = target
        self._timeout = timeout
        self._open: httpx.Response | None = None
        self._bytes: AsyncIterator[bytes] | None = None

    async def perform(self, effect: Effect) -> Response | bytes | BatchyardError | None:
        """The effect's answer, or why there is none."""
        try:
            match effect:
                case Send(request):
                    response = await self._http.send(self._built(request))
                    return head(response, response.content)
                case Open(request):
                    await self.close()
                    self._open = await self._http.send(self._built(request), stream=True)
                    self._bytes = self._open.aiter_bytes()
                    return head(self._open, await self._open.aread() if self._open.status_code >= 400 else b"")
                case Read():
                    return b"" if self._bytes is None else await anext(self._bytes, b"")
                case Sleep(seconds):
                    await asyncio.sleep(seconds)
        except FAILURES as error:
            return told(error, self._target)
        return None

    def _built(self, request: Request) -> httpx.Request:
        return self._http.build_request(**arguments(request, self._timeout))

    async def close(self) -> None:
        if self._open is not None:
            await self._open.aclose()
            self._open = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
