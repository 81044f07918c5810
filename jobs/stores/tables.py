"""The ledger's tables, for every SQL store. Migrations create exactly these; a test compares.

Counts never exceed the total, a job is final exactly when its items are all decided, a done chunk has one outcome per
item, a job has one terminal event: where a rule can be a constraint, it is one.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.types import TypeEngine

from jobs.clock import from_micros, to_micros
from jobs.states import ChunkState, JobState, Priority

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s",
    }
)


class UtcTime(TypeDecorator[datetime]):
    """An aware UTC datetime: INTEGER microseconds since the epoch on SQLite, timestamptz elsewhere."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(BigInteger() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "sqlite":
            return value
        return to_micros(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        at: datetime = from_micros(value) if dialect.name == "sqlite" else value
        return at


def _one_of(column: str, values: type[JobState] | type[Priority] | type[ChunkState]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


_COUNTED = "succeeded + failed + cancelled + expired"

tenants = Table(
    "tenants",
    metadata,
    Column("id", String, primary_key=True),
    Column("created_at", UtcTime, nullable=False),
    sqlite_with_rowid=False,
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant", String, ForeignKey("tenants.id"), nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),  # SHA-256 of the secret
    Column("scopes", JSON, nullable=False),
    Column("expires_at", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    sqlite_with_rowid=False,
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant", String, ForeignKey("tenants.id"), nullable=False),
    Column("kind", String, nullable=False, server_default="inline"),
    Column("model", String, nullable=False),
    Column("version", String, nullable=False),
    Column("priority", String, nullable=False),
    Column("state", String, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("succeeded", BigInteger, nullable=False, server_default="0"),
    Column("failed", BigInteger, nullable=False, server_default="0"),
    Column("cancelled", BigInteger, nullable=False, server_default="0"),
    Column("expired", BigInteger, nullable=False, server_default="0"),
    Column("sealed", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False, server_default=text("FALSE")),
    Column("single", Boolean, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("finished_at", UtcTime),
    Column("not_before", UtcTime),
    Column("deadline_at", UtcTime),
    Column("results_kept_us", BigInteger),  # how long, counted from finished_at
    Column("results_expire_at", UtcTime),
    Column("run_timeout_us", BigInteger, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("stop_asked_at", UtcTime),
    Column("stop_as", String),
    Column("stop_reason", String),  # error code of the items that the stop expires
    Column("error", JSON(none_as_null=True)),  # of the job as a whole
    Column("parent_job", String),
    Column("metadata", JSON, nullable=False),
    Column("idempotency_key", String),
    Column("fingerprint", LargeBinary),
    Column("traceparent", String),
    Column("input_bytes", BigInteger, nullable=False),
    Column("engine_us", BigInteger, nullable=False, server_default="0"),
    Column("output_bytes", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("kind IN ('inline', 'bulk')", name="kind_known"),
    _one_of("priority", Priority),
    _one_of("state", JobState),
    CheckConstraint("succeeded >= 0 AND failed >= 0 AND cancelled >= 0 AND expired >= 0", name="counts_positive"),
    CheckConstraint(f"{_COUNTED} <= total", name="counts_within_total"),
    CheckConstraint("(finished_at IS NULL) = (state IN ('queued', 'running'))", name="final_has_time"),
    CheckConstraint(f"(finished_at IS NOT NULL) = (sealed AND {_COUNTED} = total)", name="final_is_decided"),
    CheckConstraint("(stop_asked_at IS NULL) = (stop_as IS NULL)", name="stop_has_outcome"),
    Index("jobs_newest", "tenant", "created_at", "id"),
    Index(
        "jobs_idempotency",
        "tenant",
        "idempotency_key",
        unique=True,
        sqlite_where=text("idempotency_key IS NOT NULL"),
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index(
        "jobs_deadline",
        "deadline_at",
        sqlite_where=text("finished_at IS NULL AND deadline_at IS NOT NULL"),
        postgresql_where=text("finished_at IS NULL AND deadline_at IS NOT NULL"),
    ),
    Index(
        "jobs_stopping",
        "stop_asked_at",
        sqlite_where=text("finished_at IS NULL AND stop_asked_at IS NOT NULL"),
        postgresql_where=text("finished_at IS NULL AND stop_asked_at IS NOT NULL"),
    ),
    sqlite_with_rowid=False,
)

chunks = Table(
    "chunks",
    metadata,
    Column("job", String, ForeignKey("jobs.id"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    # Of the job, repeated here so that one index finds what is due for a (tenant, model).
    Column("tenant", String, nullable=False),
    Column("model", String, nullable=False),
    Column("version", String, nullable=False),
    Column("items", String, nullable=False),  # sorted ranges as JSON: [[0,64]]
    Column("first_item", BigInteger, nullable=False),
    Column("end_item", BigInteger, nullable=False),
    Column("count", Integer, nullable=False),
    Column("parent", Integer),
    Column("alone", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    Column("worker", String),  # incarnation of the last claim
    Column("lapses", Integer, nullable=False, server_default="0"),
    Column("not_before", UtcTime),
    Column("publish_at", UtcTime, nullable=False),
    Column("queue_deadline_at", UtcTime),
    Column("outcomes", LargeBinary),  # one byte per item
    Column("reason", String),  # error code of items that ended without a result line
    _one_of("state", ChunkState),
    CheckConstraint("count > 0", name="count_positive"),
    CheckConstraint("fence >= 0", name="fence_positive"),
    CheckConstraint("state <> 'running' OR worker IS NOT NULL", name="running_has_worker"),
    CheckConstraint(
        "(state = 'done') = (outcomes IS NOT NULL) AND (outcomes IS NULL OR length(outcomes) = count)",
        name="done_has_outcomes",
    ),
    # Covers the backlog's sum as well.
    Index(
        "chunks_due",
        "tenant",
        "model",
        "publish_at",
        "version",
        "count",
        sqlite_where=text("state = 'queued'"),
        postgresql_where=text("state = 'queued'"),
    ),
    Index(
        "chunks_queue_deadline",
        "queue_deadline_at",
        sqlite_where=text("state = 'queued' AND queue_deadline_at IS NOT NULL"),
        postgresql_where=text("state = 'queued' AND queue_deadline_at IS NOT NULL"),
    ),
    # Small: what workers hold. Read by job for counts.running, as a whole by the rescuer.
    Index(
        "chunks_running",
        "job",
        "worker",
        "count",
        sqlite_where=text("state = 'running'"),
        postgresql_where=text("state = 'running'"),
    ),
    sqlite_with_rowid=False,
)

payloads = Table(  # insert-only
    "payloads",
    metadata,
    Column("job", String, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary),  # a payload frame, or the blob that holds it:
    Column("blob_key", String),
    Column("blob_bytes", BigInteger),
    Column("blob_sha256", String),
    Column("ids", JSON(none_as_null=True)),  # item ids; only with a blob, a frame has its own
    CheckConstraint("(data IS NULL) = (blob_key IS NOT NULL)", name="one_place"),
    sqlite_with_rowid=False,
)

results = Table(  # insert-only
    "results",
    metadata,
    Column("job", String, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),  # result frames, one after another
    sqlite_with_rowid=False,
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("job", String, ForeignKey("jobs.id"), nullable=False),
    Column("item", BigInteger, nullable=False),
    Column("number", Integer, nullable=False),
    Column("worker", String, nullable=False),
    Column("version", String, nullable=False),
    Column("code", String, nullable=False),
    Column("message", Text, nullable=False),
    Column("permanent", Boolean, nullable=False),
    Column("stage", String, nullable=False),
    Column("traceback", Text),
    Column("at", UtcTime, nullable=False),
    Index("attempts_item", "job", "item"),
)

events = Table(
    "events",
    metadata,
    Column("job", String, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),  # numbered per job, from 1
    Column("type", String, nullable=False),  # job.succeeded …
    Column("terminal", Boolean, nullable=False),
    Column("at", UtcTime, nullable=False),
    Index(
        "events_one_terminal",
        "job",
        unique=True,
        sqlite_where=text("terminal"),
        postgresql_where=text("terminal"),
    ),
    sqlite_with_rowid=False,
)

workers = Table(
    "workers",
    metadata,
    Column("incarnation", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),
    sqlite_with_rowid=False,
)

bad_records = Table(  # what the stream held and nobody could decode
    "bad_records",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("topic", String, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("bytes", LargeBinary, nullable=False),
    Column("at", UtcTime, nullable=False),
)
