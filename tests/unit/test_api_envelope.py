"""The validator: what is right passes as it is, what is wrong is found at once and by name."""

import json
import time
from typing import Any

import pytest

from api.problems import Problem
from api.submission import Builder, Draft, Request
from jobs import frames
from jobs.clock import system_clock
from jobs.models.catalog import Catalog
from jobs.settings import Settings
from jobs.states import Priority
from tests.integration.api_kit import models


@pytest.fixture(scope="module")
def builder() -> Builder:
    catalog = Catalog()
    catalog.replace_all(models())
    return Builder(catalog, Settings(), system_clock)


def build(builder: Builder, body: Any, **fields: Any) -> Draft:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return builder.build(Request("acme", content, **fields))


def refused(builder: Builder, body: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        build(builder, body)
    return caught.value


def found(problem: Problem) -> dict[str, str]:
    return {finding.pointer: finding.code for finding in problem.findings}


def test_a_single_input_is_one_chunk_with_its_verbatim_json(builder: Builder) -> None:
    job = build(builder, b'{"model":"echo","input": {"b":1.0,  "a":[1e2]} }').job
    assert job.single
    assert (job.model, job.version, job.priority, job.total) == ("echo", "1", Priority.NORMAL, 1)
    header, parts = frames.unpack_payload(job.chunks[0].payload)  # type: ignore[arg-type]
    assert header == frames.PayloadHeader("json", ((0, 1),))
    assert [bytes(part) for part in parts] == [b'{"b":1.0,  "a":[1e2]}']


def test_items_are_cut_at_max_size_and_keep_ids_and_parameters(builder: Builder) -> None:
    items: list[dict[str, Any]] = [{"input": index} for index in range(100)]
    items[70] = {"input": 70, "id": "seventy", "parameters": {"k": 1}}
    job = build(builder, {"model": "echo@2", "items": items, "parameters": {"p": 2}}).job
    assert job.version == "2"
    assert not job.single
    assert [chunk.items for chunk in job.chunks] == [((0, 64),), ((64, 100),)]
    header, parts = frames.unpack_payload(job.chunks[1].payload)  # type: ignore[arg-type]
    assert header.ids is not None
    assert header.ids[5:7] == ("69", "seventy")
    assert {at: bytes(raw) for at, raw in header.item_parameters.items()} == {6: b'{"k": 1}'}
    assert bytes(header.parameters) == b'{"p": 2}'
    assert bytes(parts[0]) == b"64"


def test_tensor_items_become_rows(builder: Builder) -> None:
    items = [{"input": {"x": [index, 0, 0, 0.5]}} for index in range(3)]
    job = build(builder, {"model": "mlp", "items": items, "outputs": ["y"]}).job
    header, parts = frames.unpack_payload(job.chunks[0].payload)  # type: ignore[arg-type]
    assert header.kind == "rows"
    assert header.columns == (frames.Column("x", "FP32", (4,)),)
    assert header.outputs == ("y",)
    assert len(parts[0]) == 3 * 16


def test_chunks_stay_below_the_byte_limit_and_larger_items_stand_alone(builder: Builder) -> None:
    sizes = [100_000, 100_000, 100_000, 300_000, 10]
    draft = build(builder, {"model": "echo", "items": [{"input": "x" * size} for size in sizes]})
    assert [chunk.items for chunk in draft.job.chunks] == [((0, 2),), ((2, 3),), ((3, 4),), ((4, 5),)]
    assert draft.large == (2,)
    limit = Settings().limits.inline_bytes
    for position, chunk in enumerate(draft.job.chunks):
        assert isinstance(chunk.payload, bytes)
        assert (len(chunk.payload) > limit + 1000) == (position in draft.large)


def test_a_large_item_takes_its_id_along(builder: Builder) -> None:
    draft = build(builder, {"model": "echo", "items": [{"input": 1}, {"id": "big", "input": "x" * 300_000}]})
    assert draft.large == (1,)
    assert draft.job.chunks[1].ids == ("big",)


def test_everything_wrong_is_found_at_once(builder: Builder) -> None:
    problem = refused(
        builder,
        {
            "model": "nothing",
            "items": [{"input": 1, "id": "a"}, {"inptu": 1}, {"input": 2, "id": "a"}, {"input": 3, "id": 3}, 7],
            "colour": "red",
            "priority": "urgent",
            "metadata": {"k": 1},
            "not_before": "2026-11-30T17:00:00",
            "timeouts": {"queue_seconds": -1, "run_minutes": 1},
            "webhook": {"url": "http://x"},
            "max_failed_ratio": 0.5,
        },
    )
    assert problem.type.status == 400
    codes = found(problem)
    assert codes["/model"] == "unknown_model"
    assert codes["/items/1/inptu"] == "unknown_field"
    assert codes["/items/2/id"] == "duplicate_id"
    assert codes["/items/3/id"] == "type"
    assert codes["/items/4"] == "type"
    assert codes["/colour"] == "unknown_field"
    assert codes["/priority"] == "type"
    assert codes["/metadata"] == "type"
    assert codes["/not_before"] == "time"
    assert codes["/timeouts/run_minutes"] == "unknown_field"
    assert codes["/webhook"] == codes["/max_failed_ratio"] == "not_available"
    assert {finding.index for finding in problem.findings if finding.pointer.startswith("/items/")} == {1, 2, 3, 4}
    assert "4 of 5 items are invalid" in problem.detail
    assert "nothing was written" in problem.detail


def test_wrong_tensors_are_found_item_by_item(builder: Builder) -> None:
    items = [{"input": {"x": [1, 2, 3, 4]}}, {"input": {"x": [1, 2, 3]}}, {"input": {"z": 1}}, {"input": 5}]
    problem = refused(builder, {"model": "mlp", "items": items})
    codes = found(problem)
    assert codes["/items/1/input/x"] == "shape"
    assert codes["/items/2/input/z"] == "unknown"
    assert codes["/items/2/input/x"] == "missing"
    assert codes["/items/3/input"] == "type"
    assert {finding.index for finding in problem.findings} == {1, 2, 3}
    assert found(refused(builder, {"model": "mlp", "input": {"x": [1]}})) == {"/input/x": "shape"}


def test_indexes_stay_right_beside_a_broken_item(builder: Builder) -> None:
    items = [{"inptu": 1}, {"input": {"x": [1, 2, 3, 4]}}, {"input": {"x": ["a"]}}]
    problem = refused(builder, {"model": "mlp", "items": items})
    assert {finding.index for finding in problem.findings} == {0, 2}
    assert any(finding.pointer.startswith("/items/2/input/x") for finding in problem.findings)


def test_at_most_a_hundred_findings(builder: Builder) -> None:
    problem = refused(builder, {"model": "echo", "items": [{"bad": 1}] * 500})
    assert len(problem.findings) == 100


def test_a20_an_unknown_output_names_the_known_ones(builder: Builder) -> None:
    problem = refused(builder, {"model": "mlp", "input": {"x": [1, 2, 3, 4]}, "outputs": ["y", "potato"]})
    (finding,) = problem.findings
    assert (finding.pointer, finding.code) == ("/outputs/1", "unknown_output")
    assert "y" in finding.detail
    assert found(refused(builder, {"model": "echo", "input": 1, "outputs": ["y"]})) == {"/outputs": "not_for_json"}
    assert found(refused(builder, {"model": "mlp", "input": {"x": [1, 2, 3, 4]}, "outputs": []})) == {
        "/outputs": "empty"
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("webhook", {"url": "https://x"}),
        ("sequence_id", "s"),
        ("max_failed_ratio", 1.0),
        ("ids", ["a"]),
        ("tensors", {"inputs": []}),
        ("retry", {"max_attempts": 2, "initial_seconds": 1}),
    ],
)
def test_what_does_not_exist_yet_is_refused_by_name(builder: Builder, field: str, value: object) -> None:
    body = {"model": "echo", "input": 1, field: value}
    problem = refused(builder, body)
    assert any(finding.code == "not_available" and field in finding.pointer for finding in problem.findings)
    assert all("not available yet" in f.detail for f in problem.findings if f.code == "not_available")


