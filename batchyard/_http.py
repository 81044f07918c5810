"""httpx for both drivers: how a client is built, a request is sent and a failure is told."""

from typing import Any
from urllib.parse import urlsplit

import httpx

from batchyard import __version__
from batchyard._wire import Request, Response
from batchyard.errors import BatchyardError, ConfigurationError, ConnectionFailed, RequestTimedOut
from batchyard.target import Target


def options(target: Target, timeout: float) -> dict[str, Any]:
    """Arguments of httpx.Client and httpx.AsyncClient."""
    return {
        "base_url": target.url,
        "headers": {
            "Authorization": f"Bearer {target.api_key}",
            "User-Agent": f"batchyard-python/{__version__}",
            "Accept": "application/json",
        },
        "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0)),
        # A proxy of the company is no way to a server on this machine.
        "trust_env": urlsplit(target.url).hostname not in ("127.0.0.1", "::1", "localhost"),
        "limits": httpx.Limits(max_connections=100, max_keepalive_connections=100),
    }


def arguments(request: Request, timeout: float) -> dict[str, Any]:
    """Arguments of ``build_request`` of both clients."""
    return {
        "method": request.method,
        "url": request.path,
        "params": request.params or None,
        "headers": request.headers,
        "content": request.content,
        "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0), read=timeout + request.patience),
    }


def head(response: httpx.Response, content: bytes) -> Response:
    return Response(response.status_code, {name.lower(): value for name, value in response.headers.items()}, content)


def told(error: Exception, target: Target) -> BatchyardError:
    """httpx's failures in this package's words."""
    failure = _in_our_words(error, f"{target.url} (address from {target.source})")
    failure.__cause__ = error
    return failure


def _in_our_words(error: Exception, at: str) -> BatchyardError:
    if isinstance(error, httpx.ConnectError):
        return ConnectionFailed(f"nothing answers at {at}: is it running? A local stack starts with `batchyard up`")
    if isinstance(error, httpx.TimeoutException):
        return RequestTimedOut(f"no answer in time from {at}")
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return ConfigurationError(f"{at} is no usable address: {error}")
    return ConnectionFailed(f"the connection to {at} broke: {error or type(error).__name__}")


FAILURES = (httpx.TransportError, httpx.InvalidURL, httpx.StreamError, httpx.DecodingError)
