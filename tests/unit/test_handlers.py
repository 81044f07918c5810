"""handler.py in a session: what is called, what its errors mean, whose they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from jobs.errors import ModelError
from tests.unit.children import Answered, json_payload, rows_payload
from tests.unit.repositories import double, graph, onnx_model, python_model
from workers.child.failures import MAX_TRACEBACK, told
from workers.child.loading import Ready, load
from workers.wire import Failure, Run, Segment, Start

VECTOR = (
    "axes: {n: {min: 1, max: 4}}\ninputs: {x: {datatype: FP32, shape: [n], pad: -1}}\n"
    "outputs: {y: {datatype: FP32, shape: [n]}}\n"
)


def ready(root: Path, name: str = "m") -> Ready:
    return load(Start(str(root), name, "1", 1, self_test=False))


def run(loaded: Ready, *payloads: bytes, counts: Sequence[int]) -> Answered:
    stages: list[str] = []
    segments = tuple(Segment(((0, n),), 0) for n in counts)
    done, parts = loaded.session.run(Run(1, segments), [memoryview(p) for p in payloads], stages.append)
    return Answered(done, [memoryview(part) for part in parts], stages)


def run_json(loaded: Ready, *values: Any, **more: Any) -> Answered:
    return run(loaded, json_payload(values, **more), counts=[len(values)])


def predicting(root: Path, body: str, extra: str = "") -> Ready:
    python_model(root, "m", f"from batchyard.handler import Permanent, Retry\nclass Handler:\n{body}", extra=extra)
    return ready(root)


def each(expression: str) -> str:
    return f"    def predict(self, inputs, parameters):\n        return [{expression} for i in inputs]\n"


def only(answered: Answered) -> Failure:
    assert answered.done.error is None
    (failure,) = answered.done.failures
    return failure


ENGINE_HANDLER = """
import numpy as np
class Handler:
    def load(self, path, parameters):
        self.word = (path / "word.txt").read_text() + parameters["suffix"]
    def preprocess(self, input, parameters):
        if input == "value":
            raise ValueError("no such word")
        if input == "key":
            {}["missing"]
        if input == "other":
            raise OSError("disk is gone: /srv/secret/disk.img")
        if input == "dtype":
            return {"x": ["a"]}
        if input == "shape":
            return {"x": [[1.0]]}
        if input == "lost":
            return {"z": [1.0]}
        if input == "list":
            return [1.0]
        if input == "long":
            return {"x": [1.0] * 5}
        if input == "taken":
            return {"x": [1.0], "y": 1}
        return {"x": np.arange(input, dtype=np.float32), "count": input}
    def postprocess(self, outputs, parameters):
        if outputs["count"] == 3:
            raise RuntimeError("three")
        return {"word": self.word, "y": outputs["y"].tolist(), "count": outputs["count"], "p": parameters.get("p")}
