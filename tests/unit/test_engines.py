"""The ONNX Runtime engine and the registry: what the artifact says, and that it reaches no file but its own (S5)."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from jobs.errors import ModelError
from jobs.models import repository
from tests.unit.repositories import double, graph, onnx_model
from workers.child.loading import load
from workers.engine import EngineInfo, TensorInfo
from workers.engines.onnxruntime import OnnxRuntimeEngine
from workers.engines.registry import open_engine
from workers.wire import Start

FLOAT = TensorProto.FLOAT


def opened(root: Path, name: str = "m") -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(repository.read_version(root, name), 1)


def info(root: Path, artifact: bytes) -> EngineInfo:
    onnx_model(root, "m", artifact)
    return opened(root).info()


def add(x: list[int | str | None], z: list[int | str | None], y: list[int | str | None] | None) -> bytes:
    return graph([helper.make_node("Add", ["x", "z"], ["y"])], {"x": (FLOAT, x), "z": (FLOAT, z)}, {"y": (FLOAT, y)})


def test_reads_names_datatypes_shapes_and_axes(tmp_path: Path) -> None:
    found = info(tmp_path, double("batch", "n"))
    assert found == EngineInfo((TensorInfo("x", "FP32", ("n",)),), (TensorInfo("y", "FP32", ("n",)),), None)


@pytest.mark.parametrize(
    ("x", "z", "y", "whole", "limit"),
    [
        ([None, 3], ["b", 3], ["b", 3], set(), None),
        ([8, 3], [8, 3], [8, 3], set(), 8),
        ([1, 3], [1, 3], [1, 3], set(), 1),
        (["b", 3], [3], ["b", 3], {"z"}, None),
        (["b", 3], [1, 3], ["b", 3], set(), 1),
        (["b", 3], [], ["b", 3], {"z"}, None),
        ([2, 1, 3], [1, 4, 3], [2, 4, 3], {"x", "y"}, 1),
    ],
)
def test_which_dimension_is_the_batch(
    tmp_path: Path, x: Any, z: Any, y: Any, whole: set[str], limit: int | None
) -> None:
    found = info(tmp_path, add(x, z, y))
    assert {tensor.name for tensor in (*found.inputs, *found.outputs) if tensor.whole} == whole
    assert found.batch_limit == limit


def test_an_input_without_the_batch_is_fed_whole_one_item_at_a_time(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", add(["b", 3], [3], ["b", 3]))
    loaded = load(Start(str(tmp_path), "m", "1", 1)).loaded
    assert (loaded.batching, loaded.max_size) == ("unsound", 1)
    assert loaded.batching_reason == "z: no batch dimension in the artifact"
    assert [tensor.shape for tensor in loaded.inputs] == [(3,), (3,)]


def test_an_output_whose_shape_is_not_told_is_looked_at(tmp_path: Path) -> None:
    """Squeeze takes every 1, so the artifact cannot say what comes out: with one item the batch is gone too."""
    squeeze = helper.make_node("Squeeze", ["x"], ["y"])
    onnx_model(tmp_path, "m", graph([squeeze], {"x": (FLOAT, ["b", 3])}, {"y": (FLOAT, None)}))
    (output,) = opened(tmp_path).info().outputs
    assert (output.shape, output.whole) == ((), False)
    ready = load(Start(str(tmp_path), "m", "1", 1))
    assert (ready.loaded.batching, ready.loaded.batching_reason) == ("unsound", "y: no batch dimension in the artifact")
    assert ready.loaded.outputs[0].shape == (3,)


def test_runs_text(tmp_path: Path) -> None:
    text: list[int | str | None] = ["b", 2]
    artifact = graph([helper.make_node("Identity", ["x"], ["y"])], {"x": (8, text)}, {"y": (8, text)})
    onnx_model(tmp_path, "m", artifact)
    answers = opened(tmp_path).run({"x": np.array([[b"a", "ä".encode()]], object)})
    assert answers["y"].tolist() == [["a", "ä"]]


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("inputs: {z: {datatype: FP32, shape: [3]}}", "input z is not in the artifact; it has x"),
        ("inputs: {x: {datatype: FP64, shape: [3]}}", r"input x is FP64 \[3\] in model.yaml and FP32 \[3\]"),
        ("inputs: {x: {datatype: FP32, shape: [4]}}", r"input x is FP32 \[4\] in model.yaml"),
        ("inputs: {x: {datatype: FP32, shape: [1, 3]}}", r"input x is FP32 \[1, 3\]"),
        ("outputs: {q: {datatype: FP32, shape: [3]}}", "output q is not in the artifact; it has y"),
    ],
)
def test_model_yaml_and_artifact_must_agree(tmp_path: Path, declared: str, says: str) -> None:
    onnx_model(tmp_path, "m", double(), extra=declared + "\n")
    with pytest.raises(ModelError, match=f"m/model.yaml: {says}"):
        load(Start(str(tmp_path), "m", "1", 1))


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x08\x07location"], ids=["empty", "garbage", "cut off"])
def test_a_damaged_artifact_says_so_without_a_path(tmp_path: Path, data: bytes) -> None:
    onnx_model(tmp_path, "m", data)
    with pytest.raises(ModelError) as caught:
        opened(tmp_path)
    assert str(caught.value).startswith("m/1/model.onnx: ")
    assert str(tmp_path) not in str(caught.value)


def test_sequences_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    sequence = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    made = helper.make_graph([node], "t", [helper.make_tensor_value_info("x", FLOAT, ["b"])], [sequence])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx_model(tmp_path, "m", model.SerializeToString())
    with pytest.raises(ModelError, match=r"y is seq\(tensor\(float\)\), which this engine cannot serve"):
        opened(tmp_path).info()


def external(location: str, where: str = "initializer") -> bytes:
    """y = x + w, with the three numbers of w in another file."""
    weights = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    entry = weights.external_data.add()
    entry.key, entry.value = "location", location
    length = weights.external_data.add()
    length.key, length.value = "length", "12"
    inputs = {"x": (FLOAT, ["b", 3])}
    outputs = {"y": (FLOAT, ["b", 3])}
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    if where == "initializer":
        return graph(nodes, inputs, outputs, [weights])
    constant = helper.make_node("Constant", [], ["w"], value=weights)
    if where == "attribute":
        return graph([constant, *nodes], inputs, outputs)
    inner = helper.make_graph([constant], "inner", [], [helper.make_tensor_value_info("w", FLOAT, [3])])
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    return graph(
        [yes, helper.make_node("If", ["yes"], ["w"], then_branch=inner, else_branch=inner), *nodes], inputs, outputs
    )


DATA = np.array([1, 2, 3], np.float32).tobytes()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "w.bin"
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize("where", ["initializer", "attribute", "subgraph"])
@pytest.mark.parametrize(
    "location", ["../../../w.bin", "a/../../../../w.bin", "ABSOLUTE", "..\\w.bin", "%2e%2e/w.bin", ""]
)
def test_s5_external_data_leads_nowhere(tmp_path: Path, outside: Path, location: str, where: str) -> None:
    root = tmp_path / "models"
    folder = onnx_model(root, "m", external(str(outside) if location == "ABSOLUTE" else location, where))
    (folder / "1" / "a").mkdir()
    with pytest.raises(ModelError, match=r"tensor 'w' keeps its data in"):
        opened(root)


@pytest.mark.parametrize("link", ["file", "parent", "hard"])
def test_s5_external_data_is_no_link(tmp_path: Path, outside: Path, link: str) -> None:
    root = tmp_path / "models"
    folder = onnx_model(root, "m", external("d/w.bin")) / "1" / "d"
    if link == "parent":
        folder.symlink_to(outside.parent)
    else:
        folder.mkdir()
        (folder / "w.bin").symlink_to(outside) if link == "file" else (folder / "w.bin").hardlink_to(outside)
    with pytest.raises(ModelError, match="link"):
        opened(root)


def test_external_data_beside_the_artifact_is_read(tmp_path: Path) -> None:
    folder = onnx_model(tmp_path, "m", external("d/w.bin")) / "1" / "d"
    with pytest.raises(ModelError, match=r"m/1/model\.onnx: 1/d/w\.bin does not exist"):
        opened(tmp_path)
    folder.mkdir()
    (folder / "w.bin").write_bytes(DATA)
    assert opened(tmp_path).run({"x": np.zeros((1, 3), np.float32)})["y"].tolist() == [[1, 2, 3]]


def test_a_pinned_hash_that_is_another_refuses_the_load(tmp_path: Path) -> None:
    folder = onnx_model(tmp_path, "m", double())
    text = (folder / "model.yaml").read_text().replace("model.onnx}", f"model.onnx, sha256: '{'0' * 64}'}}")
    (folder / "model.yaml").write_text(text)
    with pytest.raises(ModelError, match=r"its SHA-256 is [0-9a-f]{64}, but model.yaml pins 0000"):
        load(Start(str(tmp_path), "m", "1", 1))


@pytest.mark.parametrize("missing", ["onnxruntime", "onnx"])
def test_a_missing_package_names_the_extra(tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_model(tmp_path, "m", external("w.bin"))
    really = builtins.__import__

    def importing(name: str, *rest: Any, **more: Any) -> Any:
        if name == missing:
            raise ImportError(name)
        return really(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ModelError, match=r"pip install 'batchyard\[onnxruntime\]'"):
        opened(tmp_path)


def test_threads_are_as_told(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", double())
    spec = repository.read_version(tmp_path, "m")
    engine = open_engine(spec, threads=3)
    assert isinstance(engine, OnnxRuntimeEngine)
    assert engine._session.get_session_options().intra_op_num_threads == 3
