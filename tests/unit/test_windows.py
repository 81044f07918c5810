"""The publishing window: what it holds never exceeds its bounds, and nothing stays in it for ever."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jobs.records import ChunkRef
from jobs.window import Pair, Piece, Window, WindowLimits

A, B = ("tenant_a", "mlp"), ("tenant_b", "mlp")


def pieces(job: str, count: int, size: int = 10, fence: int = 0) -> list[Piece]:
    return [Piece(ChunkRef(job, seq, fence), size) for seq in range(count)]


def refs(job: str, count: int, fence: int = 0) -> list[ChunkRef]:
    return [piece.ref for piece in pieces(job, count, fence=fence)]


def small(**given: Any) -> Window:
    return Window(WindowLimits(**{"chunks": 10, "bytes": 1_000, **given}))


def test_defaults_are_those_of_the_design() -> None:
    limits = WindowLimits()
    assert (limits.chunks, limits.bytes, limits.share) == (4_000, 64 * 1024 * 1024, 0.5)


def test_a_pair_has_its_share_and_leaves_the_rest_to_others() -> None:
    window = small()
    assert window.reserve(A, pieces("a", 5), 0.0)
    assert not window.reserve(A, pieces("a2", 1), 0.0)
    assert window.full_pairs() == {A}
    assert window.reserve(B, pieces("b", 5), 0.0)
    assert (window.chunks, window.bytes) == (10, 100)
    assert not window.room()


def test_bytes_bound_it_too() -> None:
    window = small()
    assert window.reserve(A, pieces("a", 1, size=500), 0.0)
    assert not window.room(A)
    assert window.room(B)
    assert not window.reserve(B, pieces("b", 1, size=501), 0.0)
    assert window.reserve(B, pieces("b", 1, size=500), 0.0)


def test_a_reservation_is_all_or_nothing() -> None:
    window = small()
    assert not window.reserve(A, pieces("a", 6), 0.0)
    assert (window.chunks, window.bytes) == (0, 0)


def test_settling_makes_room_and_names_who_has_it() -> None:
    window = small()
    window.reserve(A, pieces("a", 5), 0.0)
    assert window.settle([*refs("a", 2), ChunkRef("unknown", 0, 0)], 1.0) == {A}
    assert window.chunks == 3
    assert window.settle(refs("a", 2), 1.0) == set()
    assert window.reserve(A, pieces("a2", 2), 1.0)


def test_publishing_what_was_reserved_counts_once() -> None:
    window = small()
    window.reserve(A, pieces("a", 3), 0.0)
    window.publish(A, pieces("a", 3), 0.0)
    window.publish(A, pieces("a", 3), 5.0)
    assert (window.chunks, window.bytes) == (3, 30)


def test_the_relay_may_go_beyond_the_bounds_by_what_it_took() -> None:
    window = small()
    window.publish(A, pieces("a", 12), 0.0)
    assert window.chunks == 12
    assert not window.room()
    window.settle(refs("a", 12), 1.0)
    assert (window.chunks, window.bytes) == (0, 0)


def test_a_late_settlement_of_an_older_fence_frees_nothing() -> None:
    window = small()
    window.publish(A, pieces("a", 1, fence=4), 0.0)
    assert window.settle(refs("a", 1, fence=2), 0.0) == set()
    assert window.holds(ChunkRef("a", 0, 4), 0.0)
    assert window.settle(refs("a", 1, fence=4), 0.0) == {A}


def test_holds_only_what_is_published_at_this_fence() -> None:
    window = small()
    window.reserve(A, pieces("a", 1), 0.0)
    assert not window.holds(ChunkRef("a", 0, 0), 0.0)
    window.publish(A, pieces("a", 1), 0.0)
    assert window.holds(ChunkRef("a", 0, 0), 0.0)
    assert not window.holds(ChunkRef("a", 0, 1), 0.0)


def test_a_reservation_that_never_came_to_a_commit_is_forgotten() -> None:
    window = small(reserved_for=30.0)
    window.reserve(A, pieces("a", 5), 0.0)
    assert not window.reserve(A, pieces("a2", 5), 29.9)
    assert window.reserve(A, pieces("a2", 5), 30.0)


def test_published_work_is_forgotten_when_its_pair_has_been_quiet() -> None:
    window = small(quiet_for=60.0)
    window.publish(A, pieces("lost", 2), 0.0)
    window.publish(A, pieces("done", 1), 0.0)
    window.settle(refs("done", 1), 50.0)
    assert window.holds(ChunkRef("lost", 0, 0), 109.0)
    assert not window.holds(ChunkRef("lost", 0, 0), 110.0)
    assert window.reserve(A, pieces("more", 5), 110.0)


def test_published_work_is_forgotten_in_the_end_even_while_others_settle() -> None:
    window = small(kept_for=600.0)
    window.publish(A, pieces("lost", 1), 0.0)
    for second in range(0, 600, 10):
        window.publish(A, pieces(f"job_{second}", 1), float(second))
        window.settle(refs(f"job_{second}", 1), float(second))
        assert window.holds(ChunkRef("lost", 0, 0), float(second))
    assert not window.holds(ChunkRef("lost", 0, 0), 600.0)
    assert window.chunks == 0


class AnyUse(RuleBasedStateMachine):
    """The counts are those of a plain dict beside it; reservations never break a bound."""

    def __init__(self) -> None:
        super().__init__()
        self.window = small()
        self.model: dict[tuple[str, int], tuple[Pair, int]] = {}
        self.jobs = 0

    @rule(pair=st.sampled_from([A, B]), count=st.integers(1, 7), size=st.integers(0, 200))
    def reserve(self, pair: Pair, count: int, size: int) -> None:
        self.jobs += 1
        new = pieces(f"job_{self.jobs}", count, size)
        own = [held for held in self.model.values() if held[0] == pair]
        fits = (
            len(self.model) + count <= 10
            and sum(held[1] for held in self.model.values()) + size * count <= 1_000
            and (not own or (len(own) + count <= 5 and sum(held[1] for held in own) + size * count <= 500))
            and (count <= 5 and size * count <= 500)
        )
        assert self.window.reserve(pair, new, 0.0) == fits
        if fits:
            self.model |= {(piece.ref.job, piece.ref.seq): (pair, size) for piece in new}

    @rule(pair=st.sampled_from([A, B]), job=st.integers(0, 10), count=st.integers(1, 3), size=st.integers(0, 200))
    def publish(self, pair: Pair, job: int, count: int, size: int) -> None:
        new = pieces(f"job_{job}", count, size)
        self.window.publish(pair, new, 0.0)
        self.model |= {(piece.ref.job, piece.ref.seq): (pair, size) for piece in new}

    @rule(job=st.integers(0, 10), count=st.integers(1, 7))
    def settle(self, job: int, count: int) -> None:
        keys = {(f"job_{job}", seq) for seq in range(count)} & self.model.keys()
        assert self.window.settle(refs(f"job_{job}", count), 0.0) == {self.model[key][0] for key in keys}
        for key in keys:
            del self.model[key]

    @invariant()
    def counted(self) -> None:
        assert self.window.chunks == len(self.model)
        assert self.window.bytes == sum(size for _, size in self.model.values())
        for pair in (A, B):
            own = [size for owner, size in self.model.values() if owner == pair]
            assert (pair in self.window.full_pairs()) == (len(own) >= 5 or sum(own) >= 500)


AnyUse.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyUse = AnyUse.TestCase
