"""What the test models promise to those who use them: sizes, limits, nets of the stated shape, artifacts not kept."""

import subprocess
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from jobs.models import repository
from jobs.models.spec import ModelSpec, Tensor
from tests.models import make as making
from tests.models import nets
from tests.unit.children import Child, json_payload

MODELS = Path(__file__).parents[1] / "models"
ROOT = MODELS.parents[1]
JSON_MODELS = ("echo", "sum", "slow", "raise_if", "exit_if", "hang_if", "nan_if", "need_memory", "poison")
NETS = ("mlp", "encoder", "pad")
IDENTITIES = {"int64": "INT64", "uint64": "UINT64", "fp16": "FP16", "bf16": "BF16", "bytes": "BYTES", "bool": "BOOL"}
RUN_SECONDS = {"hang_if": 5, "poison": 1}


def spec(name: str) -> ModelSpec:
    return repository.read_version(MODELS, name)


def test_these_are_all_there_are() -> None:
    names = {path.parent.name for path in MODELS.glob("*/model.yaml")}
    assert names == {*JSON_MODELS, *NETS, *(f"ident_{name}" for name in IDENTITIES)}


@pytest.mark.parametrize("name", JSON_MODELS)
def test_json_models_take_32_items_and_run_in_their_handler(name: str) -> None:
    found = spec(name)
    assert (found.input, found.engine, found.batch.max_size) == ("json", "python", 32)
    assert found.run_timeout == timedelta(seconds=RUN_SECONDS.get(name, 30))
    assert len(found.sample) >= 3


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities_are_tensor_models_of_four_values(name: str) -> None:
    found = spec(f"ident_{name}")
    assert (found.input, found.engine) == ("tensors", "python")
    assert found.inputs == (Tensor("x", IDENTITIES[name], (4,)),)
    assert found.outputs == (Tensor("y", IDENTITIES[name], (4,)),)


@pytest.mark.parametrize(("name", "max_size"), [("mlp", 64), ("encoder", 32), ("pad", 32)])
def test_nets_are_tensor_models_on_onnxruntime(name: str, max_size: int) -> None:
    making.make()
    found = spec(name)
    assert (found.input, found.engine, found.batch.max_size) == ("tensors", "onnxruntime", max_size)


def dims(value: onnx.ValueInfoProto) -> tuple[str, int, list[int | str]]:
    shape = value.type.tensor_type.shape.dim
    return value.name, value.type.tensor_type.elem_type, [dim.dim_param or dim.dim_value for dim in shape]


def weights(model: onnx.ModelProto) -> Counter[tuple[int, ...]]:
    """How many matrices of each shape."""
    shapes = [tuple(weight.dims) for weight in model.graph.initializer]
    return Counter(shape for shape in shapes if len(shape) == 2)


def test_m1_is_an_mlp_of_64_128_10() -> None:
    model = onnx.load_from_string(nets.mlp())
    assert [dims(value) for value in model.graph.input] == [("x", onnx.TensorProto.FLOAT, ["batch", 64])]
    assert [dims(value) for value in model.graph.output] == [("y", onnx.TensorProto.FLOAT, ["batch", 10])]
    assert weights(model) == {(64, 128): 1, (128, 10): 1}


def test_m2_is_a_transformer_of_6_layers_768_wide() -> None:
    model = onnx.load_from_string(nets.encoder())
    assert [dims(value) for value in model.graph.input] == [("ids", onnx.TensorProto.INT64, ["batch", 8])]
    assert [dims(value) for value in model.graph.output] == [("y", onnx.TensorProto.FLOAT, ["batch", 8])]
    assert weights(model) == {
        (2000, 768): 1,  # the vocabulary
        (8, 768): 1,  # the places of the tokens
        (768, 768): 6 * 4,  # query, key, value, out
        (768, 3072): 6,
        (3072, 768): 6,
        (768, 8): 1,
    }
    (split,) = [w for w in model.graph.initializer if w.name == "layer0.split"]
    assert numpy_helper.to_array(split).tolist() == [0, 8, 12, 64]  # twelve heads


def test_nets_are_the_same_bytes_every_time() -> None:
    assert nets.mlp() == nets.mlp()
    assert nets.masked_mean() == nets.masked_mean()


def test_artifacts_are_made_where_they_are_missing_and_never_kept(tmp_path: Path) -> None:
    written = making.make(tmp_path)
    assert sorted(path.parent.parent.name for path in written) == sorted(NETS)
    assert making.make(tmp_path) == []
    listed = subprocess.run(["git", "ls-files", "*.onnx"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert listed.stdout == ""
    for name in NETS:
        path = f"tests/models/{name}/1/model.onnx"
        assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode == 0


def test_poison_takes_its_time_as_slow_does() -> None:
    items = [{"id": n, "value": n, "ms": 20} for n in range(3)]
    with Child(MODELS, "poison") as child:
        began = time.monotonic()
        answered = child.run(json_payload(items))
        assert time.monotonic() - began >= 0.06
        assert answered.json() == {n: {"id": n, "value": n} for n in range(3)}
