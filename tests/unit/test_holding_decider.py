"""Held chunks under everything that can meet: claims, stops, losses, hand-backs. Each is settled once."""

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs import frames
from jobs.blobs.directory import DirectoryBlobs
from jobs.frames import PayloadHeader
from jobs.models.spec import Tensor
from jobs.records import ChunkRef
from jobs.states import Outcome
from tests.unit.shed import Shed
from workers import outcomes
from workers.engine_process import Loss
from workers.held import Held

NOW = datetime(2026, 11, 30, 17, 0, tzinfo=UTC)
S, F, C, M = (int(o) for o in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.MOVED))
DIED, CUT = Loss(False, "signal SIGKILL"), Loss(True, "signal SIGKILL")


@pytest.fixture
def shed(tmp_path: Path) -> Shed:
    return Shed(DirectoryBlobs(tmp_path, b"secret"))


# -- taking


def test_a_chunk_fetched_twice_is_held_once(shed: Shed) -> None:
    first, second = shed.fetched("a"), shed.fetched("a")
    assert shed.take(first) == []
    assert shed.take(second) == [second]
    assert shed.holding.chunks() == [first]
    assert shed.queued == 4


def test_one_that_the_ledger_gave_out_anew_takes_the_place_of_the_old_one(shed: Shed) -> None:
    old, (flight,) = shed.held("a", 4, ((0, 2),))
    shed.holding.offer(old, 100.0, ((2, 4),))
    new = shed.fetched("a", fence=2)
    assert shed.take(new) == []
    assert shed.queued == 4, "nothing of the old one is run any more"
    shed.completer.run()
    assert shed.settled == [old]
    assert shed.holding.chunks() == [new]
    shed.land(flight)
    assert (shed.completer.ready, shed.settled) == ([], [old])


def test_nothing_is_taken_while_draining(shed: Shed) -> None:
    shed.holding.draining = True
    chunk = shed.fetched("a")
    assert shed.holding.take([chunk]) == [chunk]
    assert shed.holding.chunks() == []


def test_a_header_that_contradicts_itself_stops_nobody_else(shed: Shed) -> None:
    broken = PayloadHeader("ragged", ((0, 4),), columns=(frames.Column("x", "FP32", (-1,)),), shapes=())
    shed.holding.inputs = (Tensor("x", "FP32", ("length",)),)
    chunks = [shed.fetched("a"), shed.fetched("b", header=broken), shed.fetched("c")]
    shed.holding.take(chunks)
    ((chunk, error),) = shed.holding.open_arrived()
    assert chunk is chunks[1]
    assert "IndexError" in str(error)
    assert shed.queued == 8


def test_what_waits_is_passed_on_and_what_flies_stays(shed: Shed) -> None:
    flying = shed.fetched("a", 8)
    shed.take(flying)
    shed.form()
    waiting = shed.fetched("b")
    shed.take(waiting)
    (passed,) = shed.holding.let_go()
    assert (passed.message, passed.origin, passed.state) == (waiting.message, waiting.origin, Held.FETCHED)
    assert not waiting.live
    assert (shed.settled, shed.queued, shed.holding.chunks()) == ([], 0, [flying])


# -- claiming


def test_what_is_refused_is_closed_and_leaves_the_batcher(shed: Shed) -> None:
    shed.ledger.refused = {"b"}
    good, bad = shed.fetched("a", 2), shed.fetched("b", 20)
    shed.take(good, bad)
    flight = shed.form()
    assert shed.holding.claim([piece.chunk for piece in flight.pieces]) == [good]
    assert (good.fence, good.incarnation, bad.state) == (1, "wrk_1", Held.CLOSED)
    assert shed.settled == [bad]
    assert shed.queued == 0
    shed.completer.run()
    assert shed.ledger.handed_back == []
    assert shed.ledger.released == [ChunkRef("b", 0, 0)]


def test_a_chunk_in_two_batches_is_claimed_once(shed: Shed) -> None:
    chunk = shed.fetched("a", 16)
    shed.take(chunk)
    first, second = shed.form(), shed.form()
    shed.claim(first)
    shed.claim(second)
    assert shed.ledger.claimed == [ChunkRef("a", 0, 0)]
    shed.land(second)
    shed.land(first)
    assert shed.completer.ready == [chunk]


def test_a_claim_that_nobody_knows_of_is_handed_back_until_the_ledger_takes_it(shed: Shed) -> None:
    chunk = shed.fetched("a")
    shed.take(chunk)
    shed.ledger.down = 3  # the claim, the release and the first try to hand back
    assert shed.holding.claim([chunk]) == []
    assert shed.settled == [chunk]
    shed.completer.run()
    assert shed.ledger.handed_back == []
    shed.completer.run_later()
    assert shed.ledger.handed_back == [ChunkRef("a", 0, 1)]


