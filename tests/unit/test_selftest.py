"""Whether batching is sound is found at load (A22), and a model that cannot batch is served one by one."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from jobs.errors import ModelError
from tests.unit.children import Child, json_payload, rows_payload
from tests.unit.repositories import double, graph, onnx_model, python_model
from workers.child.calling import read_answers
from workers.child.loading import Ready, load
from workers.child.selftest import same, seeded
from workers.wire import Run, Segment, Start

FLOAT = TensorProto.FLOAT
THREE = "sample: [1, 2, 3]\n"


def ready(root: Path, name: str = "m") -> Ready:
    return load(Start(str(root), name, "1", 1))


def answers(loaded: Ready, x: np.ndarray) -> list[np.ndarray]:
    """What a chunk of rows is answered with, however many calls that takes."""
    run = Run(1, (Segment(((0, len(x)),), 0),))
    done, parts = loaded.session.run(run, [memoryview(rows_payload({"x": x}))], lambda stage: None)
    assert done.error is None
    assert done.failures == ()
    return [answer["y"] for answer in read_answers(parts[0])]


def reduced(keepdims: int, batch: int | str = "batch") -> bytes:
    """The sum over the items of the batch."""
    shape: list[int | str | None] = [1, 4] if keepdims else [4]
    axes = numpy_helper.from_array(np.array([0], np.int64), "axes")
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=keepdims)
    return graph([node], {"x": (FLOAT, [batch, 4])}, {"y": (FLOAT, shape)}, [axes])


def centred() -> bytes:
    """Each item less the mean of the batch: as many rows as went in, every one of them wrong."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    return graph(nodes, {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 4])})


def running_sum() -> bytes:
    """[T, B, C], summed along T: what seems to be the batch is time."""
    axis = numpy_helper.from_array(np.array(0, np.int64), "axis")
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    return graph([node], {"x": (FLOAT, ["T", "B", 2])}, {"y": (FLOAT, ["T", "B", 2])}, [axis])


def last_step() -> bytes:
    """[T, B, C] -> [B, C]: the batch is second on the way in and first on the way out."""
    last = numpy_helper.from_array(np.array(-1, np.int64), "last")
    node = helper.make_node("Gather", ["x", "last"], ["y"], axis=0)
    return graph([node], {"x": (FLOAT, ["T", "B", 2])}, {"y": (FLOAT, ["B", 2])}, [last])


X = np.arange(12, dtype=np.float32).reshape(3, 4)
TBC = np.arange(12, dtype=np.float32).reshape(3, 2, 2)


@pytest.mark.parametrize(
    ("artifact", "x", "alone", "reason"),
    [
        (double(1, 4), X, X * 2, "the artifact takes one row at a time: its batch dimension is fixed at 1"),
        (reduced(1), X, X, "a batch of 2 fails: output y has 1 rows for a batch of 2"),
        (reduced(0), X, X, "y: no batch dimension in the artifact"),
        (centred(), X, X * 0, "an item in a batch of 2 is not answered as it is alone"),
        (running_sum(), TBC, TBC, "an item in a batch of 2 is not answered as it is alone"),
        (last_step(), TBC, TBC, "y: no batch dimension in the artifact"),
    ],
    ids=["fixed at 1", "reduced", "reduced away", "centred", "batch second", "batch second, first after"],
)
def test_a22_served_one_by_one_and_loudly(
    tmp_path: Path, artifact: bytes, x: np.ndarray, alone: np.ndarray, reason: str
) -> None:
    onnx_model(tmp_path, "m", artifact, extra="axes: {B: {min: 2, max: 2}}\n")
    loaded = ready(tmp_path)
    assert (loaded.loaded.batching, loaded.loaded.max_size) == ("unsound", 1)
    assert loaded.loaded.batching_reason == reason
    for got, right in zip(answers(loaded, x), alone, strict=True):
        np.testing.assert_array_equal(got, right)


