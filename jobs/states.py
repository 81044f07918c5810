"""States, outcomes and the tables of allowed movements. ARCHITECTURE.md's state diagrams are derived from these."""

from enum import IntEnum, StrEnum


class Priority(StrEnum):
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PARTIALLY_FAILED = "partially_failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


FINAL = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.PARTIALLY_FAILED, JobState.CANCELLED, JobState.EXPIRED}
)


class ChunkState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"


class Outcome(IntEnum):
    """What became of one item; one byte each in ``chunks.outcomes``. MOVED = went on to a child chunk."""

    PENDING = 0
    SUCCEEDED = 1
    FAILED = 2
    CANCELLED = 3
    EXPIRED = 4
    MOVED = 5


class ErrorCode(StrEnum):
    """Item error codes: a closed list."""

    INVALID_INPUT = "invalid_input"
    HANDLER_ERROR = "handler_error"
    ENGINE_ERROR = "engine_error"
    OUT_OF_MEMORY = "out_of_memory"
    RUN_TIMEOUT = "run_timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    PROCESS_DIED = "process_died"
    OUTPUT_INVALID = "output_invalid"
    TOO_LARGE = "too_large"
    SOURCE_CHANGED = "source_changed"
    SOURCE_UNREADABLE = "source_unreadable"
    UPSTREAM_ERROR = "upstream_error"
    SEQUENCE_BROKEN = "sequence_broken"


JOB_TRANSITIONS: dict[str, tuple[frozenset[JobState], frozenset[JobState]]] = {
    # name: (from, to). A final job never reopens: no final state is in any `from`.
    "claim": (frozenset({JobState.QUEUED}), frozenset({JobState.RUNNING})),
    "finish": (frozenset({JobState.QUEUED, JobState.RUNNING}), FINAL),
    "stop": (frozenset({JobState.QUEUED, JobState.RUNNING}), FINAL),
}

CHUNK_TRANSITIONS: dict[str, tuple[ChunkState, ChunkState]] = {
    # name: (from, to); each also requires the fence it was told, and raises the fence unless it is `finish`.
    "claim": (ChunkState.QUEUED, ChunkState.RUNNING),
    "hand_back": (ChunkState.RUNNING, ChunkState.QUEUED),
    "rescue": (ChunkState.RUNNING, ChunkState.QUEUED),
    "finish": (ChunkState.RUNNING, ChunkState.DONE),
    "end_queued": (ChunkState.QUEUED, ChunkState.DONE),
    "end_running": (ChunkState.RUNNING, ChunkState.DONE),
}


def final_state(
    *, succeeded: int, failed: int, cancelled: int, expired: int, stop_as: JobState | None, job_error: bool
) -> JobState:
    """The state of a job whose items are all decided (the same rule as the SQL of the stores; a test compares them)."""
    if job_error:
        return JobState.FAILED
    if stop_as is JobState.CANCELLED and cancelled:
        return JobState.CANCELLED
    if stop_as is JobState.EXPIRED and expired:
        return JobState.EXPIRED
    if not failed and not expired:
        return JobState.SUCCEEDED
    if expired and not succeeded and not failed:
        return JobState.EXPIRED
    if not succeeded:
        return JobState.FAILED
    return JobState.PARTIALLY_FAILED