@pytest.mark.parametrize("what", ["give_back", "drop_everything"])
def test_what_is_let_go_while_it_is_being_claimed_is_handed_back(shed: Shed, what: str) -> None:
    chunk = shed.fetched("a")
    shed.take(chunk)
    flight = shed.form()
    shed.ledger.meanwhile = getattr(shed.decider, what)
    shed.holding.claim([chunk])
    shed.ledger.meanwhile = lambda: None
    shed.completer.run()
    assert shed.ledger.handed_back == [ChunkRef("a", 0, 1)]
    assert shed.settled == [chunk]
    shed.decider.returned(flight, flight.pieces)
    assert (shed.completer.ready, shed.queued, shed.holding.chunks()) == ([], 0, [])


def test_a_stop_during_the_claim_is_seen_by_the_batch(shed: Shed) -> None:
    chunk = shed.fetched("a", 12)
    shed.take(chunk)
    flight = shed.form()
    shed.ledger.meanwhile = lambda: shed.decider.stop_jobs(frozenset("a"), 1.0)
    shed.claim(flight)
    assert (chunk.state, chunk.stopped, shed.queued) == (Held.CLAIMED, True, 0)
    shed.decider.returned(flight, flight.pieces)  # the instance does not send what is stopped
    assert shed.completer.ready == [chunk]
    assert chunk.decided.outcomes == bytes([C] * 12)


def test_closing_twice_settles_once(shed: Shed) -> None:
    chunk = shed.fetched("a")
    shed.take(chunk)
    shed.holding.close([chunk])
    shed.holding.close([chunk])
    assert shed.settled == [chunk]


# -- stopping


def test_a_stop_ends_what_waits_and_keeps_the_answers_that_are_under_way(shed: Shed) -> None:
    chunk, (flight,) = shed.held("a", 6, ((0, 2),))
    waiting, other = shed.fetched("b"), shed.fetched("c")
    shed.take(waiting, other)
    shed.decider.stop_jobs(frozenset("ab"), 1.0)
    assert shed.settled == [waiting], "not claimed: the ledger has ended it itself"
    assert chunk.decided.outcomes[2:] == bytes([C] * 4)
    assert shed.queued == 4
    shed.land(flight)
    assert chunk.decided.outcomes == bytes([S] * 2 + [C] * 4)
    assert shed.completer.ready == [chunk]
    shed.completer.run_later()
    assert shed.completer.ready == [chunk]


def test_a_stop_does_not_wait_for_ever(shed: Shed) -> None:
    chunk, (flight,) = shed.held("a", 4, ((0, 4),))
    shed.decider.stop_jobs(frozenset("a"), 1.0)
    assert shed.completer.ready == []
    shed.completer.run_later()
    assert shed.completer.ready == [chunk]
    shed.land(flight)
    assert chunk.decided.outcomes == bytes([C] * 4)
    assert shed.completer.ready == [chunk]


def test_a_stopped_job_is_not_tried_one_by_one(shed: Shed) -> None:
    chunk, (flight,) = shed.held("a", 4, ((0, 4),))
    shed.decider.stop_jobs(frozenset("a"), 1.0)
    shed.raised(flight)
    assert chunk.decided.outcomes == bytes([C] * 4)
    assert (shed.completer.ready, shed.queued) == ([chunk], 0)


# -- losses


def test_suspects_are_marked_and_then_offered_one_by_one(shed: Shed) -> None:
    chunk, (flight,) = shed.held("a", 4, ((0, 3),))
    shed.raised(flight)
    assert shed.ledger.marked == [chunk.ref]
    assert shed.queued == 3
    assert [shed.form().size for _ in range(3)] == [1, 1, 1]


def test_suspects_that_cannot_be_marked_go_on_in_chunks_that_are(shed: Shed) -> None:
    chunk, (flight,) = shed.held("a", 4, ((0, 4),))
    shed.ledger.down = 1
    shed.raised(flight)
    assert (chunk.alone, chunk.decided.returned, shed.queued) == (True, [0, 1, 2, 3], 0)
    assert shed.completer.ready == [chunk]


def test_suspects_that_are_ours_no_more_are_let_go(shed: Shed) -> None:
    ours, (first,) = shed.held("a", 2, ((0, 2),))
    lost, (second,) = shed.held("b", 2, ((0, 2),))
    shed.ledger.not_ours = {"b"}
    shed.raised(shed.fly(*first.pieces, *second.pieces))
    assert (shed.settled, shed.queued) == ([lost], 2)
    assert ours.live