def test_null_asks_for_nothing(builder: Builder) -> None:
    nothing = dict.fromkeys(
        ["webhook", "sequence_id", "not_before", "timeouts", "retry", "metadata", "priority", "parameters", "outputs"]
    )
    assert build(builder, {"model": "echo", "input": None, **nothing}).job.total == 1


def test_exactly_one_form(builder: Builder) -> None:
    assert refused(builder, {"model": "echo"}).findings[0].code == "exactly_one"
    both = refused(builder, {"model": "echo", "input": 1, "items": [{"input": 1}]})
    assert "exactly_one" in found(both).values()


def test_a08_no_items_is_refused(builder: Builder) -> None:
    problem = refused(builder, {"model": "echo", "items": []})
    assert problem.type.status == 400
    assert found(problem) == {"/items": "empty"}


def test_too_many_items_come_before_other_findings(builder: Builder) -> None:
    problem = refused(builder, {"model": "nothing", "colour": 1, "items": [{"bad": 1}] * 1001})
    assert problem.code == "too_large"
    assert "1000" in problem.detail
    assert refused(builder, {"model": "echo", "items": [{"input": 1}] * 1001}).code == "too_large"
    assert build(builder, {"model": "echo", "items": [{"input": 1}] * 1000}).job.total == 1000


