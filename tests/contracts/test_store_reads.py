"""Contract of every store: reads, from any thread, beside writes."""

import threading
from datetime import timedelta

import pytest

from jobs.errors import Refused
from jobs.records import ApiKey, NewChunk
from jobs.states import JobState, Outcome
from jobs.store import Backlog, JobFilter, ResultChunk
from tests.contracts import store_kit
from tests.contracts.store_kit import SECOND, START, Kit, done, lines, new_job, payload

kit = store_kit.kit

ALL = JobFilter()


def ids(kit: Kit, where: JobFilter = ALL, tenant: str = "acme") -> list[str]:
    return [job.id for job in kit.store.list_jobs(tenant, where, None, 200).jobs]


def test_a_job_belongs_to_its_tenant(kit: Kit) -> None:
    job = kit.submitted(1)
    assert kit.store.job("globex", job.id) is None
    assert kit.store.job("acme", "job_unknown") is None


def test_jobs_by_id_leaves_out_unknown_ones(kit: Kit) -> None:
    job = kit.submitted(1)
    assert kit.store.jobs_by_id([job.id, "job_unknown"]) == {job.id: kit.job(job)}
    assert kit.store.jobs_by_id([]) == {}


class TestList:
    def test_newest_first_page_by_page(self, kit: Kit) -> None:
        jobs = [kit.submitted(1, created_at=START + number // 2 * SECOND) for number in range(7)]  # pairs of one time
        wanted = [job.id for job in sorted(jobs, key=lambda job: (job.created_at, job.id), reverse=True)]
        seen: list[str] = []
        after = None
        for _ in range(20):
            page = kit.store.list_jobs("acme", ALL, after, 2)
            seen += [job.id for job in page.jobs]
            kit.submitted(1, created_at=START + 100 * SECOND)  # what comes meanwhile is not in later pages
            after = page.next
            if after is None:
                break
        assert seen == wanted

    def test_the_last_page_has_no_next_even_when_full(self, kit: Kit) -> None:
        for _ in range(4):
            kit.submitted(1)
        first = kit.store.list_jobs("acme", ALL, None, 2)
        assert kit.store.list_jobs("acme", ALL, first.next, 2).next is None

    def test_filters(self, kit: Kit) -> None:
        echo = kit.submitted(1, metadata={"team": "search", "run": "1"})
        mlp = kit.submitted(1, model="mlp", created_at=START + SECOND, metadata={"team": "search"})
        other = kit.submitted(1, created_at=START + 2 * SECOND, metadata={"team": "vision"})
        kit.claimed(mlp)
        kit.submitted(1, tenant="globex")
        assert ids(kit) == [other.id, mlp.id, echo.id]
        assert ids(kit, JobFilter(state=JobState.RUNNING)) == [mlp.id]
        assert ids(kit, JobFilter(model="echo")) == [other.id, echo.id]
        assert ids(kit, JobFilter(created_after=START)) == [other.id, mlp.id]
        assert ids(kit, JobFilter(metadata={"team": "search"})) == [mlp.id, echo.id]
        assert ids(kit, JobFilter(metadata={"team": "search", "run": "1"})) == [echo.id]
        assert ids(kit, JobFilter(state=JobState.QUEUED, metadata={"team": "search"})) == [echo.id]
        assert ids(kit, JobFilter(metadata={"absent": "x"})) == []

    @pytest.mark.parametrize("key", ['a"b', "a.b", "$", "a'b", "[0]", "ü", ""])
    def test_metadata_keys_are_taken_literally(self, kit: Kit, key: str) -> None:
        job = kit.submitted(1, metadata={key: "v'\"%"})
        kit.submitted(1, metadata={"a": "v'\"%"})
        assert ids(kit, JobFilter(metadata={key: "v'\"%"})) == [job.id]

    def test_running_items_are_counted(self, kit: Kit) -> None:
        job = kit.submitted(3, 4)
        kit.claimed(job, 1)
        assert kit.store.list_jobs("acme", ALL, None, 1).jobs == (kit.job(job),)
        assert kit.job(job).counts.running == 4

    @pytest.mark.parametrize("cursor", ["", "x", "!!!", "MTIz", "\x00", "A" * 200])
    def test_a_foreign_cursor_is_refused(self, kit: Kit, cursor: str) -> None:
        with pytest.raises(Refused, match="after"):
            kit.store.list_jobs("acme", ALL, cursor, 10)

    def test_an_empty_list(self, kit: Kit) -> None:
        page = kit.store.list_jobs("acme", ALL, None, 10)
        assert (page.jobs, page.next) == ((), None)


class TestResults:
    def test_the_chunks_that_hold_a_range(self, kit: Kit) -> None:
        job = kit.submitted(10, 10, 10)

        def seqs(from_index: int, limit: int) -> list[int]:
            return [chunk.seq for chunk in kit.store.results(job.id, from_index, limit)]

        assert seqs(0, 30) == [0, 1, 2]
        assert seqs(0, 10) == [0]
        assert seqs(9, 2) == [0, 1]
        assert seqs(10, 1) == [1]
        assert seqs(29, 100) == [2]
        assert seqs(30, 5) == []
        assert kit.store.results("job_unknown", 0, 5) == []

    def test_readable_while_the_rest_runs(self, kit: Kit) -> None:
        job = kit.submitted(2, 3)
        first, _ = kit.claimed(job)
        kit.finish(done(first, 2, results=lines(((0, 2),))))
        assert kit.store.results(job.id, 0, 5) == [
            ResultChunk(0, ((0, 2),), b"\x01\x01", lines(((0, 2),)), None, None),
            ResultChunk(1, ((2, 5),), b"\x00\x00\x00", None, None, None),
        ]

    def test_a_child_knows_the_tries_before_it(self, kit: Kit) -> None:
        job = kit.submitted(1)
        (ref,) = kit.claimed(job)
        again = NewChunk(0, ((0, 1),), payload(((0, 1),)), attempts=2)
        kit.finish(done(ref, outcome=Outcome.MOVED, children=(again,)))
        assert [chunk.attempts for chunk in kit.store.results(job.id, 0, 5)] == [0, 2]
        kit.stop(job)
        assert [chunk.attempts for chunk in kit.store.results_of([job.id])[job.id]] == [0, 2]

    def test_of_several_jobs(self, kit: Kit) -> None:
        jobs = [kit.submitted(1) for _ in range(5)]
        for number, job in enumerate(jobs[:3]):
            kit.finish(done(*kit.claimed(job), results=bytes([number]) * (number + 1)))
        read = kit.store.results_of([*(job.id for job in jobs), "job_unknown"])
        assert [[chunk.results for chunk in read[job.id]] for job in jobs] == [
            [b"\x00"],
            [b"\x01\x01"],
            [b"\x02\x02\x02"],
            [None],
            [None],
        ]
        assert read["job_unknown"] == []
        assert kit.store.results_of([]) == {}

    def test_all_byte_values_survive(self, kit: Kit) -> None:
        jobs = [kit.submitted(1) for _ in range(3)]
        data = [bytes(range(256)), b"\xff\xfe\x00" * 1000, b"\x00"]
        kit.finish(*(done(*kit.claimed(job), results=part) for job, part in zip(jobs, data, strict=True)))
        read = kit.store.results_of([job.id for job in jobs])
        assert [read[job.id][0].results for job in jobs] == data


def test_keys(kit: Kit) -> None:
    key = ApiKey("key_1", "acme", frozenset({"jobs:read", "jobs:write"}), START + SECOND)
    endless = ApiKey("key_2", "globex", frozenset(), None)
    with kit.store.begin() as tx:
        tx.add_key(key, b"a" * 32)
        tx.add_key(endless, b"b" * 32)
    assert kit.store.api_key(b"a" * 32) == key
    assert kit.store.api_key(b"b" * 32) == endless
    assert kit.store.api_key(b"c" * 32) is None


def test_tenants_are_made_once(kit: Kit) -> None:
    with kit.store.begin() as tx:
        tx.ensure_tenant("acme")
    assert kit.adapter.sql("SELECT id FROM tenants ORDER BY id") == [("acme",), ("globex",)]


def test_backlog_counts_what_is_not_claimed(kit: Kit) -> None:
    assert kit.store.backlog() == []
    job = kit.submitted(5, 3)
    kit.submitted(2, tenant="globex")
    kit.submitted(4, version="2")
    kit.submitted(7, model="mlp", not_before=START + timedelta(days=1))
    kit.claimed(job, 0)
    assert sorted(kit.store.backlog(), key=repr) == [
        Backlog("echo", "1", 5),
        Backlog("echo", "2", 4),
        Backlog("mlp", "1", 7),
    ]


def test_bad_records_are_kept(kit: Kit) -> None:
    with kit.store.begin() as tx:
        tx.keep_bad_record("by.default", 3, 17, "no frame at offset 0", b"\x00\xff")
        tx.keep_bad_record("by.default", 3, 17, "again, after the stream was wiped", b"")
    rows = kit.adapter.sql('SELECT topic, "partition", "offset", reason, bytes FROM bad_records ORDER BY id')
    assert rows == [
        ("by.default", 3, 17, "no frame at offset 0", b"\x00\xff"),
        ("by.default", 3, 17, "again, after the stream was wiped", b""),
    ]


class TestBesideAWriter:
    def test_reads_see_what_is_committed(self, kit: Kit) -> None:
        job = kit.submitted(1)
        with kit.store.begin() as tx:
            tx.stop(None, job.id, JobState.CANCELLED, None, False)
            tx.submit([new_job(1)])
            assert kit.job(job).state is JobState.QUEUED
            assert ids(kit) == [job.id]
        assert kit.job(job).state is JobState.CANCELLED

    def test_every_thread_reads_whole_states(self, kit: Kit) -> None:
        jobs = [kit.submitted(2, 2) for _ in range(40)]
        stop = threading.Event()
        wrong: list[object] = []

        def read() -> None:
            while not stop.is_set():
                for job in kit.store.jobs_by_id([job.id for job in jobs]).values():
                    if job.final != (job.counts.done == 4) or job.counts.queued < 0:
                        wrong.append(job)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for job in jobs:
            first, second = kit.claimed(job)
            kit.finish(done(first, 2))
            kit.finish(done(second, 2))
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []
