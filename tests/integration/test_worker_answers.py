"""What a worker answers, item by item, to jobs of many sizes and forms."""

import threading
from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest

from jobs.records import NewChunk
from jobs.states import JobState
from tests.integration.yard import Yard
from tests.integration.yard_jobs import Answer, echoed, json_job, new_job, ragged_job, rows_job
from tests.models.nets import masked_mean, mlp
from tests.unit.children import json_payload


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard"), "echo", "mlp", "pad") as made:
        yield made


def test_many_jobs_of_many_sizes_are_each_answered(yard: Yard) -> None:
    jobs = [json_job("echo", [f"{number}-{at}" for at in range(1 + number % 90)]) for number in range(200)]
    ended = yard.run(*jobs)
    assert {job.state for job in ended} == {JobState.SUCCEEDED}
    for number, job in enumerate(jobs):
        assert yard.answers(job) == echoed([f"{number}-{at}" for at in range(1 + number % 90)])
    assert all(yard.finals[job.id] == 1 for job in jobs)
    yard.until_nothing_is_held()
    assert all(yard.terminal_events(job) == 1 for job in jobs[:20])


def test_a21_single_rows_at_once_each_get_their_own_answer(yard: Yard) -> None:
    x = np.random.default_rng(3).standard_normal((1000, 64)).astype(np.float32)
    right = onnxruntime.InferenceSession(mlp(), providers=["CPUExecutionProvider"]).run(["y"], {"x": x})[0]
    jobs = [rows_job("mlp", x[at : at + 1], single=True) for at in range(1000)]
    before = yard.supervisor.stats("mlp", "1")
    threads = [threading.Thread(target=yard.submit, args=jobs[part::3]) for part in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yard.wait(*jobs)
    for at, job in enumerate(jobs):
        answers = yard.answers(job)
        assert list(answers) == [0]
        assert answers[0].output["y"].shape == (10,)
        np.testing.assert_allclose(answers[0].output["y"], right[at], rtol=1e-4, atol=1e-5)
    stats = yard.supervisor.stats("mlp", "1")
    assert stats.batch_items - before.batch_items == 1000
    assert stats.batches - before.batches < 1000, "nothing was batched"


def test_a23_more_rows_than_a_batch_holds_come_back_in_order(yard: Yard) -> None:
    x = np.random.default_rng(4).standard_normal((200, 64)).astype(np.float32)
    right = onnxruntime.InferenceSession(mlp(), providers=["CPUExecutionProvider"]).run(["y"], {"x": x})[0]
    job = rows_job("mlp", x)
    yard.run(job)
    answers = yard.answers(job)
    np.testing.assert_allclose([answers[at].output["y"] for at in range(200)], right, rtol=1e-4, atol=1e-5)


def test_a25_alone_or_together_the_same_answer(yard: Yard) -> None:
    rng = np.random.default_rng(5)
    rows = [rng.standard_normal(length).astype(np.float32) for length in rng.permutation(np.arange(1, 129))]
    together = [ragged_job("pad", rows[at : at + 32]) for at in range(0, 128, 32)]
    yard.run(*together)
    lone = [ragged_job("pad", [row]) for row in rows[::8]]
    for job in lone:  # one after another: nothing to be batched with
        yard.run(job)
    session = onnxruntime.InferenceSession(masked_mean(), providers=["CPUExecutionProvider"])
    got = [yard.answers(job)[at].output for job in together for at in range(32)]
    for row, answer in zip(rows, got, strict=True):
        feeds = {"x": row[np.newaxis], "mask": np.ones((1, len(row)), np.float32)}
        mean, centred = session.run(["y", "centred"], feeds)
        np.testing.assert_allclose(answer["y"], mean[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(answer["centred"], centred[0], rtol=1e-4, atol=1e-5)
    for job, answer in zip(lone, got[::8], strict=True):
        alone = yard.answers(job)[0].output
        np.testing.assert_allclose(alone["y"], answer["y"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(alone["centred"], answer["centred"], rtol=1e-4, atol=1e-5)
    stats = yard.supervisor.stats("pad", "1")
    assert stats.padded_elements > stats.elements, "nothing was padded"


def test_an_item_too_large_for_a_row_travels_as_a_blob_both_ways_and_one_that_was_changed_fails(yard: Yard) -> None:
    item = {"id": 0, "value": "x" * 400_000}
    good = yard.blobs.put("inputs/good", json_payload([item]))
    bad = yard.blobs.put("inputs/bad", json_payload([item]))
    yard.blobs.put("inputs/bad", json_payload([{"id": 0, "value": "y" * 400_000}]))
    jobs = [
        new_job("echo", [b""], [1], chunks=(NewChunk(0, ((0, 1),), blob, ids=("a",)),), single=True)
        for blob in (good, bad)
    ]
    fine, broken = yard.run(*jobs)
    assert fine.state is JobState.SUCCEEDED
    assert fine.usage.output_bytes > 400_000
    assert yard.answers(jobs[0]) == {0: Answer("succeeded", item, None, 1)}
    assert len(yard.blobs.keys(f"results/{fine.id}/")) == 1
    assert broken.state is JobState.FAILED
    assert yard.answers(jobs[1]) == {0: Answer("failed", None, "source_unreadable", 1)}


def test_an_undecodable_record_is_kept_and_passed(yard: Yard) -> None:
    for _ in range(4):  # one to each partition
        yard.parts._stream.publish("default", [b"no record of ours"])
    job = json_job("echo", [1])
    yard.run(job)
    assert yard.answers(job) == echoed([1])
    yard.until(lambda: yard.sql("SELECT count(*) FROM bad_records") == [(4,)])
