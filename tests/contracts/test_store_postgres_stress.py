"""Postgres: four threads make movements of all kinds on the same jobs, each in a transaction of its own.

All lock in one order, so none is ever undone in favour of another.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobs.records import ChunkRef
from jobs.states import FINAL, JobState, Outcome
from jobs.store import Transaction
from tests.contracts.store_kit import SECOND, Kit, done, make_kit

THREADS, ROUNDS = 4, 150
TURNS = 10  # at most, until each of these has changed something: chance does not make all of them in every turn
WANTED = {"claim", "finish", "hand_back", "mark_alone", "take_due", "stop", "republish_all"}
NOW = timedelta(0)
WORKERS = ("wrk_1", "wrk_2", "wrk_3")

Movement = Callable[[Transaction, list[ChunkRef], str, random.Random], Any]


def finish(tx: Transaction, refs: list[ChunkRef], worker: str, chance: random.Random) -> bool:
    outcome = chance.choice([Outcome.SUCCEEDED, Outcome.FAILED])
    return any(tx.finish([done(ref, 2, outcome) for ref in refs], worker).accepted)


def stop(tx: Transaction, refs: list[ChunkRef], worker: str, chance: random.Random) -> bool:
    return any(tx.stop(None, ref.job, JobState.CANCELLED, None, chance.random() < 0.5) for ref in refs[:1])


def rescue(tx: Transaction, refs: list[ChunkRef], worker: str, chance: random.Random) -> bool:
    tx.remove_worker("wrk_3")
    return tx.rescue(timedelta(days=1)) > 0


MOVEMENTS: dict[str, tuple[int, Movement]] = {  # how often, and what
    "claim": (8, lambda tx, refs, worker, _: any(tx.claim(refs, worker))),
    "finish": (6, finish),
    "hand_back": (4, lambda tx, refs, *_: tx.hand_back(refs)),
    "mark_alone": (2, lambda tx, refs, *_: any(tx.mark_alone(refs))),
    "take_due": (2, lambda tx, *_: tx.take_due(20, SECOND)),
    "release": (2, lambda tx, refs, *_: tx.release(refs)),
    "stop": (1, stop),
    "expire_due": (2, lambda tx, *_: tx.expire_due(20)),
    "force_stopped": (1, lambda tx, *_: tx.force_stopped(NOW)),
    "rescue": (1, rescue),
    "republish_all": (1, lambda tx, *_: tx.republish_all()),
}


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = make_kit("postgres", tmp_path)
    for worker in WORKERS[1:]:
        made.register(worker)
    yield made
    made.store.close()


def test_movements_lock_in_one_order(kit: Kit) -> None:
    for _ in range(6):
        submit(kit)
    made: set[str] = set()
    for turn in range(TURNS):
        with ThreadPoolExecutor(THREADS) as pool:
            seeds = range(turn * THREADS, (turn + 1) * THREADS)
            futures = [pool.submit(make_movements, kit, random.Random(seed)) for seed in seeds]
            made = made.union(*(future.result() for future in futures))  # raises what a thread raised
        if made >= WANTED:
            break
    assert made >= WANTED
    check(kit)


def submit(kit: Kit) -> None:
    kit.submitted(*[2] * 6, publish_now=False, queue_deadline_at=kit.clock() + SECOND)


def make_movements(kit: Kit, chance: random.Random) -> set[str]:
    """Gives those that changed something."""
    made: set[str] = set()
    names = list(MOVEMENTS)
    weights = [weight for weight, _ in MOVEMENTS.values()]
    for _ in range(ROUNDS):
        (name,) = chance.choices(names, weights)
        rows = standing(kit, "queued" if name in ("claim", "release") else "running")
        chosen = chance.sample(rows, min(len(rows), chance.randint(1, 12)))
        refs = [ChunkRef(job, seq, fence) for job, seq, fence, _ in chosen]
        worker = next((worker for *_, worker in chosen if worker), chance.choice(WORKERS))
        with kit.store.begin() as tx:
            if MOVEMENTS[name][1](tx, refs, worker, chance):
                made.add(name)
        if len(rows) < 12:
            submit(kit)
        if chance.random() < 0.05:
            kit.clock.advance(0.5)
    return made


def standing(kit: Kit, state: str) -> list[Any]:
    """Chunks as they stand, or did a moment ago."""
    with kit.store._readers.use() as connection:  # type: ignore[attr-defined]
        sql = "SELECT job, seq, fence, worker FROM chunks WHERE state = %s ORDER BY job, seq LIMIT 40"
        return list(connection.exec_driver_sql(sql, (state,)).fetchall())


def check(kit: Kit) -> None:
    """Each outcome is counted once, and each job that is final was ended once."""
    jobs = kit.store.jobs_by_id([id_ for (id_,) in kit.adapter.sql("SELECT id FROM jobs")])
    decided: dict[str, bytes] = dict.fromkeys(jobs, b"")
    for id_, outcomes in kit.adapter.sql("SELECT job, outcomes FROM chunks WHERE outcomes IS NOT NULL"):
        decided[id_] += outcomes
    for id_, job in jobs.items():
        counts = job.counts
        told = [counts.succeeded, counts.failed, counts.cancelled, counts.expired]
        assert told == [decided[id_].count(code) for code in (1, 2, 3, 4)]
        assert job.final == (counts.done == counts.total)
    ends = kit.adapter.sql("SELECT job FROM events WHERE terminal ORDER BY job")
    assert ends == sorted((id_,) for id_, job in jobs.items() if job.state in FINAL)
