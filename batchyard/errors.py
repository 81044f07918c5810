"""What can go wrong, drawn as a tree. Every message says what was wrong and, where it is known, what to do.

BatchyardError
├── ConfigurationError        no address or key was found, or one that cannot be used
├── ConnectionFailed          the API was not reached, or the connection broke
│   └── RequestTimedOut       it was reached but did not answer in time
├── WaitTimeout               the job is not final yet; it goes on (``.job``)
├── JobNotSucceeded           from ``job.raise_for_state()`` (``.job``)
└── ApiError                  the API refused (``.status``, ``.code``, ``.findings``, ``.request_id``, ``.retryable``)
    ├── InvalidInput  Unauthenticated  Forbidden  NotFound  Conflict  Gone
    ├── TooLarge  UnsupportedMediaType  IdempotencyMismatch
    ├── TooManyRequests ── QuotaExceeded | RateLimited
    ├── Unavailable
    └── ServerError
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchyard.records import JobRecord

SHOWN_FINDINGS = 10


class BatchyardError(Exception):
    """Base of everything this package raises."""

    retryable: bool = False
    retry_after: float | None = None
    """Seconds to wait before another try, where the API said so."""


class ConfigurationError(BatchyardError):
    """No address or key was found, or one that cannot be used."""


class ConnectionFailed(BatchyardError):
    """The API was not reached, or the connection broke before the whole answer was here."""

    retryable = True


class RequestTimedOut(ConnectionFailed):
    """The API did not answer in time."""


class WaitTimeout(BatchyardError):
    """The time given to ``wait`` is up. The job goes on; wait again, or cancel it."""

    retryable = True

    def __init__(self, job: "JobRecord", timeout: float) -> None:
        super().__init__(
            f"job {job.id} is {job.state} after {timeout:g} s ({job.counts.done} of {job.counts.total} items done); "
            "it goes on: wait again, or cancel it"
        )
        self.job = job
        self.timeout = timeout


class JobNotSucceeded(BatchyardError):
    """A final job that did not (wholly) succeed."""

    def __init__(self, job: "JobRecord") -> None:
        counts = job.counts
        reason = f": {job.error.code}: {job.error.message}" if job.error else ""
        super().__init__(
            f"job {job.id} {job.state}{reason} ({counts.succeeded} succeeded, {counts.failed} failed, "
            f"{counts.cancelled} cancelled, {counts.expired} expired of {counts.total})"
        )
        self.job = job


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a request: where (JSON pointer), which item, a short code, and the words."""

    pointer: str
    code: str
    detail: str
    index: int | None = None

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> "Finding":
        return cls(
            str(entry.get("pointer", "")), str(entry.get("code", "")), str(entry.get("detail", "")), entry.get("index")
        )


class ApiError(BatchyardError):
    """An answer with an error status.

    ``status``, ``code``, ``type``, ``title``, ``detail``, ``findings``, ``request_id``, ``retryable`` and
    ``retry_after`` are those of the answer; ``body`` is all of it.
    """

    def __init__(self, status: int, body: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.body = body
        self.type = str(body.get("type", "about:blank"))
        self.title = str(body.get("title", f"HTTP {status}"))
        self.code = str(body.get("code", f"http_{status}"))
        self.detail = str(body.get("detail", ""))
        self.request_id: str | None = body.get("request_id")
        self.findings = tuple(Finding.parse(entry) for entry in body.get("errors") or () if isinstance(entry, Mapping))
        self.retryable = bool(body.get("retryable", status in (429, 502, 503, 504)))
        self.retry_after = retry_after
        super().__init__(self._message())

    def _message(self) -> str:
        lines = [f"{self.title}: {self.detail}" if self.detail else f"{self.title} (HTTP {self.status})"]
        lines += [f"  {found.pointer or '/'}: {found.detail or found.code}" for found in self.findings[:SHOWN_FINDINGS]]
        if len(self.findings) > SHOWN_FINDINGS:
            lines.append(f"  … and {len(self.findings) - SHOWN_FINDINGS} more (all in .findings)")
        if self.hint:
            lines.append(f"  {self.hint}")
        if self.request_id:
            lines.append(f"  request {self.request_id}")
        return "\n".join(lines)

    hint: str = ""


class InvalidInput(ApiError):
    """400: the request was refused as a whole and nothing was written; ``findings`` has every reason."""


class Unauthenticated(ApiError):
    """401: no key, or one that is unknown or expired."""

    hint = "Set BATCHYARD_API_KEY (the local stack writes it into DATA/env), or pass api_key."


class Forbidden(ApiError):
    """403: the key lacks a scope."""


class NotFound(ApiError):
    """404: there is no such job or model for this key's tenant."""


class Conflict(ApiError):
    """409: not possible in the state the job is in."""


class Gone(ApiError):
    """410: the results were removed at the end of their retention."""


class TooLarge(ApiError):
    """413: above a limit that the message names. Split the items over several jobs."""


class UnsupportedMediaType(ApiError):
    """415."""


class IdempotencyMismatch(ApiError):
    """422: the Idempotency-Key was used before with another body."""

    hint = "Use a new idempotency key for a new request."


class TooManyRequests(ApiError):
    """429, after the retries were used up."""


class QuotaExceeded(TooManyRequests):
    """429 quota_exceeded: too many items of the tenant are not final yet."""


class RateLimited(TooManyRequests):
    """429 rate_limited."""


class Unavailable(ApiError):
    """503: cannot take this now, after the retries were used up."""


class ServerError(ApiError):
    """Any other 5xx: a fault of the server; its log has the request id."""


_BY_CODE: dict[str, type[ApiError]] = {
    "invalid_input": InvalidInput,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "conflict": Conflict,
    "gone": Gone,
    "too_large": TooLarge,
    "unsupported_media_type": UnsupportedMediaType,
    "idempotency_mismatch": IdempotencyMismatch,
    "quota_exceeded": QuotaExceeded,
    "rate_limited": RateLimited,
    "unavailable": Unavailable,
}
_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    415: UnsupportedMediaType,
    422: IdempotencyMismatch,
    429: TooManyRequests,
    503: Unavailable,
}


def api_error(status: int, body: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    """The class of the problem's ``code``, else of its status."""
    kind = _BY_CODE.get(str(body.get("code"))) or _BY_STATUS.get(status)
    if kind is None:
        kind = ServerError if status >= 500 else ApiError
    return kind(status, body, retry_after)
