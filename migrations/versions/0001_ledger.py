"""The first tables: tenants and keys, jobs and their chunks, payloads, results, attempts, events, workers."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from jobs.stores.tables import UtcTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _only(condition: str) -> dict[str, Any]:
    """A partial index, on either dialect."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    op.create_table(
        "bad_records",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("bytes", sa.LargeBinary(), nullable=False),
        sa.Column("at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("bad_records_pkey")),
    )
    op.create_table(
        "events",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("terminal", sa.Boolean(), nullable=False),
        sa.Column("at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("events_pkey")),
        sqlite_with_rowid=False,
    )
    op.create_index("events_one_terminal", "events", ["job"], unique=True, **_only("terminal"))
    op.create_table(
        "payloads",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary()),
        sa.Column("blob_key", sa.String()),
        sa.Column("blob_bytes", sa.BigInteger()),
        sa.Column("blob_sha256", sa.String()),
        sa.Column("ids", sa.JSON(none_as_null=True)),
        sa.CheckConstraint("(data IS NULL) = (blob_key IS NOT NULL)", name=op.f("payloads_one_place")),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("payloads_pkey")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "results",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("results_pkey")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("tenants_pkey")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "workers",
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("until", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("incarnation", name=op.f("workers_pkey")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("expires_at", UtcTime()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("api_keys_tenant_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("api_keys_pkey")),
        sa.UniqueConstraint("digest", name=op.f("api_keys_digest_key")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), server_default="inline", nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("priority", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cancelled", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("expired", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sealed", sa.Boolean(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("(FALSE)"), nullable=False),
        sa.Column("single", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("started_at", UtcTime()),
        sa.Column("finished_at", UtcTime()),
        sa.Column("not_before", UtcTime()),
        sa.Column("deadline_at", UtcTime()),
        sa.Column("results_kept_us", sa.BigInteger()),
        sa.Column("results_expire_at", UtcTime()),
        sa.Column("run_timeout_us", sa.BigInteger(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("stop_asked_at", UtcTime()),
        sa.Column("stop_as", sa.String()),
        sa.Column("stop_reason", sa.String()),
        sa.Column("error", sa.JSON(none_as_null=True)),
        sa.Column("parent_job", sa.String()),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("idempotency_key", sa.String()),
        sa.Column("fingerprint", sa.LargeBinary()),
        sa.Column("traceparent", sa.String()),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.Column("engine_us", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "(finished_at IS NULL) = (state IN ('queued', 'running'))", name=op.f("jobs_final_has_time")
        ),
        sa.CheckConstraint("kind IN ('inline', 'bulk')", name=op.f("jobs_kind_known")),
        sa.CheckConstraint("priority IN ('high', 'normal', 'low')", name=op.f("jobs_priority_known")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'partially_failed', 'cancelled', 'expired')",
            name=op.f("jobs_state_known"),
        ),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (sealed AND succeeded + failed + cancelled + expired = total)",
            name=op.f("jobs_final_is_decided"),
        ),
        sa.CheckConstraint("(stop_asked_at IS NULL) = (stop_as IS NULL)", name=op.f("jobs_stop_has_outcome")),
        sa.CheckConstraint("succeeded + failed + cancelled + expired <= total", name=op.f("jobs_counts_within_total")),
        sa.CheckConstraint(
            "succeeded >= 0 AND failed >= 0 AND cancelled >= 0 AND expired >= 0", name=op.f("jobs_counts_positive")
        ),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("jobs_tenant_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("jobs_pkey")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "jobs_deadline", "jobs", ["deadline_at"], **_only("finished_at IS NULL AND deadline_at IS NOT NULL")
    )
    op.create_index(
        "jobs_idempotency", "jobs", ["tenant", "idempotency_key"], unique=True, **_only("idempotency_key IS NOT NULL")
    )
    op.create_index("jobs_newest", "jobs", ["tenant", "created_at", "id"])
    op.create_index(
        "jobs_stopping", "jobs", ["stop_asked_at"], **_only("finished_at IS NULL AND stop_asked_at IS NOT NULL")
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("item", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("permanent", sa.Boolean(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("traceback", sa.Text()),
        sa.Column("at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("attempts_job_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("attempts_pkey")),
    )
    op.create_index("attempts_item", "attempts", ["job", "item"])
    op.create_table(
        "chunks",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("items", sa.String(), nullable=False),
        sa.Column("first_item", sa.BigInteger(), nullable=False),
        sa.Column("end_item", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer()),
        sa.Column("alone", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("worker", sa.String()),
        sa.Column("lapses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", UtcTime()),
        sa.Column("publish_at", UtcTime(), nullable=False),
        sa.Column("queue_deadline_at", UtcTime()),
        sa.Column("outcomes", sa.LargeBinary()),
        sa.Column("reason", sa.String()),
        sa.CheckConstraint(
            "(state = 'done') = (outcomes IS NOT NULL) AND (outcomes IS NULL OR length(outcomes) = count)",
            name=op.f("chunks_done_has_outcomes"),
        ),
        sa.CheckConstraint("state <> 'running' OR worker IS NOT NULL", name=op.f("chunks_running_has_worker")),
        sa.CheckConstraint("state IN ('queued', 'running', 'done')", name=op.f("chunks_state_known")),
        sa.CheckConstraint("count > 0", name=op.f("chunks_count_positive")),
        sa.CheckConstraint("fence >= 0", name=op.f("chunks_fence_positive")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("chunks_job_fkey")),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("chunks_pkey")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "chunks_due", "chunks", ["tenant", "model", "publish_at", "version", "count"], **_only("state = 'queued'")
    )
    op.create_index(
        "chunks_queue_deadline",
        "chunks",
        ["queue_deadline_at"],
        **_only("state = 'queued' AND queue_deadline_at IS NOT NULL"),
    )
    op.create_index("chunks_running", "chunks", ["job", "worker", "count"], **_only("state = 'running'"))


def downgrade() -> None:
    for table in (
        "chunks",
        "attempts",
        "jobs",
        "api_keys",
        "workers",
        "tenants",
        "results",
        "payloads",
        "events",
        "bad_records",
    ):
        op.drop_table(table)