def test_unknown_models_and_versions_name_the_known_ones(builder: Builder) -> None:
    assert "echo" in refused(builder, {"model": "eco", "input": 1}).findings[0].detail
    detail = refused(builder, {"model": "echo@9", "input": 1}).findings[0].detail
    assert "9" in detail
    assert "1, 2" in detail
    assert found(refused(builder, {"input": 1})) == {"/model": "required"}
    assert found(refused(builder, {"model": "echo@", "input": 1})) == {"/model": "unknown_model"}


def test_a_model_never_loaded_is_unavailable(builder: Builder) -> None:
    assert refused(builder, {"model": "cold", "input": 1}).code == "unavailable"
    assert refused(builder, {"model": "cold", "input": 1, "colour": 1}).code == "invalid_input"


def test_metadata_and_ids_have_limits(builder: Builder) -> None:
    many = {f"k{n}": "v" for n in range(17)}
    assert found(refused(builder, {"model": "echo", "input": 1, "metadata": many})) == {"/metadata": "too_many"}
    for pairs in ({"k" * 65: "v"}, {"k": "v" * 513}, {"": "v"}):
        assert "length" in found(refused(builder, {"model": "echo", "input": 1, "metadata": pairs})).values()
    for name in ("x" * 129, ""):
        problem = refused(builder, {"model": "echo", "items": [{"input": 1, "id": name}]})
        assert found(problem) == {"/items/0/id": "length"}
    # An item's default id is its index, and that may be taken.
    clash = refused(builder, {"model": "echo", "items": [{"input": 1, "id": "1"}, {"input": 2}]})
    assert found(clash) == {"/items/1/id": "duplicate_id"}


def test_parameters_are_objects_of_bounded_size(builder: Builder) -> None:
    assert found(refused(builder, {"model": "echo", "input": 1, "parameters": [1]})) == {"/parameters": "type"}
    large = {"k": "x" * 70_000}
    assert found(refused(builder, {"model": "echo", "input": 1, "parameters": large})) == {"/parameters": "too_large"}
    problem = refused(builder, {"model": "echo", "items": [{"input": 1, "parameters": 3}]})
    assert found(problem) == {"/items/0/parameters": "type"}


