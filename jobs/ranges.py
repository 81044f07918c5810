"""Item indexes as sorted, disjoint half-open ranges."""

from collections.abc import Iterable, Iterator, Sequence

from jobs.records import Ranges


def count(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def indexes(ranges: Ranges) -> Iterator[int]:
    for start, stop in ranges:
        yield from range(start, stop)


def pack(sorted_indexes: Iterable[int]) -> Ranges:
    """Joins ascending indexes into ranges."""
    packed: list[tuple[int, int]] = []
    for index in sorted_indexes:
        if packed and packed[-1][1] == index:
            packed[-1] = (packed[-1][0], index + 1)
        else:
            packed.append((index, index + 1))
    return tuple(packed)


def select(ranges: Ranges, positions: Sequence[int]) -> Ranges:
    """The indexes at these ascending positions of ``ranges``."""
    flat = list(indexes(ranges))
    return pack(flat[position] for position in positions)
