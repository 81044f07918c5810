"""Values -> strict JSON, and result frames -> lines."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import frames
from jobs.errors import Undecodable
from jobs.frames import Column, ResultBlob, ResultError, ResultHeader
from jobs.states import Outcome
from jobs.store import ResultChunk
from jobs.tensors.binary import from_bytes, to_bytes
from jobs.tensors.encode import NonFinite, strict_json, tensor_json
from jobs.tensors.results import Line, lines

LATER = datetime(2026, 12, 1, 12, tzinfo=UTC)


def strict(text: bytes) -> Any:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def sign(key: str) -> tuple[str, datetime]:
    return f"/v1/blobs/{key}", LATER


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([1.5, -2], "f4"), [1.5, -2]),
        (np.array([math.nan, math.inf, -math.inf, 1], "f8"), ["NaN", "Infinity", "-Infinity", 1]),
        (np.array([1.5, math.nan], "f2"), [1.5, "NaN"]),
        (np.array([1, 2], ml_dtypes.bfloat16), [1, 2]),
        (np.array([9007199254740993], "i8"), [9007199254740993]),
        (np.array([18446744073709551615], "u8"), [18446744073709551615]),
        (np.array([True, False]), [True, False]),
        (np.array([b"a", b"", "ü".encode(), b"\xff"], dtype=object), ["a", "", "ü", {"b64": "/w=="}]),
        (np.zeros((0, 3), "f4"), []),
        (np.array([[1, 2], [3, 4]], "i4"), [1, 2, 3, 4]),
    ],
)
def test_a_tensor(array: np.ndarray[Any, Any], expected: list[Any]) -> None:
    names = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16", "int64": "INT64",
             "uint64": "UINT64", "bool": "BOOL", "object": "BYTES", "int32": "INT32"}  # fmt: skip
    column = Column("y", names[array.dtype.name], array.shape)
    member = strict(b"{" + tensor_json(column, to_bytes(array)) + b"}")["y"]
    assert member == {"shape": list(array.shape), "datatype": column.datatype, "data": expected}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, math.nan]}, {"a": [1, "NaN"]}),
        (np.float32(1.5), 1.5),
        (np.float64(1.5), 1.5),
        ({"a": [np.float64(0.25), np.float64("nan")]}, {"a": [0.25, "NaN"]}),
        ({np.str_("a"): np.bool_(True)}, {"a": True}),
        (np.int64(9007199254740993), 9007199254740993),
        ({"a": np.array([[1.0, math.inf]])}, {"a": [[1.0, "Infinity"]]}),
        (2**70, 2**70),
        ((1, 2), [1, 2]),
        (b"abc", "abc"),
        ("\ud7ff", "\ud7ff"),
        (None, None),
    ],
)
def test_a_handlers_answer(value: Any, expected: Any) -> None:
    assert strict(strict_json(value)) == expected


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, {"a": {1, 2}}, [datetime.now], "\ud800", [math.nan, "\ud800"], [1 << 20_000]]
)
def test_what_is_no_json(value: Any) -> None:
    with pytest.raises(TypeError):
        strict_json(value)


def test_depth_is_bounded() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises((TypeError, RecursionError)):
        strict_json(deep)


def test_non_finite_can_be_refused() -> None:
    with pytest.raises(NonFinite):
        strict_json({"a": [1, math.nan]}, refuse_non_finite=True)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
        max_leaves=30,
    )
)
def test_any_json_value_is_strict(value: Any) -> None:
    strict(strict_json(value))


def test_bytes_round_trip() -> None:
    array = np.array([b"", b"\0a", b"\xff"], dtype=object)
    assert from_bytes(to_bytes(array), "BYTES", (3,)).tolist() == array.tolist()


class TestLines:
    def chunk(self, seq: int, items: Any, outcomes: list[Outcome], results: bytes | None, **more: Any) -> ResultChunk:
        reason, ids = more.get("reason"), more.get("ids")
        return ResultChunk(seq, items, bytes(outcomes), results, reason, ids, more.get("attempts", 0))

    def read(self, *chunks: ResultChunk, **options: Any) -> list[Line]:
        return list(lines("2", chunks, sign, **options))

    def test_rows_and_failures_of_one_chunk_in_item_order(self) -> None:
        good = frames.pack(
            ResultHeader("rows", ((0, 1), (2, 3)), columns=(Column("y", "FP32", (2,)),)),
            [np.array([[1, 2], [5, 6]], "<f4").tobytes()],
        )
        bad = frames.pack(
            ResultHeader("none", ((1, 2),), "failed", errors=(ResultError("handler_error", "no", False, "predict"),),
                         attempts=3), ()
        )  # fmt: skip
        outcomes = [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUCCEEDED]
        read = self.read(self.chunk(0, ((0, 3),), outcomes, good + bad))
        assert [strict(line.text) for line in read] == [
            {"index": 0, "id": "0", "state": "succeeded", "attempts": 1, "version": "2", "error": None,
             "output": {"y": {"shape": [2], "datatype": "FP32", "data": [1, 2]}}},
            {"index": 1, "id": "1", "state": "failed", "attempts": 3, "version": "2", "output": None,
             "error": {"code": "handler_error", "message": "no", "permanent": False, "stage": "predict"}},
            {"index": 2, "id": "2", "state": "succeeded", "attempts": 1, "version": "2", "error": None,
             "output": {"y": {"shape": [2], "datatype": "FP32", "data": [5, 6]}}},
        ]  # fmt: skip

    def test_an_item_that_moved_has_its_childs_line(self) -> None:
        parent = frames.pack(ResultHeader("json", ((0, 1),), ids=("a",)), [b'{"v":1}'])
        child = frames.pack(ResultHeader("json", ((1, 2),), ids=("b",), attempts=2), [b'{"v":2}'])
        first = self.chunk(0, ((0, 2),), [Outcome.SUCCEEDED, Outcome.MOVED], parent)
        assert [line.index for line in self.read(first)] == [0]
        read = self.read(first, self.chunk(1, ((1, 2),), [Outcome.SUCCEEDED], child))
        assert [(strict(line.text)["id"], strict(line.text)["attempts"], line.output) for line in read] == [
            ("a", 1, b'{"v":1}'),
            ("b", 2, b'{"v":2}'),
        ]

    def test_items_that_a_stop_ended(self) -> None:
        cancelled = self.chunk(0, ((0, 1),), [Outcome.CANCELLED], None, ids=("x",), attempts=1)
        expired = self.chunk(1, ((1, 2),), [Outcome.EXPIRED], None, ids=("y",), reason="queue_timeout")
        first, second = (strict(line.text) for line in self.read(cancelled, expired))
        assert (first["id"], first["state"], first["error"], first["attempts"]) == ("x", "cancelled", None, 1)
        assert (second["state"], second["error"]["code"], second["error"]["stage"]) == (
            "expired",
            "queue_timeout",
            "queue",
        )

    def test_an_item_whose_input_could_not_be_read(self) -> None:
        (line,) = self.read(self.chunk(0, ((0, 1),), [Outcome.FAILED], None))
        assert strict(line.text)["error"]["code"] == "source_unreadable"

    def test_a_result_that_is_not_there_is_not_passed_over(self) -> None:
        with pytest.raises(Undecodable, match="item 3"):
            self.read(self.chunk(0, ((3, 4),), [Outcome.SUCCEEDED], None), from_index=3)

    def test_up_to_the_first_that_is_not_decided(self) -> None:
        done = frames.pack(ResultHeader("json", ((0, 1),)), [b"1"])
        last = frames.pack(ResultHeader("json", ((2, 3),)), [b"3"])
        chunks = [
            self.chunk(0, ((0, 1),), [Outcome.SUCCEEDED], done),
            self.chunk(1, ((1, 2),), [Outcome.PENDING], None),
            self.chunk(2, ((2, 3),), [Outcome.SUCCEEDED], last),
        ]
        assert [line.index for line in self.read(*chunks)] == [0]
        assert [line.index for line in self.read(*chunks, from_index=2)] == [2]

    def test_limit_and_state(self) -> None:
        done = frames.pack(ResultHeader("json", ((0, 3),)), [b"1", b"2", b"3"])
        chunk = self.chunk(0, ((0, 4),), [Outcome.SUCCEEDED] * 3 + [Outcome.CANCELLED], done)
        assert [line.index for line in self.read(chunk, from_index=1, limit=2)] == [1, 2]
        assert [line.index for line in self.read(chunk, state="cancelled")] == [3]

    def test_large_outputs_are_links(self) -> None:
        blob = ResultBlob("", "results/j/0-1/0-0", 300_000, "ab" * 32)
        frame = frames.pack(ResultHeader("json", ((0, 1),), blobs={0: (blob,)}), [b""])
        output = strict(self.read(self.chunk(0, ((0, 1),), [Outcome.SUCCEEDED], frame))[0].text)["output"]
        assert output["link"]["url"] == "/v1/blobs/results/j/0-1/0-0"
        assert output["link"]["expires_at"] == "2026-12-01T12:00:00.000Z"
        assert output["link"]["sha256"] == "ab" * 32