def test_a_killer_alone_is_charged_and_what_another_process_has_of_its_chunk_still_counts(shed: Shed) -> None:
    chunk, (mine, behind, elsewhere) = shed.held("a", 8, ((0, 1),), ((1, 2),), ((2, 4),))
    shed.holding.offer(chunk, 100.0, ((4, 8),))
    shed.decider.lost([mine, behind], DIED)
    assert chunk.decided.retried == [(0, None)]
    assert chunk.decided.returned == [1, 4, 5, 6, 7]
    assert (shed.queued, shed.completer.ready) == (0, []), "two items are still in the other process"
    shed.land(elsewhere)
    assert chunk.decided.outcomes == bytes([M, M, S, S, M, M, M, M])
    assert shed.completer.ready == [chunk]
    finish = outcomes.finish(chunk, lambda chunk, frame: frame, NOW, random.Random(1))
    assert [(child.items, child.alone, child.attempts) for child in finish.children] == [
        (((0, 1),), True, 1),
        (((1, 2), (4, 8)), True, 0),
    ]


def test_a_batch_that_never_started_goes_back_and_what_was_behind_it_too(shed: Shed) -> None:
    chunk, flights = shed.held("a", 8, ((0, 4),), ((4, 8),))
    flights[0].started_at = None
    shed.decider.lost(flights, DIED)
    assert (shed.queued, shed.ledger.marked, chunk.alone) == (8, [], False)
    assert shed.form().size == 8


def test_a_batch_that_was_cut_is_suspect_even_if_it_reported_nothing(shed: Shed) -> None:
    chunk, (flight,) = shed.held("a", 4, ((0, 4),))
    flight.started_at = None
    shed.decider.lost([flight], CUT)
    assert (shed.ledger.marked, shed.queued) == ([chunk.ref], 4)


def test_a_loss_of_what_was_cancelled_meanwhile_blames_nobody(shed: Shed) -> None:
    chunk, (flight,) = shed.held("a", 1, ((0, 1),))
    shed.decider.stop_jobs(frozenset("a"), 1.0)
    shed.completer.run_later()
    shed.decider.lost([flight], DIED)
    assert chunk.decided.attempts == []
    assert shed.completer.ready == [chunk]


# -- going back


def test_what_nobody_began_is_handed_back_and_what_is_half_done_goes_on_in_a_child(shed: Shed) -> None:
    half, (landed, flying) = shed.held("a", 8, ((0, 2),), ((2, 4),))
    untouched, _ = shed.held("b", 4)
    in_engine, (late,) = shed.held("c", 4, ((0, 4),))
    waiting = shed.fetched("d")
    shed.take(waiting)
    shed.land(landed)
    shed.decider.give_back()
    assert set(shed.ledger.handed_back) == {untouched.ref, in_engine.ref}
    assert shed.completer.ready == [half]
    assert half.decided.outcomes == bytes([S] * 2 + [M] * 6)
    assert sorted(chunk.message.job for chunk in shed.settled) == ["b", "c", "d"]
    shed.land(flying)
    shed.decider.lost([late], CUT)
    assert shed.completer.ready == [half]
    assert half.decided.outcomes == bytes([S] * 2 + [M] * 6)
    assert len(shed.settled) == 3
    assert (shed.holding.chunks(), shed.queued) == ([], 0)


def test_while_draining_suspects_go_on_in_a_child(shed: Shed) -> None:
    chunk, (flight,) = shed.held("a", 4, ((0, 4),))
    shed.holding.draining = True
    shed.raised(flight)
    assert (chunk.decided.returned, chunk.alone) == ([0, 1, 2, 3], True)
    assert shed.completer.ready == [chunk]


def test_after_a_lapse_nothing_that_comes_back_counts(shed: Shed) -> None:
    chunk, (first, second) = shed.held("a", 8, ((0, 4),), ((4, 8),))
    waiting = shed.fetched("b")
    shed.take(waiting)
    shed.decider.drop_everything()
    assert shed.settled == [chunk, waiting]
    shed.land(first)
    shed.decider.lost([second], DIED)
    assert (shed.completer.ready, shed.settled, shed.queued) == ([], [chunk, waiting], 0)
    assert shed.holding.chunks() == []


def test_a_version_that_cannot_be_loaded_fails_what_waits(shed: Shed) -> None:
    waiting, refused = shed.fetched("a"), shed.fetched("b")
    shed.holding.take([waiting, refused])  # not opened: nothing is loaded
    claimed, _ = shed.held("c", 2)
    flying, (flight,) = shed.held("d", 2, ((0, 2),))
    shed.ledger.refused = {"b"}
    shed.decider.fail_all("no weights")
    assert {chunk.message.job for chunk in shed.completer.ready} == {"a", "c"}
    assert waiting.decided.outcomes == bytes([F] * 4)
    assert {line.error.message for line in waiting.decided.failed} == {"no weights"}
    assert shed.settled == [refused]
    assert (len(shed.holding.arrived), shed.queued) == (0, 0)
    assert flying.live
    shed.land(flight)
    assert flying.decided.outcomes == bytes([S] * 2)
    assert claimed.decided.outcomes == bytes([F] * 2)
