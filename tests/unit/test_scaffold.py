"""`batchyard models init` and `run`: an ONNX file becomes a model that is served as it stands."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from batchyard.errors import BatchyardError
from batchyard.local import models
from jobs.models import repository, scaffold
from jobs.models.spec import Axis, Tensor
from tests.unit.repositories import double, graph, onnx_model, python_model
from tests.unit.test_engines import DATA, external

FLOAT = TensorProto.FLOAT


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(double("batch", "seq.len*2"))
    return path


def test_init_writes_a_model_that_runs(tmp_path: Path, source: Path) -> None:
    written = models.init(tmp_path / "models", "doubler", source)
    assert written == tmp_path / "models" / "doubler" / "model.yaml"
    spec = repository.read_version(tmp_path / "models", "doubler")
    assert spec.inputs == (Tensor("x", "FP32", ("seq_len_2",), pad=0),)
    assert spec.outputs == (Tensor("y", "FP32", ("seq_len_2",)),)
    assert spec.axes == {"seq_len_2": Axis(1, scaffold.LONGEST)}
    assert spec.batch.max_size == models.MAX_SIZE
    assert spec.artifact is not None
    assert spec.artifact.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert models.run(tmp_path / "models", "doubler", {"x": [1, 2.5]}) == {
        "y": {"shape": [2], "datatype": "FP32", "data": [2.0, 5.0]}
    }
    (version,) = models.inspect(tmp_path / "models", "doubler")["versions"]
    assert (version["batching"], version["max_size"]) == ("sound", models.MAX_SIZE)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["doubler"]


@pytest.mark.parametrize(("batch", "size", "says"), [(1, 1, "fixed at 1"), (8, 8, "always takes 8")])
def test_init_tells_a_fixed_batch(tmp_path: Path, batch: int, size: int, says: str) -> None:
    (tmp_path / "net.onnx").write_bytes(double(batch))
    written = models.init(tmp_path / "models", "m", tmp_path / "net.onnx")
    assert says in written.read_text()
    assert repository.read_version(tmp_path / "models", "m").batch.max_size == size


def test_init_copies_the_weights_that_lie_beside(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(external("d/w.bin"))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "w.bin").write_bytes(DATA)
    models.init(tmp_path / "models", "m", tmp_path / "net.onnx")
    assert models.run(tmp_path / "models", "m", {"x": [0, 0, 0]})["y"]["data"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("Bad", double(), "a name is of a-z"),
        ("../bad", double(), "a name is of a-z"),
        ("m", b"garbage", "m/1/model.onnx: cannot be loaded"),
        ("m", external("../w.bin"), "keeps its data in '../w.bin'"),
        ("m", None, "there is no such file"),
    ],
)
def test_init_that_fails_leaves_nothing(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    (tmp_path / "models").mkdir()
    if content is not None:
        (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(BatchyardError, match=says):
        models.init(tmp_path / "models", name, tmp_path / "net.onnx")
    assert list((tmp_path / "models").iterdir()) == []


def test_init_overwrites_nothing(tmp_path: Path, source: Path) -> None:
    models.init(tmp_path / "models", "m", source)
    with pytest.raises(BatchyardError, match="m: is there already"):
        models.init(tmp_path / "models", "m", source)


def test_odd_names_survive_yaml(tmp_path: Path) -> None:
    names = ["true", "283", "images:0", "a b", "null", "gpu_0/data_0", "#x", "no"]
    node = helper.make_node("Concat", names, ["1e5"], axis=1)
    shapes: dict[str, Any] = {name: (FLOAT, ["b", 1]) for name in names}
    (tmp_path / "net.onnx").write_bytes(graph([node], shapes, {"1e5": (FLOAT, ["b", len(names)])}))
    models.init(tmp_path / "models", "m", tmp_path / "net.onnx")
    spec = repository.read_version(tmp_path / "models", "m")
    assert [tensor.name for tensor in spec.inputs] == names
    answer = models.run(tmp_path / "models", "m", {name: [at] for at, name in enumerate(names)})
    assert answer["1e5"]["data"] == list(range(len(names)))


def test_axis_names_stay_apart() -> None:
    tensor = Tensor("x", "FP32", ("n", "n+1", "n_1", "1n", "?", "true"))
    names = scaffold.axis_names([tensor])
    assert names == {"n": "n", "n+1": "n_1", "n_1": "n_1_", "1n": "axis_1n", "?": "axis", "true": "true_"}


def test_run_shows_the_whole_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "class Handler:\n    def predict(self, inputs, parameters):\n        return [i['missing'] for i in inputs]\n"
    python_model(tmp_path, "m", body)
    with pytest.raises(BatchyardError, match="handler_error in predict: KeyError: 'missing'"):
        models.run(tmp_path, "m", {"a": 1})
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert f'{tmp_path}/m/1/handler.py", line 3, in predict' in printed
    assert "session.py" in printed


def test_run_shows_the_traceback_of_one_item_s_own_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = "class Handler:\n    def preprocess(self, i, parameters):\n        raise ValueError('bad ' + i)\n"
    onnx_model(tmp_path, "m", double(), handler=handler)
    with pytest.raises(BatchyardError, match="invalid_input in preprocess, permanent: ValueError: bad x"):
        models.run(tmp_path, "m", "x")
    assert "line 3, in preprocess" in capsys.readouterr().err


def test_run_with_parameters_and_versions(tmp_path: Path) -> None:
    body = "class Handler:\n    def predict(self, inputs, parameters):\n        return [[{}, parameters]]\n"
    folder = python_model(tmp_path, "m", body.format(1), extra="parameters: {a: 1, b: 2}\ndefault_version: 1\n")
    (folder / "2").mkdir()
    (folder / "2" / "handler.py").write_text(body.format(2))
    assert models.run(tmp_path, "m", None, {"b": 3}) == [1, {"a": 1, "b": 3}]
    assert models.run(tmp_path, "m", None, version="2") == [2, {"a": 1, "b": 2}]
    with pytest.raises(BatchyardError, match="m: has no version 3; it has 1, 2"):
        models.run(tmp_path, "m", None, version="3")


def test_run_says_what_the_model_takes(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", double())
    with pytest.raises(BatchyardError, match=r"x: expected \[3\], got \[1\]; the model takes \{x: FP32 \[3\]\}"):
        models.run(tmp_path, "m", {"x": [1]})
    with pytest.raises(BatchyardError, match="there is no such model in the repository; there is m"):
        models.run(tmp_path, "n", {"x": [1]})


def test_inspect_tells_each_version_that_cannot_be_used(tmp_path: Path) -> None:
    folder = onnx_model(tmp_path, "m", double())
    (folder / "2").mkdir()
    (folder / "2" / "model.onnx").write_bytes(b"x")
    good, bad = models.inspect(tmp_path, "m")["versions"]
    assert (good["error"], good["inputs"]) == (None, [{"name": "x", "datatype": "FP32", "shape": [3]}])
    assert bad["error"].startswith("m/2/model.onnx: cannot be loaded")
    np.testing.assert_equal(bad.keys(), {"version", "error"})
