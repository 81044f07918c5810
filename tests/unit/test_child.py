"""The engine child as a process: what it answers, how it fails, how it ends."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.models.make import make
from tests.unit.children import PATIENCE, Child, json_payload, ragged_payload, rows_payload
from tests.unit.repositories import python_model
from workers.child.calling import read_answers
from workers.wire import Segment

MODELS = Path(__file__).parents[1] / "models"
JSON_MODELS = ("echo", "slow", "raise_if", "exit_if", "hang_if", "nan_if", "need_memory", "poison")


@pytest.fixture(scope="module", autouse=True)
def artifacts() -> None:
    make()


@pytest.mark.parametrize("model", JSON_MODELS)
def test_json_test_models_answer_each_item_with_its_own_id_and_value(model: str) -> None:
    values: list[Any] = [3, "text", None, 1.0, 9007199254740993, -(2**63), {"a": [1]}, 2**70, "é\u2028", [], True]
    items = [{"id": at, "value": value} for at, value in enumerate(values)]
    with Child(MODELS, model) as child:
        assert (child.loaded.batching, child.loaded.max_size) == ("sound", 32)
        answered = child.run(json_payload(items, first=100))
        assert answered.done.failures == ()
        assert answered.json() == {100 + at: item for at, item in enumerate(items)}
        assert [type(answer["value"]) for answer in answered.json().values()] == [type(value) for value in values]
        assert answered.stages == ["predict"]
        assert child.stop() == 0


def test_sum() -> None:
    with Child(MODELS, "sum") as child:
        answered = child.run(json_payload([{"id": 1, "values": [1, 2.5]}, {"id": 2, "values": []}]))
        assert answered.json() == {0: {"id": 1, "value": 3.5}, 1: {"id": 2, "value": 0}}


@pytest.mark.parametrize("model", ["raise_if", "poison"])
def test_a_raise_is_the_batch_s_error_and_alone_the_item_s(model: str) -> None:
    items = [{"id": at, "value": value} for at, value in enumerate((1, 666, 2))]
    payload = json_payload(items)
    with Child(MODELS, model) as child:
        error = child.run(payload).done.error
        assert error is not None
        assert (error.code, error.stage, error.permanent) == ("handler_error", "predict", False)
        assert error.message == "RuntimeError: value 666"
        alone = child.run(payload, segments=[Segment(((1, 2),), 2)]).done
        assert alone.error is None
        (failure,) = alone.failures
        assert (failure.segment, failure.position, failure.code) == (0, 1, "handler_error")
        assert failure.traceback is not None
        assert f"{model}/1/handler.py" in failure.traceback
        assert str(MODELS) not in failure.traceback
        assert child.run(payload, segments=[Segment(((0, 1), (2, 3)), 0)]).json() == {0: items[0], 2: items[2]}


@pytest.mark.parametrize("model", ["exit_if", "poison"])
def test_a_killer_takes_the_process(model: str) -> None:
    with Child(MODELS, model) as child:
        child.send(1, [(json_payload([{"id": 1, "value": 667}]), Segment(((0, 1),), 0))])
        assert child.process.wait(PATIENCE) == 3


def test_a_hang_ends_with_the_pipe() -> None:
    with Child(MODELS, "hang_if") as child:
        child.send(1, [(json_payload([{"id": 1, "value": 668}]), Segment(((0, 1),), 0))])
        assert child.channel.receive() is not None  # started
        child.channel.close()
        assert child.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("model", ["nan_if", "poison"])
def test_nan_travels_as_text(model: str) -> None:
    with Child(MODELS, model) as child:
        answered = child.run(json_payload([{"id": 1, "value": 669}, {"id": 2, "value": 1}]))
        assert answered.json() == {0: {"id": 1, "value": "NaN"}, 1: {"id": 2, "value": 1}}


def test_memory_runs_out_for_the_batch_then_for_the_item_alone() -> None:
    items = [{"id": 1, "value": 0, "bytes": 1}, {"id": 2, "value": 0, "bytes": 2**30}]
    with Child(MODELS, "need_memory") as child:
        error = child.run(json_payload(items)).done.error
        assert error is not None
        assert error.code == "out_of_memory"
        assert child.run(json_payload(items[:1])).json() == {0: {"id": 1, "value": 0}}
        assert child.run(json_payload(items[1:])).done.failures[0].code == "out_of_memory"


def test_slow_sleeps_the_sum() -> None:
    with Child(MODELS, "slow") as child:
        done = child.run(json_payload([{"id": 1, "value": 0, "ms": 30}, {"id": 2, "value": 0, "ms": 20}])).done
        assert 0.05 <= done.engine_seconds <= done.busy_seconds


def test_mlp_rows_of_many_chunks_each_get_their_own() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, 64)).astype(np.float32)
    with Child(MODELS, "mlp") as child:
        assert [tensor.shape for tensor in (*child.loaded.inputs, *child.loaded.outputs)] == [(64,), (10,)]
        assert (child.loaded.max_size, child.loaded.batching) == (64, "sound")
        alone = np.concatenate([_rows(child.run(rows_payload({"x": x[at : at + 1]})), 0) for at in range(40)])
        cuts = [(0, 1), (1, 7), (7, 8), (8, 40)]
        answered = child.run(*(rows_payload({"x": x[a:b]}, first=10 * a) for a, b in cuts))
        assert answered.stages == ["run"]
        for segment, (a, b) in enumerate(cuts):
            ((header, _),) = answered.frames(segment)
            assert (header.kind, header.items, header.attempts) == ("rows", ((10 * a, 10 * a + b - a),), 1)
            np.testing.assert_allclose(_rows(answered, segment), alone[a:b], rtol=1e-5, atol=1e-6)
        some = child.run(rows_payload({"x": x}), segments=[Segment(((3, 5), (38, 40)), 2)])
        ((header, _),) = some.frames(0)
        assert (header.items, header.attempts) == (((3, 5), (38, 40)), 3)
        np.testing.assert_allclose(_rows(some, 0), alone[[3, 4, 38, 39]], rtol=1e-5, atol=1e-6)


def _rows(answered: Any, segment: int, name: str = "y") -> np.ndarray[Any, Any]:
    part = bytes(answered.parts[answered.done.results[segment]])
    return np.stack([answer[name] for answer in read_answers(part)])


def test_ids_and_wanted_outputs_are_kept_by_segment() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    with Child(MODELS, "pad") as child:
        both = rows_payload({"x": x, "mask": np.ones_like(x)}, ids=("doc-1",))
        one = rows_payload({"x": x, "mask": np.ones_like(x)}, outputs=("y",))
        answered = child.run(both, one)
        ((header, _),) = answered.frames(0)
        assert header.ids == ("doc-1",)
        assert [column.name for column in header.columns] == ["y", "centred"]
        assert [column.name for column in answered.frames(1)[0][0].columns] == ["y"]


def test_a25_alone_or_together_the_same() -> None:
    rng = np.random.default_rng(25)
    lengths = rng.permutation(np.arange(1, 129))
    items = [{"x": (rng.standard_normal(n) * 50).astype(np.float32)} for n in lengths]
    with Child(MODELS, "pad") as child:
        alone = [read_answers(bytes(child.run(ragged_payload([item])).parts[0]))[0] for item in items]
        for start in range(0, 128, 32):
            some = items[start : start + 32]
            part = child.run(ragged_payload(some[:20]), ragged_payload(some[20:])).parts
            together = [answer for one in part for answer in read_answers(bytes(one))]
            for item, mine, shared in zip(some, alone[start:], together, strict=False):
                assert shared["centred"].shape == item["x"].shape
                np.testing.assert_allclose(shared["y"], item["x"].astype(np.float64).mean(), rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(shared["y"], mine["y"], rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(shared["centred"], mine["centred"], rtol=1e-4, atol=1e-4)


IDENTITIES = {
    "ident_int64": np.array([[9007199254740993, -(2**63), 2**63 - 1, 0]], np.int64),
    "ident_uint64": np.array([[2**64 - 1, 2**63, 9007199254740993, 0]], np.uint64),
    "ident_fp16": np.array([[65504, -0.0, np.nan, np.inf]], np.float16),
    "ident_bf16": np.frombuffer(b"\x80\x3f\x00\x80\xc0\x7f\x80\x7f", ml_dtypes.bfloat16).reshape(1, 4),
    "ident_bool": np.array([[True, False, True, True]]),
    "ident_bytes": np.array([[b"", b"\x00a", "\U0001f600".encode(), b"\xff\xfe"]], object),
}


@pytest.mark.parametrize("model", IDENTITIES)
def test_identities_are_exact(model: str) -> None:
    x = IDENTITIES[model]
    send = rows_payload if model != "ident_bytes" else lambda a: ragged_payload([{"x": a["x"][0]}])
    with Child(MODELS, model) as child:
        assert child.loaded.batching == "sound"
        answered = child.run(send({"x": x}), send({"x": x}))
        for segment in (0, 1):
            (answer,) = read_answers(bytes(answered.parts[answered.done.results[segment]]))
            assert answer["y"].dtype == x.dtype
            if model == "ident_bytes":
                assert answer["y"].tolist() == x[0].tolist()
            else:
                assert answer["y"].tobytes() == x[0].tobytes()


def test_two_batches_deep() -> None:
    with Child(MODELS, "slow") as child:
        for number in (1, 2, 3):
            payload = json_payload([{"id": number, "value": number, "ms": 20}])
            child.send(number, [(payload, Segment(((0, 1),), 0))])
        answers = [child.receive() for _ in range(3)]
        assert [answered.done.id for answered in answers] == [1, 2, 3]
        assert [answered.json()[0]["value"] for answered in answers] == [1, 2, 3]


def test_stop_finishes_what_was_sent() -> None:
    with Child(MODELS, "slow") as child:
        child.send(1, [(json_payload([{"id": 1, "value": 5, "ms": 100}]), Segment(((0, 1),), 0))])
        assert child.stop() == 0
        assert child.receive().json() == {0: {"id": 1, "value": 5}}


def test_signals_are_the_supervisor_s() -> None:
    with Child(MODELS, "slow") as child:
        child.send(1, [(json_payload([{"id": 1, "value": 5, "ms": 100}]), Segment(((0, 1),), 0))])
        assert child.channel.receive() is not None  # started
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(child.process.pid, number)
        assert child.receive().json() == {0: {"id": 1, "value": 5}}


NOISY = """
import os, subprocess, sys
class Handler:
    def predict(self, inputs, parameters):
        print("hello from predict")
        os.write(1, b"raw bytes\\n")
        sys.stderr.write("to stderr\\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        return inputs
"""


def test_what_a_handler_prints_goes_to_the_log_alone(tmp_path: Path) -> None:
    python_model(tmp_path, "noisy", NOISY, extra="batch: {max_size: 1}\n")
    with Child(tmp_path, "noisy") as child:
        assert child.run(json_payload([1])).json() == {0: 1}
        child.stop()
        printed = child.process.stdout.read().decode()  # type: ignore[union-attr]
        for line in ("hello from predict", "raw bytes", "to stderr", "from a child"):
            assert line in printed.splitlines()


FORKING = """
import os, time
class Handler:
    def predict(self, inputs, parameters):
        if os.fork() == 0:
            os.close(0); os.close(1); os.close(2)
            time.sleep(3)
            os._exit(0)
        return inputs
"""


def test_a_handler_s_own_process_does_not_hold_the_pipe(tmp_path: Path) -> None:
    python_model(tmp_path, "forking", FORKING, extra="batch: {max_size: 1}\n")
    with Child(tmp_path, "forking", self_test=False) as child:
        child.run(json_payload([1]))
        began = time.monotonic()
        os.kill(child.process.pid, signal.SIGKILL)
        assert child.channel.receive() is None
        assert time.monotonic() - began < 2


def test_parameters_are_merged_and_never_mixed(tmp_path: Path) -> None:
    body = (
        "class Handler:\n    def predict(self, inputs, parameters):\n        return [[i, parameters] for i in inputs]\n"
    )
    python_model(tmp_path, "p", body, extra="parameters: {a: 1, b: 1, c: 1}\nsample: [1, 2, 3]\n")
    with Child(tmp_path, "p") as child:
        plain = json_payload([1])
        given = json_payload([2, 3, 4], parameters={"b": 2, "c": 2}, own={1: {"c": 3}})
        answered = child.run(plain, given)
        assert answered.json(0) == {0: [1, {"a": 1, "b": 1, "c": 1}]}
        assert answered.json(1) == {
            0: [2, {"a": 1, "b": 2, "c": 2}],
            1: [3, {"a": 1, "b": 2, "c": 3}],
            2: [4, {"a": 1, "b": 2, "c": 2}],
        }


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "1" / "handler.py").write_text("import nope_not_here\n"), "m/1/handler.py:1: import: Module"),
        (lambda f: (f / "1" / "handler.py").write_text("def broken(:\n"), "m/1/handler.py:1: import: SyntaxError"),
        (lambda f: (f / "1" / "handler.py").write_text("x = 1\n"), "m/1/handler.py: has no class Handler"),
        (lambda f: (f / "1" / "handler.py").write_text("raise SystemExit(3)\n"), "m/1/handler.py:1: import: System"),
        (lambda f: (f / "1" / "handler.py").unlink(), "m: needs a handler.py with a class Handler"),
        (lambda f: (f / "model.yaml").write_text("schema: 1\n"), "m/model.yaml:1: name is missing"),
        (lambda f: (f / "model.yaml").unlink(), "m/model.yaml: m/model.yaml does not exist"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_loaded_says_why_and_ends(
    tmp_path: Path, spoil: Callable[[Path], Any], says: str
) -> None:
    folder = python_model(
        tmp_path, "m", "class Handler:\n    def predict(self, inputs, parameters):\n        return inputs\n"
    )
    spoil(folder)
    with Child(tmp_path, "m") as child:
        assert says in child.error
        assert str(tmp_path) not in child.error
        assert child.process.wait(PATIENCE) == 1


def test_engines_to_come_say_so(tmp_path: Path) -> None:
    for engine in ("tensorrt", "openvino", "remote"):
        folder = python_model(tmp_path, engine, "", kind="tensors")
        artifact = "" if engine == "remote" else "artifact: {path: m.plan}\n"
        (folder / "1" / "m.plan").write_bytes(b"x")
        (folder / "model.yaml").write_text(f"schema: 1\nname: {engine}\nengine: {engine}\ninput: tensors\n{artifact}")
        with Child(tmp_path, engine) as child:
            assert f"engine {engine} is not available yet" in child.error
