"""Wires the local stack: the one place here that knows which adapter stands behind which port."""

import hashlib
import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from api.services import Services
from batchyard.local.data import Keys
from jobs.blobs.directory import DirectoryBlobs
from jobs.caches.memory import MemoryCache
from jobs.ids import new_id
from jobs.ledger import Ledger
from jobs.models.catalog import Catalog
from jobs.notifiers.process import ProcessNotifier
from jobs.publisher import Publisher
from jobs.records import ApiKey
from jobs.settings import Settings
from jobs.store import Transaction
from jobs.stores.sqlite import SqliteStore
from jobs.streams.memory import MemoryStream
from migrations.run import upgrade
from workers.supervisor import Supervisor
from workers.upkeep.expirer import Expirer
from workers.upkeep.loop import Agent
from workers.upkeep.relay import Relay
from workers.upkeep.rescuer import Rescuer

log = logging.getLogger("batchyard.stack")

TENANT = "default"
SCOPES = frozenset({"jobs:read", "jobs:write", "webhooks", "usage:read", "models:debug"})
AGENT_SECONDS = 5.0
"""How long the end waits for one step of an upkeep agent."""


@dataclass
class Draining:
    """Set when the process is on its way out; the API is not ready from then on."""

    value: bool = False

    def __call__(self) -> bool:
        return self.value


class Parts:
    """Everything that runs in the front process but the listeners. `start`, then `start_workers`, then `stop`."""

    def __init__(self, settings: Settings, repository: Path, keys: Keys) -> None:
        self.settings = settings
        self.catalog = Catalog()
        self.draining = Draining()
        self._keys = keys
        ledger_file = settings.data / "ledger.db"
        upgrade(f"sqlite:///{ledger_file}")
        self._store = SqliteStore(ledger_file, publish_lease=settings.publish_lease)
        self._stream = MemoryStream()
        notifier = ProcessNotifier()
        # Made of a key that is kept, so that links outlive a restart.
        secret = digest(f"blob links {keys.admin}")
        blobs = DirectoryBlobs(settings.data / "blobs", secret)
        self._publisher = Publisher(self._stream, self._pool)
        self._ledger = Ledger(self._store, on_committed=self._publisher.committed, crash=settings.crash)
        self.supervisor = Supervisor(
            ledger=self._ledger,
            stream=self._stream,
            blobs=blobs,
            notifier=notifier,
            publisher=self._publisher,
            catalog=self.catalog,
            repository=repository,
            settings=settings,
        )
        relay = Agent(Relay(self._ledger, self._publisher, lease=settings.publish_lease))
        self._publisher.when_room(relay.wake)
        self._agents = (
            relay,
            Agent(Rescuer(self._ledger, lease=settings.lease, on_rescued=relay.wake)),
            Agent(Expirer(self._ledger, notifier, cancel_grace=settings.cancel_grace)),
        )
        self.services = Services(
            ledger=self._ledger,
            publisher=self._publisher,
            store=self._store,
            blobs=blobs,
            cache=MemoryCache(),
            notifier=notifier,
            catalog=self.catalog,
            fleet=self.supervisor,
            settings=settings,
            admin_key_digest=digest(keys.admin),
            draining=self.draining,
        )

    def start(self) -> None:
        """The ledger takes changes from here on; what an earlier process left behind is free and due."""
        self._ledger.start()
        self._ledger.call(self._ensure_key)
        rescued, due = self._ledger.call(self._take_over)
        if due:
            log.info("%d chunks go on (%d of them were running when the last process ended)", due, rescued)

    def start_workers(self) -> None:
        """Engines load in the background; `wait_loaded` tells when."""
        self.supervisor.start()
        for agent in self._agents:
            agent.start()

    def wait_loaded(self, seconds: float) -> bool:
        """Until every model version is ready or unavailable; False: some is still loading."""
        return self.supervisor.wait_loaded(seconds)

    def stop(self) -> None:
        """Finishes what runs, hands back the rest, writes what is queued."""
        self.supervisor.stop(self.settings.drain)
        for agent in self._agents:
            agent.stop(AGENT_SECONDS)
        self._ledger.stop()
        self._stream.close()
        self._store.close()

    def _pool(self, model: str, version: str) -> str | None:
        """The one worker here serves every pool, so a model's own does not matter."""
        return self.settings.pool if self.catalog.find(model, version) else None

    def _ensure_key(self, tx: Transaction) -> None:
        tx.ensure_tenant(TENANT)
        if self._store.api_key(digest(self._keys.api)) is None:
            tx.add_key(ApiKey(new_id("key"), TENANT, SCOPES, expires_at=None), digest(self._keys.api))

    def _take_over(self, tx: Transaction) -> tuple[int, int]:
        """The lock on the data says that nobody else lives, so no lease needs to be waited for."""
        for worker in self._store.workers():
            tx.remove_worker(worker.incarnation)
        rescued = tx.rescue(timedelta(0))
        return rescued, tx.republish_all()


def digest(key: str) -> bytes:
    """What is stored of a key."""
    return hashlib.sha256(key.encode()).digest()
