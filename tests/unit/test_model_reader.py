"""model.yaml: what is read, and that nothing else is accepted."""

from datetime import timedelta
from pathlib import Path

import pytest

from jobs.errors import ModelError
from jobs.models import reader
from jobs.models.spec import Artifact, Axis, ModelSpec, Tensor

FULL = """\
schema: 1
name: embed
engine: onnxruntime
artifact: {path: model.onnx, sha256: "%s"}
default_version: 2
pool: gpu
input: json
inputs:
  input_ids:      {datatype: INT64, shape: [length], pad: 0}
  attention_mask: {datatype: INT64, shape: [length], pad: 0, mask_for: input_ids}
outputs: {sentence_embedding: {datatype: FP32, shape: [384]}}
axes: {length: {min: 1, max: 512}}
batch: {max_size: 32, preferred_sizes: [8, 16], max_queue_delay_ms: 2.5, max_padded_elements: 65536,
        p99_objective_ms: null}
timeouts: {run_seconds: 20}
retry: {max_attempts: 2}
instances: 1
handler: {concurrency: 4, mode: thread}
parameters: {normalize: true, threshold: 1e-5}
non_finite: fail
unavailable: fail
sample: [{text: "hello"}, {text: "a longer one"}, {text: ""}]
""" % ("ab" * 32)
LEAST = "schema: 1\nname: embed\nengine: python\ninput: json\n"


def read(text: str, versions: tuple[str, ...] = ("1",)) -> list[ModelSpec]:
    return reader.read(text.encode(), Path("/models/embed"), versions)


def refusal(text: str, versions: tuple[str, ...] = ("1",)) -> str:
    with pytest.raises(ModelError) as caught:
        read(text, versions)
    return str(caught.value)


def test_everything_there_is() -> None:
    first, second = read(FULL, ("1", "2"))
    assert (first.version, second.version, first.default_version) == ("1", "2", "2")
    assert first.key == ("embed", "1")
    assert first.artifact == Artifact("model.onnx", "ab" * 32)
    assert first.inputs == (
        Tensor("input_ids", "INT64", ("length",), 0),
        Tensor("attention_mask", "INT64", ("length",), 0, "input_ids"),
    )
    assert first.outputs == (Tensor("sentence_embedding", "FP32", (384,)),)
    assert first.axes == {"length": Axis(1, 512)}
    assert first.batch.preferred_sizes == (8, 16)
    assert first.batch.max_queue_delay == timedelta(milliseconds=2.5)
    assert first.batch.max_padded_elements == 65536
    assert first.batch.p99_objective is None
    assert (first.pool, first.run_timeout, first.max_attempts) == ("gpu", timedelta(seconds=20), 2)
    assert (first.handler_concurrency, first.handler_mode) == (4, "thread")
    assert first.parameters == {"normalize": True, "threshold": 1e-5}
    assert (first.non_finite, first.unavailable) == ("fail", "fail")
    assert first.sample == ({"text": "hello"}, {"text": "a longer one"}, {"text": ""})


def test_least_has_the_documented_defaults() -> None:
    (spec,) = read(LEAST, ("7",))
    assert spec == ModelSpec("embed", "7", Path("/models/embed"), "python", "json", "7")


def test_default_version_is_the_highest_where_none_is_named() -> None:
    assert {spec.default_version for spec in read(LEAST, ("1", "2", "10"))} == {"10"}


def test_one_sample_is_a_list_of_one() -> None:
    assert read(LEAST + "sample: {text: hello}\n")[0].sample == ({"text": "hello"},)


def test_yaml_words_are_text() -> None:
    parameters = read(LEAST + "parameters: {a: no, b: 2024-01-01, c: 1:30, d: 010, e: ~, f: 'true'}\n")[0].parameters
    assert parameters == {"a": "no", "b": "2024-01-01", "c": "1:30", "d": 10, "e": None, "f": "true"}