def test_three_clocks(builder: Builder) -> None:
    body = {
        "model": "echo",
        "input": 1,
        "not_before": "2999-01-01T00:00:00Z",
        "timeouts": {"queue_seconds": 600, "run_seconds": 0.5, "total_seconds": 3600},
    }
    assert found(refused(builder, body)) == {"/not_before": "range"}
    body["not_before"] = "2020-01-01T00:00:00Z"
    job = build(builder, body).job
    assert job.not_before is None
    assert job.run_timeout.total_seconds() == 0.5
    assert job.queue_deadline_at is not None
    assert job.deadline_at is not None
    assert (job.queue_deadline_at - job.created_at).total_seconds() == 600
    assert (job.deadline_at - job.created_at).total_seconds() == 3600
    for value in (0, -1, 1e300, 1e9):
        problem = refused(builder, {"model": "echo", "input": 1, "timeouts": {"run_seconds": value}})
        assert found(problem) == {"/timeouts/run_seconds": "range"}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"model":"echo","model":"echo","input":1}', "/model"),
        (b'{"model":"echo","input":1,"input":2}', "/input"),
        (b'{ "model" : "echo" , "input" : 1 , "priority":"low","priority"\n:"high"}', "/priority"),
        (b'{"mod\\u0065l":"echo","model":"echo","input":1}', "/model"),
        (b'{"model":"echo","items":[{"input":1}],"items":[{"input":1}]}', "/items"),
        (b'{"model":"echo","items":[{"input":1},{"input":1,"input":2}]}', "/items/1/input"),
        (b'{"model":"echo","items":[{"input":1,"id":"a","id":"b"}]}', "/items/0/id"),
        (b'{"model":"echo","items":[{"input":1,"parameters":{},"parameters":{"a":1}}]}', "/items/0/parameters"),
        (b'{"model":"echo","items":[{"input":1,"inp\\u0075t":"x"}]}', "/items/0/input"),
        (b'{"model":"echo","input":1,"colour":1,"colour":2}', "/colour"),
    ],
)
def test_repeated_keys_are_refused(builder: Builder, body: bytes, pointer: str) -> None:
    assert any(f.code == "duplicate_key" and f.pointer == pointer for f in refused(builder, body).findings)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"echo","input":{"model":1,"input":{"input":2,"id":"id","items":[]}}}',
        b'{"model":"echo","items":[{"id":"id","input":{"id":17,"input":"\\"input\\":"}},{"input":{"parameters":{}}}]}',
        b'{"model":"echo","items":[{"input":{"a":1,"a":2}}],"metadata":{"model":"items","input":"x"}}',
        b'{"model":"echo","metadata":{"x":"\\u0041"},"input":"\\u0041"}',
        '{"model":"echo","input":"\u00fc\U0001f600"}'.encode(),
        b' {"model":"echo","input":1} \n',
    ],
)
def test_keys_inside_inputs_are_the_models_business(builder: Builder, body: bytes) -> None:
    assert build(builder, body).job.total >= 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b'{"model":"echo","input":NaN}',
        b'{"model":"echo","input":[1,-Infinity]}',
        b'{"model":"echo","input":1e400}',
        b'{"model":"echo","input":' + b"1" * 5000 + b"}",
        b'{"model":"echo","items":[{"input":1},{"input":[' + b"9" * 5000 + b"]}]}",
        b'{"model":"echo","input":"\xff"}',
        b'{"model":"echo","input":"\xed\xa0\x80"}',
        b'{"model":"echo","input":"\\ud800"}',
        b'{"model":"echo","input":1}x',
        b'\xef\xbb\xbf{"model":"echo","input":1}',
        b"[" * 1_000_000,
        b'{"model":"echo","input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"echo","items":[{"input":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}]}",
        b'{"model":"echo","parameters":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b',"input":1}',
        b'{"model":"mlp","input":{"x":[1,2,3,1e400]}}',
        b'{"model":"mlp","input":{"x":[1,2,3,' + b"1" * 5000 + b"]}}",
        b'{"model":"mlp","input":{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
        b'{"model":"echo","input":[' + b"[]," * 500_000 + b"1e400]}",
        b'{"model":"echo","input":["' + b"x" * 2_000_000 + b'",' + b"1" * 5000 + b"]}",
        "{}".encode("utf-16"),
    ],
)
def test_s6_bombs_are_refused_quickly(builder: Builder, body: bytes) -> None:
    began = time.monotonic()
    assert refused(builder, body).type.status == 400
    assert time.monotonic() - began < 2


def test_results_expiry_attempts_and_traceparent(builder: Builder) -> None:
    body = {"model": "echo", "input": 1, "results_expire_after_seconds": 60, "retry": {"max_attempts": 1}}
    job = build(builder, body, traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01").job
    assert job.results_kept is not None
    assert job.results_kept.total_seconds() == 60
    assert job.max_attempts == 1
    assert job.traceparent is not None
    for attempts in (0, 101, "3"):
        problem = refused(builder, {"model": "echo", "input": 1, "retry": {"max_attempts": attempts}})
        assert set(found(problem)) == {"/retry/max_attempts"}


def test_large_inputs_are_checked_without_a_false_alarm(builder: Builder) -> None:
    number = "1" * 400 + "e" + "9" * 5
    body = json.dumps({"model": "echo", "input": ["x" * 1_100_000, number, f'"{number}', 1e308, 10**400]})
    assert build(builder, body.encode()).job.total == 1
