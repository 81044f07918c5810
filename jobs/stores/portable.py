"""Changes in portable SQL, the same on every store: workers, tenants, keys, records that nobody could read."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import CursorResult, Executable, delete, insert, update

from jobs.records import ApiKey
from jobs.store import WorkerRow
from jobs.stores.tables import api_keys, bad_records, tenants, workers


class CoreStatements(Protocol):
    """Runs statements inside one transaction; ``at`` is the store's time when it began."""

    @property
    def at(self) -> datetime: ...

    def core(self, statement: Executable) -> CursorResult[Any]: ...


class PortableChanges:
    """A part of `jobs.store.Transaction`. `insert_or_ignore` is the dialect's insert that can do nothing instead."""

    def __init__(self, statements: CoreStatements, insert_or_ignore: Callable[..., Any]) -> None:
        self._portable = statements
        self._insert_or_ignore = insert_or_ignore

    def register_worker(self, worker: WorkerRow) -> None:
        self._portable.core(
            insert(workers).values(
                incarnation=worker.incarnation,
                name=worker.name,
                pid=worker.pid,
                started_at=worker.started_at,
                until=worker.until,
            )
        )

    def heartbeat(self, incarnation: str, lease: timedelta) -> bool:
        db = self._portable
        extended = update(workers).where(workers.c.incarnation == incarnation).values(until=db.at + lease)
        return db.core(extended).rowcount == 1

    def remove_worker(self, incarnation: str) -> None:
        self._portable.core(delete(workers).where(workers.c.incarnation == incarnation))

    def ensure_tenant(self, tenant: str) -> None:
        row = self._insert_or_ignore(tenants).values(id=tenant, created_at=self._portable.at)
        self._portable.core(row.on_conflict_do_nothing())

    def add_key(self, key: ApiKey, digest: bytes) -> None:
        self._portable.core(
            insert(api_keys).values(
                id=key.id,
                tenant=key.tenant,
                digest=digest,
                scopes=sorted(key.scopes),
                expires_at=key.expires_at,
                created_at=self._portable.at,
            )
        )

    def keep_bad_record(self, topic: str, partition: int, offset: int, reason: str, value: bytes) -> None:
        self._portable.core(
            insert(bad_records).values(
                topic=topic, partition=partition, offset=offset, reason=reason, bytes=value, at=self._portable.at
            )
        )
