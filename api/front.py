"""Everything of the API that lives while it serves: made once, started on the event loop that it serves on."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from api.auth import Authenticator
from api.commits import Commits
from api.events import Events
from api.jobs import Jobs
from api.reader import Reader
from api.results import Results
from api.services import Services
from api.waiters import Waiters
from jobs.errors import NotFound, Unavailable
from jobs.notifier import Ping
from jobs.records import ApiKey, Job
from jobs.states import JobState
from jobs.store import Stopped

T = TypeVar("T")

READING_THREADS = 4
DECODING_THREADS = 2


class Front:
    """``jobs``, ``events``, ``auth`` and the pools are there once `start` was called."""

    jobs: Jobs
    events: Events
    auth: Authenticator

    def __init__(self, services: Services) -> None:
        self.services = services
        settings = services.settings
        self.results = Results(services.store, services.blobs, settings.link_life, services.clock)
        self.reader = Reader(services.store, self.results.single)
        self.waiters = Waiters(self.reader, services.notifier)
        self._reading = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="api-read")
        self._decoding = ThreadPoolExecutor(DECODING_THREADS, thread_name_prefix="api-decode")
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """On the event loop that will serve; again is nothing."""
        if self._loop is not None:
            return
        loop = self._loop = asyncio.get_running_loop()
        services = self.services
        self.reader.start(loop, self.waiters.answered)
        self.waiters.start(loop)
        self.jobs = Jobs(services, self.reader, self.waiters, Commits(loop), self._decoding)
        self.events = Events(self.waiters, services.clock)
        self.auth = Authenticator(services.cache, self._look_up_key, services.clock)

    def drain(self) -> None:
        """Answers every client that waits with what is known now, so that serving can end."""
        self.waiters.stop()

    def stop(self) -> None:
        if self._loop is None:
            return
        self.drain()
        self.reader.stop()
        self._reading.shutdown(wait=True, cancel_futures=True)
        self._decoding.shutdown(wait=True, cancel_futures=True)

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs a read in the pool of reading threads."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, functools.partial(function, *arguments))

    async def _look_up_key(self, digest: bytes) -> ApiKey | None:
        return await self.read(self.services.store.api_key, digest)

    async def cancel(self, tenant: str, job_id: str) -> tuple[Job, bool]:
        """Asks a job to stop; gives it as it now is and whether that changed anything. NotFound if it has none."""
        stopped: Stopped | None = await asyncio.wrap_future(
            self.services.ledger.post(lambda tx: tx.stop(tenant, job_id, JobState.CANCELLED, None, False))
        )
        if stopped is None:
            raise NotFound(f"There is no job {job_id[:80]}.")
        job = stopped.job
        if stopped.changed:
            finals = (job,) if job.final else ()
            self.services.notifier.ping(Ping(jobs=(job.id,), finals=finals, stopped=(job.id,)))
        return job, stopped.changed


def check_serving(services: Services, monotonic: float, stalled_after: float = 10.0) -> None:
    """Unavailable, saying why, unless work can be taken and is being done."""
    if services.draining():
        raise Unavailable("The process is on its way out.")
    if monotonic - services.ledger.last_progress > stalled_after:
        raise Unavailable("The ledger makes no progress.")
    if not services.fleet.ready():
        raise Unavailable("The workers make no progress.")
    models = services.catalog.models().values()
    versions = [version for model in models for version in model.versions.values()]
    if versions and not any(version.described for version in versions):
        raise Unavailable("No model has been loaded yet.")
