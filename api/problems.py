"""Errors as the API shows them (RFC 9457), and the page behind every `type`.

The only place where HTTP statuses meet the errors of the core.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from jobs.errors import (
    BatchyardError,
    Conflict,
    Finding,
    Gone,
    IdempotencyMismatch,
    NotFound,
    Refused,
    Unavailable,
)

MEDIA_TYPE = "application/problem+json"
MAX_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class ErrorType:
    """One kind of refusal; ``what_to_do`` is what its page under /errors/ says."""

    code: str
    status: int
    title: str
    what_to_do: str
    retryable: bool = False

    @property
    def slug(self) -> str:
        return self.code.replace("_", "-")

    @property
    def path(self) -> str:
        return f"/errors/{self.slug}"


TYPES: dict[str, ErrorType] = {
    kind.code: kind
    for kind in (
        ErrorType(
            "invalid_input",
            400,
            "Invalid input",
            "Something in the request is not as it must be. `errors` lists every finding (at most 100) with a JSON "
            "pointer into the request, the item's index where there is one, and what was expected. Nothing was "
            "written. Mend the request and send it again; sending it unchanged gives the same answer.",
        ),
        ErrorType(
            "unauthenticated",
            401,
            "Not authenticated",
            "Send `Authorization: Bearer bysk_…` with a key that exists and has not expired. The local stack writes "
            "its key to the `env` file in its data folder.",
        ),
        ErrorType(
            "forbidden",
            403,
            "Not allowed",
            "The key is known, but lacks the scope that `detail` names. Use a key with that scope.",
        ),
        ErrorType(
            "not_found",
            404,
            "Not found",
            "There is nothing at this address, or it belongs to another tenant. Check the id or the path; "
            "/openapi.json lists every route.",
        ),
        ErrorType(
            "method_not_allowed",
            405,
            "Method not allowed",
            "The address exists, but not for this method. The `Allow` header names the methods that it has.",
        ),
        ErrorType(
            "request_timeout",
            408,
            "Request timed out",
            "The body did not arrive in time. Nothing was written. Send it again.",
            retryable=True,
        ),
        ErrorType(
            "conflict",
            409,
            "Conflict",
            "The job is in a state that does not allow this, for instance a cancel after it ended. It was not changed.",
        ),
        ErrorType(
            "gone",
            410,
            "Gone",
            "What was here is past its retention, or the signed link has expired. Read the results again for a "
            "fresh link.",
        ),
        ErrorType(
            "too_large",
            413,
            "Too large",
            "The request is above the limit that `detail` names. Nothing was written. Send the work as several jobs.",
        ),
        ErrorType(
            "unsupported_media_type",
            415,
            "Unsupported media type",
            "Send the body as `Content-Type: application/json`, UTF-8, without content encoding.",
        ),
        ErrorType(
            "idempotency_mismatch",
            422,
            "Idempotency key used with another body",
            "This Idempotency-Key already made a job from a different request. Use a new key for new work; send the "
            "same body to have the first job back.",
        ),
        ErrorType(
            "quota_exceeded",
            429,
            "Quota exceeded",
            "The tenant has as much queued work as it may. Wait until some of it is done.",
            retryable=True,
        ),
        ErrorType(
            "rate_limited",
            429,
            "Too many requests",
            "Wait as long as `Retry-After` says, then send the request again.",
            retryable=True,
        ),
        ErrorType(
            "internal_error",
            500,
            "Internal error",
            "Something failed on this side; it was logged under `request_id`. A submission with an Idempotency-Key "
            "can safely be sent again.",
            retryable=True,
        ),
        ErrorType(
            "unavailable",
            503,
            "Unavailable",
            "The service cannot take this now. Nothing was written. Wait as long as `Retry-After` says, then send "
            "the request again.",
            retryable=True,
        ),
    )
}


@dataclass(slots=True)
class Problem(Exception):
    """A refusal on its way out; raised anywhere in the API, rendered once."""

    code: str
    detail: str
    findings: Sequence[Finding] = ()
    retry_after: timedelta | None = None
    headers: tuple[tuple[str, str], ...] = field(default=())

    @property
    def type(self) -> ErrorType:
        return TYPES[self.code]


class _FindingBody(msgspec.Struct, omit_defaults=True):
    pointer: str
    code: str
    detail: str
    index: int | msgspec.UnsetType = msgspec.UNSET


class _Body(msgspec.Struct, omit_defaults=True):
    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str
    request_id: str
    retryable: bool
    errors: list[_FindingBody] | msgspec.UnsetType = msgspec.UNSET


_encoder = msgspec.json.Encoder()


def render(problem: Problem, instance: str, request_id: str) -> bytes:
    """The problem+json body."""
    kind = problem.type
    errors = [
        _FindingBody(f.pointer, f.code, f.detail, msgspec.UNSET if f.index is None else f.index)
        for f in problem.findings[:MAX_FINDINGS]
    ]
    return _encoder.encode(
        _Body(
            kind.path,
            kind.title,
            kind.status,
            kind.code,
            problem.detail,
            instance,
            request_id,
            kind.retryable,
            errors or msgspec.UNSET,
        )
    )


def headers_of(problem: Problem) -> list[tuple[str, str]]:
    headers = [("content-type", MEDIA_TYPE), *problem.headers]
    if problem.retry_after is not None:
        headers.append(("retry-after", str(max(1, math.ceil(problem.retry_after.total_seconds())))))
    elif problem.code == "unavailable":
        headers.append(("retry-after", "1"))
    elif problem.code == "unauthenticated":
        headers.append(("www-authenticate", 'Bearer realm="batchyard"'))
    return headers


def of_error(error: BatchyardError) -> Problem:
    """What the core's error is to a client."""
    match error:
        case NotFound():
            return Problem("not_found", str(error) or "There is no such thing here.")
        case Conflict():
            return Problem("conflict", str(error))
        case Gone():
            return Problem("gone", str(error))
        case IdempotencyMismatch():
            return Problem(
                "idempotency_mismatch",
                "This Idempotency-Key was used before with another body; nothing was written.",
            )
        case Unavailable():
            return Problem("unavailable", str(error), retry_after=error.retry_after)
        case Refused():
            return Problem("invalid_input", str(error))
        case _:
            # The message of a driver's error may name files, hosts or statements: it stays in the log.
            return Problem("internal_error", "The request could not be completed.")


def invalid(findings: Sequence[Finding], items: int | None = None) -> Problem:
    """All findings at once; `items` is the number of items of the request, where it was known."""
    bad = {finding.index for finding in findings if finding.index is not None}
    others = sum(1 for finding in findings if finding.index is None)
    parts = []
    if bad and items is not None:
        parts.append(f"{len(bad)} of {items} items {'is' if len(bad) == 1 else 'are'} invalid")
    if others or not parts:
        parts.append(f"{others} {'thing is' if others == 1 else 'things are'} wrong with the request")
    return Problem("invalid_input", f"{' and '.join(parts)}; nothing was written.", tuple(findings[:MAX_FINDINGS]))


def one(pointer: str, code: str, detail: str) -> Problem:
    """A request refused for a single reason."""
    return Problem("invalid_input", detail, (Finding(pointer, code, detail),))
