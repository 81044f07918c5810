"""Item indexes as ranges."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import ranges

calm = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine too
INDEXES = st.sets(st.integers(0, 300), max_size=60).map(sorted)


def test_consecutive_indexes_join() -> None:
    assert ranges.pack([]) == ()
    assert ranges.pack([3, 4, 5, 17]) == ((3, 6), (17, 18))
    assert ranges.pack(range(1000)) == ((0, 1000),)


@calm
@given(INDEXES)
def test_round_trip(indexes: list[int]) -> None:
    packed = ranges.pack(indexes)
    assert list(ranges.indexes(packed)) == indexes
    assert ranges.count(packed) == len(indexes)
    assert all(start < stop for start, stop in packed)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(packed))  # none could join


@calm
@given(INDEXES, st.data())
def test_select_gives_the_indexes_at_positions(indexes: list[int], data: st.DataObject) -> None:
    every = st.sets(st.integers(0, max(0, len(indexes) - 1))).map(sorted) if indexes else st.just([])
    positions = data.draw(every)
    selected = ranges.select(ranges.pack(indexes), positions)
    assert list(ranges.indexes(selected)) == [indexes[position] for position in positions]
