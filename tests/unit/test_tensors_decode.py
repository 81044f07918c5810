"""JSON items of a tensor model -> canonical rows: what is taken, exactly, and what is refused, with where."""

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import Finding
from jobs.models.spec import Axis, Tensor
from jobs.tensors.decode import MOST_FINDINGS, DecodedItems, ItemsDecoder


def decoder(datatype: str, *shape: int | str, axes: dict[str, Axis] | None = None) -> ItemsDecoder:
    return ItemsDecoder([Tensor("x", datatype, shape)], axes or {})


def decode(given: ItemsDecoder, *items: Any) -> DecodedItems | list[Finding]:
    return given.decode([item if isinstance(item, bytes) else json.dumps(item).encode() for item in items])


def packed(given: ItemsDecoder, *items: Any) -> bytes:
    decoded = decode(given, *items)
    assert isinstance(decoded, DecodedItems), decoded
    return b"".join(bytes(part) for part in decoded.parts(0, len(items)))


def found(given: ItemsDecoder, *items: Any) -> list[tuple[str, str, int | None]]:
    findings = decode(given, *items)
    assert isinstance(findings, list), "it was taken"
    return [(finding.pointer, finding.code, finding.index) for finding in findings]


class TestTaken:
    def test_many_rows_are_one_part(self) -> None:
        decoded = decode(decoder("FP32", 2), {"x": [1, 2.5]}, {"x": [3, 4]})
        assert isinstance(decoded, DecodedItems)
        assert (decoded.kind, decoded.columns[0].shape) == ("rows", (2,))
        assert [bytes(part) for part in decoded.parts(0, 2)] == [struct.pack("<4f", 1, 2.5, 3, 4)]
        assert [bytes(part) for part in decoded.parts(1, 2)] == [struct.pack("<2f", 3, 4)]
        assert list(decoded.sizes()) == [8, 8]

    @pytest.mark.parametrize("value", [[[1, 2, 3], [4, 5, 6]], [1, 2, 3, 4, 5, 6]])
    def test_nested_or_flat(self, value: Any) -> None:
        assert packed(decoder("INT32", 2, 3), {"x": value}) == struct.pack("<6i", 1, 2, 3, 4, 5, 6)

    def test_a_scalar(self) -> None:
        assert packed(decoder("FP64"), {"x": 1.5}) == struct.pack("<d", 1.5)

    @pytest.mark.parametrize(
        ("datatype", "value", "expected"),
        [
            ("INT64", 9007199254740993, struct.pack("<q", 9007199254740993)),
            ("INT64", -9223372036854775808, struct.pack("<q", -9223372036854775808)),
            ("UINT64", 18446744073709551615, struct.pack("<Q", 18446744073709551615)),
            ("BOOL", True, b"\x01"),
            ("FP16", 1.5, np.float16(1.5).tobytes()),
            ("BF16", 1, ml_dtypes.bfloat16(1).tobytes()),
            ("FP32", "NaN", np.float32("nan").tobytes()),
            ("FP64", "-Infinity", struct.pack("<d", float("-inf"))),
            ("BYTES", "", b"\0\0\0\0"),
            ("BYTES", "\x00a", b"\2\0\0\0\0a"),
            ("BYTES", "😀", b"\4\0\0\0\xf0\x9f\x98\x80"),
            ("BYTES", {"b64": "/w=="}, b"\1\0\0\0\xff"),
        ],
    )
    def test_values_are_exact(self, datatype: str, value: Any, expected: bytes) -> None:
        assert packed(decoder(datatype, 1), {"x": [value]}) == expected

    def test_lengths_that_differ_are_ragged(self) -> None:
        decoded = decode(decoder("INT64", "n", axes={"n": Axis(1, 9)}), {"x": [1, 2]}, {"x": [3]})
        assert isinstance(decoded, DecodedItems)
        assert decoded.kind == "ragged"
        assert decoded.shapes(0, 2) == (((2,),), ((1,),))
        assert [bytes(part) for part in decoded.parts(1, 2)] == [struct.pack("<q", 3)]
        assert list(decoded.sizes()) == [16, 8]

    def test_a_zero_size_dimension(self) -> None:
        assert packed(decoder("FP32", "n", axes={"n": Axis(0, 4)}), {"x": []}) == b""

    def test_a_mask_that_is_left_out_is_made(self) -> None:
        inputs = [Tensor("mask", "INT64", ("n",), mask_for="x"), Tensor("x", "FP32", ("n",))]
        decoded = decode(ItemsDecoder(inputs, {"n": Axis(1, 9)}), {"x": [1, 2, 3]})
        assert isinstance(decoded, DecodedItems)
        assert [bytes(part) for part in decoded.parts(0, 1)] == [
            struct.pack("<3q", 1, 1, 1),
            struct.pack("<3f", 1, 2, 3),
        ]

    @given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3), min_size=1, max_size=20))
    def test_integers_round_trip(self, rows: list[list[int]]) -> None:
        whole = packed(decoder("INT64", 3), *({"x": row} for row in rows))
        assert np.frombuffer(whole, "<i8").reshape(-1, 3).tolist() == rows

    @given(st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), min_size=1, max_size=20))
    def test_floats_round_trip(self, rows: list[list[float]]) -> None:
        named = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        items = [{"x": [named.get(str(value), value) for value in row]} for row in rows]
        whole = packed(decoder("FP32", 2), *items)
        assert np.array_equal(np.frombuffer(whole, "<f4").reshape(-1, 2), np.array(rows, "f4"), equal_nan=True)

    def test_no_items_at_all(self) -> None:
        decoded = decoder("FP32", 2).decode([])
        assert isinstance(decoded, DecodedItems)
        assert list(decoded.sizes()) == []
        assert [bytes(part) for part in decoded.parts(0, 0)] == [b""]


