"""What the flows say to a driver, and the bytes both ways. No I/O here.

A flow is a generator: it yields effects, is sent their answers, has failures thrown into it, and returns its value.
The two drivers (client.py, async_client.py) know how to perform effects and nothing else.
"""

import json
import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchyard.errors import ApiError, BatchyardError, ConnectionFailed, api_error


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes | None = None
    patience: float = 0.0  # seconds that the API may take by agreement (long poll), on top of the client's timeout


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes  # empty for an opened stream with a good status

    def json(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError as error:
            raise ConnectionFailed(
                f"the answer (HTTP {self.status}) is no JSON: is this address a Batchyard API?"
            ) from error

    def failure(self) -> ApiError | None:
        """The typed error of a status above 399."""
        if self.status < 400:
            return None
        try:
            body = json.loads(self.content)
        except ValueError:
            body = {}
        retry_after = _seconds(self.headers.get("retry-after"))
        return api_error(self.status, body if isinstance(body, dict) else {}, retry_after)


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text) if text is not None else None
    except ValueError:  # an HTTP date: the caller's own backoff will do
        return None
    return seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0 else None


@dataclass(frozen=True, slots=True)
class Send:
    """Answered with the whole Response."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Answered with the Response as soon as its headers are here (with the content where the status is bad)."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Answered with the next bytes of what was opened, b"" at its end."""


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """A value for whoever iterates over the flow."""

    value: Any


Effect = Send | Open | Read | Sleep | Emit


@dataclass(frozen=True, slots=True)
class Returned:
    """The flow ended with this value."""

    value: Any


def advance(flow: Generator[Effect, Any, Any], answer: Any = None) -> Effect | Returned:
    """Gives the flow its answer (throws it in, if it is a failure) and takes what it wants next."""
    try:
        return flow.throw(answer) if isinstance(answer, BatchyardError) else flow.send(answer)
    except StopIteration as stop:
        return Returned(stop.value)


def encode(body: Any) -> bytes:
    """Strict JSON. Non-finite floats become the strings that the API takes for them; numpy values become numbers."""
    try:
        return _dump(body)
    except ValueError:
        return _dump(_finite(body))


def _dump(body: Any) -> bytes:
    try:
        text = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)
        return text.encode()
    except UnicodeEncodeError as error:
        raise BatchyardError(f"a text in the request is no valid Unicode: {error}") from error


def _plain(value: Any) -> Any:
    """numpy arrays and scalars, without knowing numpy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON; give numbers, strings, lists, dicts or arrays")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if hasattr(value, "tolist"):
        return _finite(value.tolist())
    return value


@dataclass
class Lines:
    """Cuts a byte stream at line feeds only: JSON texts may hold every other line separator there is."""

    _rest: list[bytes] = field(default_factory=list)

    def feed(self, data: bytes) -> Iterator[bytes]:
        head, newline, tail = data.partition(b"\n")
        if not newline:
            self._rest.append(data)
            return
        yield b"".join((*self._rest, head))
        *whole, last = tail.split(b"\n")
        self._rest = [last]
        yield from whole

    def rest(self) -> bytes:
        rest, self._rest = b"".join(self._rest), []
        return rest


@dataclass
class ServerSentEvents:
    """The ``text/event-stream`` format: fields line by line, an event at each empty line."""

    last_id: str | None = None
    _name: str = "message"
    _data: list[str] = field(default_factory=list)

    def feed(self, line: bytes) -> tuple[str, str] | None:
        """(name, data) when this line ends an event."""
        text = line.rstrip(b"\r").decode("utf-8", "replace")
        if not text:
            name, data = self._name, self._data
            self._name, self._data = "message", []
            return (name, "\n".join(data)) if data else None
        if text.startswith(":"):
            return None
        key, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            self._name = value
        elif key == "data":
            self._data.append(value)
        elif key == "id":
            self.last_id = value
        return None
