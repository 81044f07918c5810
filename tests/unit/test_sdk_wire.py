"""The bytes both ways: lines, events and errors as the API sends them."""

import json
from collections.abc import Mapping
from typing import Any

from batchyard._wire import Lines, Response, ServerSentEvents
from batchyard.errors import InvalidInput


def test_lines_are_cut_at_line_feeds_only() -> None:
    lines = Lines()
    text = '"a\u2028b\u0085c\x0bd\r"\n'.encode()
    assert [*lines.feed(text[:3]), *lines.feed(text[3:])] == [text[:-1]]
    assert lines.rest() == b""


def test_events_may_spread_their_data_over_lines() -> None:
    stream = ServerSentEvents()
    told = [stream.feed(text) for text in (b"event: state\r", b"data: {", b"data:}", b"\r", b"")]
    assert told == [None, None, None, ("state", "{\n}"), None]


def test_an_answer_that_is_no_problem_document_is_still_an_error() -> None:
    failure = Response(502, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"<html>").failure()
    assert failure is not None
    assert failure.retryable
    assert failure.retry_after is None
    assert str(failure) == "HTTP 502 (HTTP 502)"


def test_findings_are_shown_and_kept() -> None:
    errors: list[Mapping[str, Any]] = [
        {"pointer": f"/items/{n}/input/x", "index": n, "code": "shape", "detail": "expected [64], got [63]"}
        for n in range(12)
    ]
    title = {"title": "Invalid input", "detail": "12 of 500 items are invalid."}
    content = {"status": 400, "code": "invalid_input", **title, "request_id": "req_9", "errors": errors}
    failure = Response(400, {}, json.dumps(content).encode()).failure()
    assert isinstance(failure, InvalidInput)
    assert len(failure.findings) == 12
    assert failure.findings[3].index == 3
    text = str(failure).splitlines()
    assert text[0] == "Invalid input: 12 of 500 items are invalid."
    assert text[1] == "  /items/0/input/x: expected [64], got [63]"
    assert text[-2:] == ["  … and 2 more (all in .findings)", "  request req_9"]
