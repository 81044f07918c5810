"""The errors of the core, drawn as a tree. Each says whether a retry can help and after how long.

HTTP statuses appear only in ``api/``; drivers' errors are wrapped once, at the adapter.

BatchyardError
├── Refused            the caller's input or timing; nothing was written
│   ├── NotFound
│   ├── Conflict
│   ├── Gone
│   └── IdempotencyMismatch
├── Unavailable        a dependency or the process itself cannot take work now; retryable
│   ├── Undone         a transaction that the ledger gave up for the sake of another; it can be made again at once
│   └── OutcomeUnknown the ledger was lost while it committed: nobody knows whether that was written
├── StoreError         the ledger's driver failed in a way that a retry will not mend
├── Undecodable        bytes that are no record or frame of ours
└── ModelError         a model repository entry that cannot be used; names file and line
"""

from dataclasses import dataclass
from datetime import timedelta


class BatchyardError(Exception):
    retryable = False
    retry_after: timedelta | None = None


class Refused(BatchyardError):
    pass


class NotFound(Refused):
    pass


class Conflict(Refused):
    pass


class Gone(Refused):
    pass


class IdempotencyMismatch(Refused):
    """The key was used before with another body."""


class Unavailable(BatchyardError):
    retryable = True

    def __init__(self, message: str, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Undone(Unavailable):
    pass


class OutcomeUnknown(Unavailable):
    """What is tried again must be something that may be written twice: a finish under its fence, a submission with its
    idempotency key. What was claimed is to be handed back."""


class StoreError(BatchyardError):
    pass


class Undecodable(BatchyardError):
    pass


class ModelError(BatchyardError):
    """``where`` is ``file`` or ``file:line`` relative to the model repository."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where
        self.message = message


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a request: where (JSON pointer, item index), a short code, and what to do."""

    pointer: str
    code: str
    detail: str
    index: int | None = None