def test_a_hash_for_each_version() -> None:
    text = LEAST.replace("python", "onnxruntime") + "artifact: {path: a/b.onnx, sha256: {1: %s, 2: %s}}\n"
    first, second = read(text % (f"'{'0' * 64}'", f"'{'F' * 64}'"), ("1", "2"))
    assert first.artifact == Artifact("a/b.onnx", "0" * 64)
    assert second.artifact == Artifact("a/b.onnx", "f" * 64)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("batch: {max_siz: 3}", "unknown key batch.max_siz; did you mean max_size?"),
        ("shema: 1", "unknown key shema"),
        ("handler: {concurrency: 2, mode: thread}", "handler.concurrency is for preprocess and postprocess"),
        ("handler: {mode: fork}", "handler.mode must be one of thread, process"),
        ("batch: {max_size: 0}", "batch.max_size must be from 1 to"),
        ("batch: {max_size: '8'}", "batch.max_size must be a whole number, not '8'"),
        ("batch: {max_size: true}", "batch.max_size must be a whole number, not True"),
        ("batch: {max_size: 8, preferred_sizes: [8, 4]}", "batch.preferred_sizes must be ascending"),
        ("batch: {max_size: 8, preferred_sizes: [9]}", "batch.preferred_sizes must be from 1 to 8, not 9"),
        ("batch: [1]", "batch must be a mapping"),
        ("batch: {max_queue_delay_ms: -1}", "must be from 0 to"),
        ("timeouts: {run_seconds: .inf}", "a number must be finite"),
        ("timeouts: {run_seconds: soon}", "timeouts.run_seconds must be a number, not 'soon'"),
        ("retry: {max_attempts: 0}", "retry.max_attempts must be from 1"),
        ("default_version: 3", "default_version is 3, but there is no such folder; there is 1"),
        ("default_version: 1.5", "must be a version"),
        ("non_finite: null_them", "non_finite must be one of string, fail, not 'null_them'"),
        ("parameters: [1]", "parameters must be a mapping"),
        ("pool: ../x", "pool must be of a-z"),
        ("inputs: {x: {datatype: FP32, shape: [4]}}", "inputs is not used by engine python with `input: json`"),
        ("artifact: {path: model.onnx}", "artifact is not used by engine python"),
        ("tensorrt: {precision: fp32}", "tensorrt is only for `engine: tensorrt`"),
        ("parameters: {a: 1, a: 2}", "'a' is given twice"),
        ("? [1]\n: 2", "a key must be a plain word"),
    ],
)
def test_refused_with_its_line(line: str, says: str) -> None:
    text = refusal(LEAST + line + "\n")
    assert text.startswith("embed/model.yaml:5: ")
    assert says in text


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ("inputs: {x: {datatype: FP32, shape: [n]}}", "inputs.x.shape names axis 'n'; declare it"),
        ("inputs: {x: {datatype: FP32, shape: [-1]}}", "has -1; give the dimension a name"),
        ("inputs: {x: {datatype: FLOAT, shape: [1]}}", "inputs.x.datatype must be one of BF16"),
        ("inputs: {x: {shape: [1]}}", "inputs.x.datatype is missing"),
        ("inputs: {x: {datatype: FP32}}", "inputs.x.shape is missing"),
        ("inputs: {x: {datatype: FP32, shape: 4}}", "must be a list"),
        ("inputs: {x: {datatype: INT8, shape: [1], pad: 200}}", "inputs.x.pad must be a value of INT8, not 200"),
        ("inputs: {x: {datatype: BOOL, shape: [1], pad: 0}}", "inputs.x.pad must be a value of BOOL, not 0"),
        ("inputs: {x: {datatype: FP32, shape: [1], mask_for: z}}", "inputs.x masks 'z', which is no other input"),
        ("outputs: {y: {datatype: FP32, shape: [1], pad: 0}}", "unknown key outputs.y.pad"),
        ("axes: {n: {min: 5, max: 4}}", "axes.n.min is 5, above max 4"),
        ("axes: {n: {least: 5}}", "unknown key axes.n.least"),
    ],
)
def test_tensors_are_checked(tensors: str, says: str) -> None:
    text = LEAST.replace("python", "onnxruntime").replace("json", "tensors") + "artifact: {path: m.onnx}\n"
    assert says in refusal(f"{text}{tensors}\n")