"""


@pytest.fixture
def engine_model(tmp_path: Path) -> Ready:
    folder = onnx_model(
        tmp_path, "m", double(width="n"), extra=f"{VECTOR}parameters: {{suffix: '!'}}\n", handler=ENGINE_HANDLER
    )
    (folder / "1" / "word.txt").write_text("hello")
    return ready(tmp_path)


def test_before_and_after_the_engine_with_what_is_carried_past_it(engine_model: Ready) -> None:
    answered = run_json(engine_model, 1, 4, 2, parameters={"p": 7})
    assert answered.json() == {
        0: {"word": "hello!", "y": [0.0], "count": 1, "p": 7},
        1: {"word": "hello!", "y": [0.0, 2.0, 4.0, 6.0], "count": 4, "p": 7},
        2: {"word": "hello!", "y": [0.0, 2.0], "count": 2, "p": 7},
    }
    assert answered.stages == ["preprocess", "run", "postprocess"]
    assert 0 < answered.done.engine_seconds < answered.done.busy_seconds


@pytest.mark.parametrize(
    ("value", "code", "permanent", "message", "stage"),
    [
        ("value", "invalid_input", True, "ValueError: no such word", "preprocess"),
        ("key", "invalid_input", True, "KeyError: 'missing'", "preprocess"),
        ("other", "handler_error", False, "OSError: disk is gone: disk.img", "preprocess"),
        ("dtype", "handler_error", True, "preprocess: x must be FP32, not BYTES", "preprocess"),
        ("shape", "handler_error", True, "preprocess: x must have the shape [n], not [1, 1]", "preprocess"),
        ("lost", "handler_error", True, "preprocess: x is missing; the model takes x", "preprocess"),
        ("list", "handler_error", True, "preprocess must return {name: array}, not list", "preprocess"),
        ("long", "invalid_input", True, "ValueError: axis n is 5 long; this model takes 1 to 4", "preprocess"),
        ("taken", "handler_error", True, "preprocess: y is an output of the model; give it another name", "preprocess"),
        (3, "handler_error", False, "RuntimeError: three", "postprocess"),
    ],
)
def test_one_item_s_error_is_its_own(
    engine_model: Ready, value: Any, code: str, permanent: bool, message: str, stage: str
) -> None:
    answered = run_json(engine_model, 1, value, 2)
    failure = only(answered)
    assert (failure.segment, failure.position) == (0, 1)
    assert (failure.code, failure.permanent, failure.message, failure.stage) == (code, permanent, message, stage)
    assert sorted(answered.json()) == [0, 2]
    assert answered.json()[2]["y"] == [0.0, 2.0]


def test_all_items_failing_before_the_engine_leave_nothing_to_run(engine_model: Ready) -> None:
    answered = run_json(engine_model, "value", "key")
    assert [failure.position for failure in answered.done.failures] == [0, 1]
    assert answered.done.results == (-1,)
    assert answered.stages == ["preprocess"]


@pytest.mark.parametrize(
    ("raised", "code", "permanent", "message", "after"),
    [
        ("Permanent('give up')", "handler_error", True, "give up", None),
        ("Retry('busy', after=2.5)", "handler_error", False, "busy", 2.5),
        ("Retry(after=float('nan'))", "handler_error", False, "the handler asked for another try", None),
        ("ValueError('odd')", "handler_error", False, "ValueError: odd", None),
        ("MemoryError('no room')", "out_of_memory", False, "MemoryError: no room", None),
        ("KeyError()", "handler_error", False, "KeyError", None),
    ],
)
@pytest.mark.parametrize("way", ["raised", "returned"])
def test_what_predict_s_exceptions_mean(
    tmp_path: Path, way: str, raised: str, code: str, permanent: bool, message: str, after: float | None
) -> None:
    if way == "raised":
        loaded = predicting(tmp_path, f"    def predict(self, inputs, parameters):\n        raise {raised}\n")
        answered = run_json(loaded, 1)
    else:
        answered = run_json(predicting(tmp_path, each(f"{raised} if i == 1 else i")), 0, 1)
        assert answered.json() == {0: 0}
    failure = only(answered)
    assert (failure.code, failure.permanent, failure.message, failure.stage) == (code, permanent, message, "predict")
    assert failure.retry_after == after


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return inputs[1:]", "RuntimeError: predict must return one entry an item: 2, and returned 1"),
        ("return [*inputs, 1]", "RuntimeError: predict must return one entry an item: 2, and returned 3"),
        ("return {1: 2}", "RuntimeError: predict must return a list, one entry an item, not dict"),
        ("return None", "RuntimeError: predict must return a list, one entry an item, not NoneType"),
    ],
)
def test_a_wrong_number_of_answers_belongs_to_nobody(tmp_path: Path, body: str, message: str) -> None:
    answered = run_json(predicting(tmp_path, f"    def predict(self, inputs, parameters):\n        {body}\n"), 1, 2)
    assert answered.done.error is not None
    assert answered.done.error.message == message
    assert answered.done.failures == ()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("object()", "the answer is not JSON: object at $"),
        ("{1: 2}", "the answer is not JSON: the key 1 at $ is no string"),
        ("{'a': {1, 2}}", "the answer is not JSON: set at $.a"),
    ],
)
def test_an_answer_that_is_no_json_fails_alone(tmp_path: Path, expression: str, message: str) -> None:
    answered = run_json(predicting(tmp_path, each(f"{expression} if i == 1 else i")), 0, 1)
    failure = only(answered)
    assert (failure.code, failure.permanent, failure.message) == ("output_invalid", True, message)
    assert answered.json() == {0: 0}


def test_a15_non_finite_as_text_or_refused(tmp_path: Path) -> None:
    body = each("[float(i), float('-inf')] if i == 'nan' else i")
    assert run_json(predicting(tmp_path / "a", body), "nan").json() == {0: ["NaN", "-Infinity"]}
    answered = run_json(predicting(tmp_path / "b", body, extra="non_finite: fail\n"), "nan", 1)
    failure = only(answered)
    assert (failure.code, failure.permanent) == ("output_invalid", True)
    assert answered.json() == {1: 1}


def test_a15_tensor_outputs_non_finite_refused_row_by_row(tmp_path: Path) -> None:
    onnx_model(tmp_path, "m", double(), extra="non_finite: fail\n")
    x = np.array([[1, 2, 3], [1, np.nan, 3], [4, 5, 6]], np.float32)
    answered = run(ready(tmp_path), rows_payload({"x": x}), rows_payload({"x": x[1:2]}), counts=[3, 1])
    assert [(f.segment, f.position, f.code) for f in answered.done.failures] == [
        (0, 1, "output_invalid"),
        (1, 0, "output_invalid"),
    ]
    ((header, _),) = answered.frames(0)
    assert header.items == ((0, 1), (2, 3))
    assert answered.frames(1) == []


def test_a_json_model_without_postprocess_answers_its_tensors(tmp_path: Path) -> None:
    handler = "class Handler:\n    def preprocess(self, i, parameters):\n        return {'x': i, 'note': 1}\n"
    onnx_model(tmp_path, "m", double(), handler=handler)
    answered = run_json(ready(tmp_path), [1.0, 2.0, 3.0])
    assert answered.json() == {0: {"y": {"shape": [3], "datatype": "FP32", "data": [2.0, 4.0, 6.0]}}}


def test_preprocess_batch_answers_each_or_an_exception(tmp_path: Path) -> None:
    handler = (
        "class Handler:\n    def preprocess_batch(self, inputs, parameters):\n"
        "        return [{'x': i} if i else ValueError('empty') for i in inputs]\n"
        "    def postprocess(self, outputs, parameters):\n        return outputs['y'].tolist()\n"
    )
    onnx_model(tmp_path, "m", double(), handler=handler)
    answered = run_json(ready(tmp_path), [1, 2, 3], [], [0, 0, 1])
    assert answered.json() == {0: [2, 4, 6], 2: [0, 0, 2]}
    assert (only(answered).code, only(answered).position) == ("invalid_input", 1)


def test_threads_run_the_handler_side_by_side(tmp_path: Path) -> None:
    handler = (
        "import threading\nclass Handler:\n    def load(self, path, parameters):\n"
        "        self.meeting = threading.Barrier(4, timeout=10)\n"
        "    def preprocess(self, i, parameters):\n        self.meeting.wait()\n        return {'x': [i, i, i]}\n"
        "    def postprocess(self, outputs, parameters):\n        return float(outputs['y'][0])\n"
    )
    onnx_model(tmp_path, "m", double(), extra="handler: {concurrency: 4, mode: thread}\n", handler=handler)
    assert run_json(ready(tmp_path), 1, 2, 3, 4).json() == {0: 2.0, 1: 4.0, 2: 6.0, 3: 8.0}


def test_python_with_tensors(tmp_path: Path) -> None:
    body = (
        "    def predict(self, inputs, parameters):\n"
        "        x = inputs['x']\n        return {'y': x.sum(1) * parameters.get('by', 1), 'z': x.astype('f8')}\n"
    )
    extra = (
        "inputs: {x: {datatype: FP32, shape: [2]}}\n"
        "outputs: {y: {datatype: FP32, shape: []}, z: {datatype: FP32, shape: [2]}}\n"
    )
    python_model(tmp_path, "m", f"class Handler:\n{body}", extra=extra, kind="tensors")
    x = np.array([[1, 2], [3, 4]], np.float32)
    answered = run(ready(tmp_path), rows_payload({"x": x}), counts=[2])
    ((header, parts),) = answered.frames(0)
    assert [(c.name, c.datatype, c.shape) for c in header.columns] == [("y", "FP32", ()), ("z", "FP32", (2,))]
    assert np.frombuffer(parts[0], np.float32).tolist() == [3, 7]


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        ("{'y': x[:1]}", "engine_error", "output y has 1 rows for a batch of 2"),
        ("{'y': x.T}", "engine_error", "output y has 3 rows for a batch of 2"),
        ("{'y': 1.0}", "engine_error", "output y has no rows for a batch of 2"),
        ("{}", "output_invalid", "predict gave no y; it gave nothing"),
        ("x", "output_invalid", "predict must return {name: array}, not ndarray"),
        ("{'y': x[:, :2]}", "output_invalid", "predict: y must have the shape [2, 3], not [2, 2]"),
        ("{'y': x.astype(str)}", "output_invalid", "predict: y must be FP32, not BYTES"),
    ],
)
def test_python_with_tensors_is_held_to_what_it_declares(tmp_path: Path, answer: str, code: str, says: str) -> None:
    body = f"    def predict(self, inputs, parameters):\n        x = inputs['x']\n        return {answer}\n"
    extra = "inputs: {x: {datatype: FP32, shape: [3]}}\noutputs: {y: {datatype: FP32, shape: [3]}}\n"
    python_model(tmp_path, "m", f"class Handler:\n{body}", extra=extra, kind="tensors")
    answered = run(ready(tmp_path), rows_payload({"x": np.ones((2, 3), np.float32)}), counts=[2])
    assert answered.done.error is not None
    assert (answered.done.error.code, answered.done.error.message) == (code, says)


@pytest.mark.parametrize(
    ("engine", "methods", "says"),
    [
        ("python", "preprocess predict", "engine python calls predict alone: remove preprocess"),
        ("python", "postprocess predict", "engine python calls predict alone: remove postprocess"),
        ("python", "", "engine python needs Handler.predict"),
        ("onnxruntime", "preprocess predict", "engine onnxruntime calls no predict"),
        ("onnxruntime", "preprocess preprocess_batch", "has both preprocess and preprocess_batch"),
        ("onnxruntime", "postprocess", "needs Handler.preprocess or preprocess_batch"),
    ],
)
def test_methods_that_do_not_go_together_are_refused_at_load(
    tmp_path: Path, engine: str, methods: str, says: str
) -> None:
    defined = "".join(f"    def {name}(self, a, b): ...\n" for name in methods.split()) or "    pass\n"
    if engine == "python":
        python_model(tmp_path, "m", f"class Handler:\n{defined}")
    else:
        onnx_model(tmp_path, "m", double(), handler=f"class Handler:\n{defined}")
    with pytest.raises(ModelError, match=says):
        ready(tmp_path)


def test_load_that_raises_names_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "class Handler:\n    def load(self, path, parameters):\n        open(path / 'gone')\n    predict = None\n"
    python_model(tmp_path, "m", body)
    with pytest.raises(ModelError) as caught:
        ready(tmp_path)
    assert str(caught.value).startswith("m/1/handler.py:3: load(): FileNotFoundError: ")
    assert str(tmp_path) not in str(caught.value)
    assert "Traceback" in capsys.readouterr().err


def test_a_handler_may_have_modules_beside_it_that_hide_nothing(tmp_path: Path) -> None:
    folder = python_model(
        tmp_path, "m", "import json, mine_beside\nclass Handler:\n" + each("mine_beside.NAME + json.dumps(i)")
    )
    (folder / "1" / "mine_beside.py").write_text("NAME = 'mine '\n")
    (folder / "1" / "json.py").write_text("raise RuntimeError('hidden')\n")
    assert run_json(ready(tmp_path), 1).json() == {0: "mine 1"}


def test_two_handlers_are_two_modules(tmp_path: Path) -> None:
    for name in ("one", "two"):
        python_model(tmp_path, name, f"NAME = {name!r}\nclass Handler:\n" + each("NAME"))
    one, two = ready(tmp_path, "one"), ready(tmp_path, "two")
    assert (run_json(one, 1).json(), run_json(two, 1).json()) == ({0: "one"}, {0: "two"})


def test_tracebacks_show_the_handler_alone_and_end_somewhere(tmp_path: Path) -> None:
    body = (
        "    def predict(self, inputs, parameters):\n        import json\n        try:\n            json.loads('{')\n"
        "        except ValueError as error:\n            raise RuntimeError('outer ' + 'x' * 40000) from error\n"
    )
    failure = only(run_json(predicting(tmp_path, body), 1))
    trace = failure.traceback
    assert trace is not None
    assert len(trace) <= MAX_TRACEBACK
    assert len(failure.message) <= 2000
    short = only(run_json(predicting(tmp_path / "s", body.replace("40000", "4")), 1)).traceback
    assert short is not None
    assert 'File "m/1/handler.py", line 8, in predict' in short
    assert "JSONDecodeError" in short
    for foreign in ("decoder.py", "session.py", str(tmp_path), "workers"):
        assert foreign not in short


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("no file '/home/x/data/words.txt'", "no file 'words.txt'"),
        ("see http://host/a/b for more", "see http://host/a/b for more"),
        ("a/b and /usr/lib/c.so: bad", "a/b and c.so: bad"),
        ("1/2 of 3/4", "1/2 of 3/4"),
    ],
)
def test_messages_have_no_places_of_this_machine(text: str, plain: str) -> None:
    assert told(RuntimeError(text), named=False) == plain


def test_engine_errors(tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    table = helper.make_tensor("table", TensorProto.FLOAT, [2], [1.0, 2.0])
    artifact = graph([node], {"x": (TensorProto.INT64, ["b", 1])}, {"y": (TensorProto.FLOAT, ["b", 1])}, [table])
    onnx_model(tmp_path, "m", artifact)
    payload = rows_payload({"x": np.array([[0], [7]])})
    answered = run(ready(tmp_path), payload, counts=[2])
    error = answered.done.error
    assert error is not None
    assert (error.code, error.stage, error.permanent, error.traceback) == ("engine_error", "run", False, None)
    assert "/onnxruntime" not in error.message