def test_a22_an_output_without_the_batch_fails_the_batch_and_is_never_cut(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", reduced(1))
    loaded = load(Start(str(tmp_path), "m", "1", 1, self_test=False))
    run = Run(1, (Segment(((0, 3),), 0),))
    done, parts = loaded.session.run(run, [memoryview(rows_payload({"x": X}))], lambda stage: None)
    assert done.error is not None
    assert (done.error.code, done.error.message) == ("engine_error", "output y has 1 rows for a batch of 3")
    assert parts == ()


def test_a22_through_the_child(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", centred())
    with Child(tmp_path, "m") as child:
        assert (child.loaded.batching, child.loaded.max_size) == ("unsound", 1)
        answered = child.run(rows_payload({"x": X}), rows_payload({"x": X}, first=50))
        assert answered.stages == ["run"]
        assert [header.items for header, _ in answered.frames(1)] == [((50, 51),), ((51, 52),), ((52, 53),)]


def test_a_batch_fixed_above_one_is_filled_up(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", double(4, 4))
    loaded = ready(tmp_path)
    assert (loaded.loaded.batching, loaded.loaded.max_size) == ("sound", 4)
    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.testing.assert_array_equal(np.stack(answers(loaded, rows)), rows * 2)


def test_a_model_that_batches_is_sound(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", double())
    assert (ready(tmp_path).loaded.batching, ready(tmp_path).loaded.max_size) == ("sound", 32)


PREDICT = "class Handler:\n    calls = 0\n    def predict(self, inputs, parameters):\n        {}\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return [i + sum(inputs) for i in inputs]", "an item in a batch of 2 is not answered as it is alone"),
        ("return sorted(inputs)", "an item in a batch of 2 is not answered as it is alone"),
        ("return [i if len(inputs) < 3 else str(i) for i in inputs]", "an item in a batch of 3 is not answered as"),
        ("return [i if len(inputs) < 9 else 0 for i in inputs]", "an item in a batch of 32 is not answered as it is"),
        ("return inputs[:5]", "a batch of 32 fails: RuntimeError: predict must return one entry an item: 32"),
        ("return [1 / (len(inputs) == 1)] * len(inputs)", "a batch of 2 fails: ZeroDivisionError"),
        ("self.calls += 1; return [self.calls for i in inputs]", "an item in a batch of 2 is not answered as it is"),
    ],
)
def test_python_models_are_tested_at_every_size(tmp_path: Path, body: str, reason: str) -> None:
    python_model(tmp_path, "m", PREDICT.format(body), extra=THREE)
    loaded = ready(tmp_path).loaded
    assert (loaded.batching, loaded.max_size) == ("unsound", 1)
    assert loaded.batching_reason is not None
    assert loaded.batching_reason.startswith(reason)


@pytest.mark.parametrize(
    ("sample", "says"), [("", "has no sample; three under"), ("sample: [1, 2]\n", "has 2 of the three samples")]
)
def test_fewer_than_three_samples_are_served_one_by_one(tmp_path: Path, sample: str, says: str) -> None:
    python_model(tmp_path, "m", PREDICT.format("return inputs"), extra=sample)
    with Child(tmp_path, "m") as child:
        assert (child.loaded.batching, child.loaded.max_size) == ("unsound", 1)
        assert says in str(child.loaded.batching_reason)
        assert child.run(json_payload([5, 6])).json() == {0: 5, 1: 6}


def test_one_by_one_as_asked_is_not_called_unsound(tmp_path: Path) -> None:
    python_model(tmp_path, "m", PREDICT.format("return inputs"), extra="batch: {max_size: 1}\n")
    assert (ready(tmp_path).loaded.batching, ready(tmp_path).loaded.max_size) == ("sound", 1)


def test_a_sample_that_fails_refuses_the_model(tmp_path: Path) -> None:
    python_model(tmp_path, "m", PREDICT.format("return [1 / i for i in inputs]"), extra="sample: [1, 0, 2]\n")
    with pytest.raises(ModelError, match=r"m/model\.yaml: sample 1 cannot be run: ZeroDivisionError"):
        ready(tmp_path)


def test_a_sample_of_the_wrong_shape_refuses_the_model(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", double(), extra="sample: [{x: [1, 2]}]\n")
    with pytest.raises(ModelError, match=r"sample 0 cannot be run: x: expected \[3\], got \[2\]"):
        ready(tmp_path)


def lookup(rows: int) -> bytes:
    table = numpy_helper.from_array(np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "table")
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    return graph([node], {"x": (TensorProto.INT64, ["b", 3])}, {"y": (FLOAT, ["b", 3, 2])}, [table])


@pytest.mark.parametrize("rows", [2, 50, 1000])
def test_made_up_rows_stay_inside_small_tables(tmp_path: Path, rows: int) -> None:
    onnx_model(tmp_path, "m", lookup(rows))
    assert ready(tmp_path).loaded.batching == "sound"


def test_made_up_rows_that_cannot_be_run_are_told_and_served_one_by_one(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", lookup(1))
    loaded = ready(tmp_path)
    assert (loaded.loaded.batching, loaded.loaded.max_size) == ("unsound", 1)
    assert "put three items under `sample:`" in str(loaded.loaded.batching_reason)


def test_made_up_rows_vary_in_length_and_are_the_same_every_time(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", double(width="n"), extra="axes: {n: {min: 1, max: 6}}\n")
    spec = ready(tmp_path).session.spec
    assert [len(row["x"]) for row in seeded(spec, 100)] == [2, 5, 6]
    assert seeded(spec, 100) == seeded(spec, 100)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 1000.0], [1.005, 1000.0], True),
        ([1.0, 1000.0], [1.05, 1000.0], False),
        (1.0, 1.000001, True),
        (1.0, 1.001, False),
        (1, 1.0, True),
        (2**53, 2**53 + 1, False),
        ([1, 2], [1, 3], False),
        (True, 1, False),
        ("a", "b", False),
        ({"a": [1.0]}, {"a": [1.0], "b": 1}, False),
        (np.float32([np.nan, 1]), np.float32([np.nan, 1]), True),
        (np.float32([np.inf, 1]), np.float32([-np.inf, 1]), False),
        (np.float32([1, 2]), np.float32([1, 2.001]), False),
        (np.float16([1, 2]), np.float16([1.002, 2]), True),
        (np.int64([2**53]), np.int64([2**53 + 1]), False),
        (np.float32([1]), np.float32([[1]]), False),
    ],
)
def test_what_counts_as_the_same_answer(one: object, other: object, expected: bool) -> None:
    assert same(one, other) is expected
    assert same(other, one) is expected