class TestRefused:
    @pytest.mark.parametrize(
        ("datatype", "value", "code"),
        [
            ("INT64", 1.5, "type"),
            ("INT64", 2**63, "range"),
            ("INT64", True, "type"),
            ("INT64", "1", "type"),
            ("UINT64", -1, "range"),
            ("INT8", 128, "range"),
            ("FP16", 70000, "range"),
            ("FP32", 1e39, "range"),
            ("FP32", True, "type"),
            ("FP32", "nan", "type"),
            ("FP32", None, "type"),
            ("BOOL", 1, "type"),
            ("BYTES", 1, "type"),
            ("BYTES", {"b64": "!"}, "type"),
        ],
    )
    def test_a_value_names_its_place(self, datatype: str, value: Any, code: str) -> None:
        good = {"BOOL": True, "BYTES": "a"}.get(datatype, 1)
        assert found(decoder(datatype, 2), {"x": [good, good]}, {"x": [good, value]}) == [("/x/1", code, 1)]

    def test_one_list_of_a_large_integer_and_a_fraction(self) -> None:
        assert found(decoder("INT64", 2), {"x": [9007199254740993, 1.5]}) == [("/x/1", "type", 0)]

    @pytest.mark.parametrize(
        "item",
        [
            {"x": [1, 2]}, {"x": [[1, 2, 3]]}, {"x": []}, {"x": [[1], [2, 3]]}, {"x": 1}, {"x": [1, [2], 3]},
        ],
    )  # fmt: skip
    def test_a_shape_that_is_not_the_models(self, item: Any) -> None:
        assert found(decoder("FP32", 3), item)[0][:2] == ("/x", "shape")

    def test_the_detail_names_both_shapes(self) -> None:
        findings = decode(decoder("FP32", 64), {"x": [0.0] * 63})
        assert isinstance(findings, list)
        assert findings[0].detail == "expected [64], got [63]"

    def test_axes(self) -> None:
        inputs = [Tensor("a", "INT64", ("n",)), Tensor("b", "INT64", ("n",))]
        given = ItemsDecoder(inputs, {"n": Axis(1, 3)})
        assert found(given, {"a": [1, 2], "b": [1]}) == [("/b", "shape", 0)]
        assert found(given, {"a": [1, 2, 3, 4], "b": [1]})[0] == ("/a", "shape", 0)

    def test_names(self) -> None:
        assert found(decoder("FP32", 1), {"y": [1]}) == [("/y", "unknown", 0), ("/x", "missing", 0)]

    @pytest.mark.parametrize(
        "item", [b"[1]", b"1", b"nope", b"", b'{"x":[NaN]}', b'{"x":["\xff"]}', b'{"x":[1e400]}', b"[" * 1_000_000]
    )
    def test_what_is_no_object(self, item: bytes) -> None:
        assert found(decoder("FP32", 1), {"x": [1]}, item)[0][2] == 1

    @pytest.mark.parametrize(
        ("datatype", "item", "pointer"),
        [
            ("FP32", b'{"x":[1],"x":[2]}', "/x"),
            ("FP32", b'{"x":["NaN"],"x":[2]}', "/x"),
            ("FP32", b'{"x":[1],"\\u0078":[2]}', "/x"),
            ("BYTES", b'{"x":["x"],"x":["x"]}', "/x"),
            ("BYTES", b'{"x":[{"b64":"AA==","b64":"AQ=="}]}', ""),
        ],
    )
    def test_a_key_that_stands_twice(self, datatype: str, item: bytes, pointer: str) -> None:
        assert found(decoder(datatype, 1), item) == [(pointer, "duplicate_key", 0)]

    def test_an_element_may_be_named_like_the_input(self) -> None:
        assert packed(decoder("BYTES", 2), {"x": ["x", '"x"']}) == b'\1\0\0\0x\3\0\0\0"x"'

    @pytest.mark.parametrize("halves", [(b'{"x":[1]},{"x":[2', b"3]}"), (b'{"x":[1', b'2]},{"x":[3]}')])
    def test_items_do_not_run_into_each_other(self, halves: tuple[bytes, bytes]) -> None:
        assert {index for _, _, index in found(decoder("FP32", "n"), *halves)} == {0, 1}

    def test_every_wrong_element_is_counted(self) -> None:
        findings = found(decoder("FP32", 64), {"x": [None] * 64}, {"x": [1.5] * 63 + ["a"]})
        assert findings[:5] == [(f"/x/{at}", "type", 0) for at in range(5)]
        assert findings[5:] == [("/x", "type", 0), ("/x/63", "type", 1)]
        of_fp16 = found(decoder("FP16", 2, 2), {"x": [[70000, 1], [2, -70000]]})
        assert of_fp16 == [("/x/0/0", "range", 0), ("/x/1/1", "range", 0)]

    def test_a_pointer_is_escaped(self) -> None:
        assert found(ItemsDecoder([Tensor("a/b~c", "FP32", (2,))], {}), {"a/b~c": [1]})[0][0] == "/a~1b~0c"

    def test_every_finding_up_to_the_limit(self) -> None:
        assert len(found(decoder("FP32", 1), *({"x": [None]} for _ in range(MOST_FINDINGS + 20)))) == MOST_FINDINGS

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=20))
    def test_never_an_exception(self, value: Any) -> None:
        for datatype in ("FP32", "FP16", "INT8", "BOOL", "BYTES"):
            for shape in ((2,), (2, 2), ("n",)):
                decode(decoder(datatype, *shape), json.dumps({"x": value}).encode())
