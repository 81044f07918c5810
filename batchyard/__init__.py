"""Batchyard's client: post jobs, wait for them, read their results.

    from batchyard import Client

    with Client() as client:
        job = client.submit("mlp", input={"x": [0.0] * 64}).wait()
        print(job.output)

Names are resolved on first use, so that ``batchyard.handler`` in an engine process costs no HTTP client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchyard.async_client import AsyncClient, AsyncJob
    from batchyard.client import Client, Job
    from batchyard.errors import (
        ApiError,
        BatchyardError,
        ConfigurationError,
        Conflict,
        ConnectionFailed,
        Finding,
        Forbidden,
        Gone,
        IdempotencyMismatch,
        InvalidInput,
        JobNotSucceeded,
        NotFound,
        QuotaExceeded,
        RateLimited,
        RequestTimedOut,
        ServerError,
        TooLarge,
        TooManyRequests,
        Unauthenticated,
        Unavailable,
        UnsupportedMediaType,
        WaitTimeout,
    )
    from batchyard.records import Counts, Event, Item, ItemError, Model, ModelVersion, Result, Usage

__version__ = "0.1.0"

_HOMES = {
    "batchyard.async_client": ("AsyncClient", "AsyncJob"),
    "batchyard.client": ("Client", "Job"),
    "batchyard.errors": (
        "ApiError",
        "BatchyardError",
        "ConfigurationError",
        "Conflict",
        "ConnectionFailed",
        "Finding",
        "Forbidden",
        "Gone",
        "IdempotencyMismatch",
        "InvalidInput",
        "JobNotSucceeded",
        "NotFound",
        "QuotaExceeded",
        "RateLimited",
        "RequestTimedOut",
        "ServerError",
        "TooLarge",
        "TooManyRequests",
        "Unauthenticated",
        "Unavailable",
        "UnsupportedMediaType",
        "WaitTimeout",
    ),
    "batchyard.records": ("Counts", "Event", "Item", "ItemError", "Model", "ModelVersion", "Result", "Usage"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - the two clients first
    "AsyncClient",
    "AsyncJob",
    "Client",
    "Job",
    "ApiError",
    "BatchyardError",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "Counts",
    "Event",
    "Finding",
    "Forbidden",
    "Gone",
    "IdempotencyMismatch",
    "InvalidInput",
    "Item",
    "ItemError",
    "JobNotSucceeded",
    "Model",
    "ModelVersion",
    "NotFound",
    "QuotaExceeded",
    "RateLimited",
    "RequestTimedOut",
    "Result",
    "ServerError",
    "TooLarge",
    "TooManyRequests",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedMediaType",
    "Usage",
    "WaitTimeout",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'batchyard' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