def test_processes_for_a_handler_are_not_there_yet() -> None:
    text = LEAST.replace("python", "onnxruntime") + "artifact: {path: m.onnx}\nhandler: {concurrency: 2}\n"
    assert "model.yaml:6: handler.concurrency above 1 with mode process is not available yet" in refusal(text)


def test_python_with_tensors_must_declare_them() -> None:
    assert "needs `inputs` and `outputs`" in refusal(LEAST.replace("json", "tensors"))


def test_all_findings_at_once_each_with_its_line() -> None:
    text = refusal("schema: 2\nname: embed\nengine: onnx\nnope: 1\ninput: json\nbatch: {max_size: x}\n")
    lines = text.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"embed/model.yaml:{n}" for n in (1, 3, 4, 6)]
    assert "schema must be 1" in lines[0]
    assert "engine must be one of onnxruntime, python" in lines[1]


def test_missing_keys_say_what_to_write() -> None:
    text = refusal("name: embed\n")
    for hint in ("schema is missing; write `schema: 1`", "engine is missing; one of", "input is missing; write"):
        assert hint in text


@pytest.mark.parametrize("name", ["other", "Embed", "../embed", "embed\\x", "embed%2e"])
def test_name_must_be_the_folder_s(name: str) -> None:
    assert "they must be the same" in refusal(LEAST.replace("name: embed", f"name: '{name}'"))


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "a\\b", "a\\0b", "%2e%2e%2fx", ".", "", "a//b", "./a", " "]
)
def test_s5_artifact_path_stays_in_its_version(path: str) -> None:
    quoted = '"' + path.replace("\\b", "\\\\b") + '"'
    text = LEAST.replace("python", "onnxruntime") + f"artifact: {{path: {quoted}}}\n"
    assert refusal(text).startswith("embed/model.yaml:5: artifact.path ")


@pytest.mark.parametrize(
    "line",
    [
        "parameters: !!python/object/apply:os.system ['touch CANARY']",
        "sample: !!python/name:os.system ''",
        "parameters: !custom {a: 1}",
        "parameters: {a: !!str 5}",
        "parameters: {a: !!binary aGVsbG8=}",
    ],
)
def test_s4_yaml_tags_are_refused_and_run_nothing(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = refusal(LEAST + line + "\n")
    assert text.startswith("embed/model.yaml:5: ")
    assert "tags" in text
    assert list(tmp_path.iterdir()) == []


def test_anchors_are_refused_so_nothing_expands() -> None:
    bomb = LEAST + "parameters:\n  a: &a [x, x]\n  b: &b [*a, *a]\n"
    assert "embed/model.yaml:6: YAML anchors and aliases" in refusal(bomb)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"- a\n- b\n", "the document must be a mapping"),
        (b"a: [1\n", "is not YAML"),
        (b"a: 1\n---\nb: 2\n", "is not YAML"),
        (b"a: 1\n\tb: 2\n", "is not YAML"),
        (b"a: 1\nb: \xff\n", "model.yaml:2: is not UTF-8 text"),
        (b"a: " + b"[" * 5000, "nested deeper"),
        (b"a: " + b"[" * 80 + b"]" * 80, "nested deeper"),
        (b"a: '" + b"x" * 300_000 + b"'", "is larger than"),
        (b"a: \x00", "is not YAML"),
    ],
)
def test_what_is_no_document(data: bytes, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        reader.read(data, Path("/models/embed"), ("1",))
    assert says in str(caught.value)
    assert caught.value.where.startswith("embed/model.yaml")
