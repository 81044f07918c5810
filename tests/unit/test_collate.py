"""Padding, masks and cutting back: what goes into a batch comes out as if it had been alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.models.spec import Axis, Tensor
from workers.child.arrays import Misfit, as_datatype, fitting
from workers.child.collate import Block, block_of, collate, cut_back
from workers.child.failures import WrongBatch

X = Tensor("x", "FP32", ("length",), pad=1000)
MASK = Tensor("mask", "INT64", ("length",), pad=0, mask_for="x")
AXES = {"length": Axis(1, 64)}
OUTPUTS = {"y": Tensor("y", "FP32", ("length",)), "total": Tensor("total", "FP32", ())}


def block(*rows: list[float]) -> Block:
    return block_of({"x": np.array(rows, np.float32)}, (X, MASK), AXES, len(rows))


def test_pads_with_the_declared_value_and_makes_the_mask() -> None:
    batch = collate([block([1, 2]), block([3, 4, 5]), block([6])], (X, MASK))
    assert batch.count == 3
    assert batch.padded == {"length": 3}
    assert batch.feeds["x"].tolist() == [[1, 2, 1000], [3, 4, 5], [6, 1000, 1000]]
    assert batch.feeds["mask"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert batch.feeds["mask"].dtype == np.int64


def test_a_mask_that_is_given_is_kept() -> None:
    given_mask = np.array([[0, 1]])
    made = block_of({"x": np.ones((1, 2), np.float32), "mask": given_mask}, (X, MASK), AXES, 1)
    assert collate([made, block([1, 2, 3])], (X, MASK)).feeds["mask"].tolist() == [[0, 1, 0], [1, 1, 1]]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_cut_back_undoes_the_padding(lengths: list[int]) -> None:
    blocks = [block([float(at * 100 + step) for step in range(length)]) for at, length in enumerate(lengths)]
    batch = collate(blocks, (X, MASK))
    outputs = {"y": batch.feeds["x"] * 2, "total": (batch.feeds["x"] * batch.feeds["mask"]).sum(1)}
    for at, (own, length) in enumerate(zip(blocks, lengths, strict=True)):
        back = cut_back(outputs, OUTPUTS, at, own, batch.padded)
        assert back["y"].shape == (1, length)
        assert back["y"].tolist() == (own.arrays["x"] * 2).tolist()
        assert back["total"].tolist() == [own.arrays["x"].sum()]


def test_an_output_that_lost_its_axis_is_not_cut_at_random() -> None:
    blocks = [block([1, 2]), block([3])]
    batch = collate(blocks, (X, MASK))
    with pytest.raises(WrongBatch, match="output y should be 2 long in length"):
        cut_back({"y": np.zeros((2, 7), np.float32)}, OUTPUTS, 1, blocks[1], batch.padded)


def test_blocks_of_equal_shape_are_not_padded_and_one_is_not_copied() -> None:
    one = block([1, 2], [3, 4])
    assert collate([one], (X, MASK)).feeds["x"] is one.arrays["x"]
    assert collate([one, block([5, 6])], (X, MASK)).feeds["x"].tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("datatype", "pad", "expected"),
    [
        ("BYTES", "pad", b"pad"),
        ("BYTES", None, b""),
        ("BOOL", True, True),
        ("FP16", "-Infinity", -np.inf),
        ("INT8", 3, 3),
    ],
)
def test_pad_values_of_each_kind(datatype: str, pad: str | bool | int | None, expected: object) -> None:
    tensor = Tensor("x", datatype, ("n",), pad=pad)
    rows = [as_datatype(np.ones((1, n), object if datatype == "BYTES" else bool), "x", datatype)
            if datatype in ("BYTES", "BOOL") else as_datatype(np.ones((1, n)).astype(np.int8), "x", datatype)
            for n in (1, 2)]  # fmt: skip
    blocks = [block_of({"x": row}, (tensor,), {}, 1) for row in rows]
    assert collate(blocks, (tensor,)).feeds["x"][0, 1] == expected


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.ones((1, 65), np.float32)}, "axis length is 65 long; this model takes 1 to 64"),
        ({"x": np.ones((1, 0), np.float32)}, "axis length is 0 long"),
        ({"x": np.ones((1, 2), np.float32), "mask": np.ones((1, 3), np.int64)}, "mask: axis length is 3 long here"),
        ({"mask": np.ones((1, 3), np.int64)}, "input x is missing"),
    ],
)  # fmt: skip
def test_lengths_must_agree_and_fit(arrays: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        block_of(arrays, (X, MASK), AXES, 1)


@pytest.mark.parametrize(
    ("value", "datatype", "says"),
    [
        ([2**40], "INT32", "out of the range of INT32"),
        ([-1], "UINT8", "out of the range of UINT8"),
        ([70000.0], "FP16", "out of the range of FP16"),
        ([1e39], "FP32", "out of the range of FP32"),
        ([1.0], "INT64", "must be INT64, not FP64"),
        (["a"], "FP32", "must be FP32, not BYTES"),
        ([True], "INT64", "must be INT64, not BOOL"),
        ([1], "BOOL", "must be BOOL, not INT64"),
        ([[1], [1, 2]], "FP32", "is no array"),
        ([None], "FP32", "must be FP32"),
    ],
)
def test_nothing_wraps_or_overflows_quietly(value: object, datatype: str, says: str) -> None:
    with pytest.raises(Misfit, match=says):
        as_datatype(value, "x", datatype)


def test_what_fits_is_converted_exactly() -> None:
    assert as_datatype([1, 2], "x", "FP32").dtype == np.float32
    assert as_datatype([2**63], "x", "UINT64").tolist() == [2**63]
    assert as_datatype(["ä"], "x", "BYTES").tolist() == ["ä"]
    assert np.isnan(as_datatype([np.nan], "x", "FP16")).all()
    assert as_datatype([1.5], "x", "BF16").dtype.name == "bfloat16"
    assert fitting([[1.0, 2.0]], X, rows=1).shape == (1, 2)
    with pytest.raises(Misfit, match=r"x must have the shape \[2, length\], not \[2\]"):
        fitting([1.0, 2.0], X, rows=2)
