"""The window: how much published and unsettled work may be in the stream at once. Pure; the caller locks.

Bounded as a whole and for each (tenant, model), by chunks and by payload bytes, so that one tenant's flood leaves room
for the others, and what waits beyond it can still be ordered, paused and cancelled in the ledger.

Work that nobody settles (a worker dropped it without a word) would narrow the window for good. So an entry is
forgotten when it is old and nothing of its (tenant, model) has been settled for as long, or when it is very old. To be
forgotten costs nothing but a second publication: a claim admits one of them only.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from jobs.records import ChunkRef

Pair = tuple[str, str]
"""(tenant, model)"""

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WindowLimits:
    chunks: int = 4_000
    bytes: int = 64 * MIB
    share: float = 0.5  # of either that one (tenant, model) may have
    reserved_for: float = 30.0  # seconds from a reservation to its commit, before it is forgotten
    quiet_for: float = 60.0  # seconds without a settlement of the pair before older entries are forgotten
    kept_for: float = 600.0  # seconds before an entry is forgotten whatever else settles


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A chunk as the window counts it."""

    ref: ChunkRef
    bytes: int


@dataclass(slots=True)
class _Entry:
    pair: Pair
    fence: int
    bytes: int
    since: float
    published: bool


@dataclass(slots=True)
class _Use:
    chunks: int = 0
    bytes: int = 0
    settled_at: float = float("-inf")


class Window:
    def __init__(self, limits: WindowLimits | None = None) -> None:
        self.limits = limits or WindowLimits()
        self._entries: OrderedDict[tuple[str, int], _Entry] = OrderedDict()  # oldest first
        self._all = _Use()
        self._pairs: dict[Pair, _Use] = {}

    @property
    def chunks(self) -> int:
        return self._all.chunks

    @property
    def bytes(self) -> int:
        return self._all.bytes

    def room(self, pair: Pair | None = None, *, chunks: int = 1, bytes: int = 1, fill: float = 1.0) -> bool:  # noqa: A002
        """Whether so much more fits below `fill` of the whole window, and of the pair's part of it if one is named."""
        limits = self.limits
        if not _fits(self._all, chunks, bytes, limits.chunks * fill, limits.bytes * fill):
            return False
        if pair is None:
            return True
        use, share = self._pairs.get(pair) or _Use(), limits.share * fill
        return _fits(use, chunks, bytes, limits.chunks * share, limits.bytes * share)

    def full_pairs(self) -> frozenset[Pair]:
        """Those that have no room for one chunk more, however much the whole window has."""
        chunks, size = self.limits.chunks * self.limits.share, self.limits.bytes * self.limits.share
        return frozenset(pair for pair, use in self._pairs.items() if use.chunks >= chunks or use.bytes >= size)

    def reserve(self, pair: Pair, pieces: Sequence[Piece], now: float) -> bool:
        """Makes room for work that will be committed and then published; all of it or nothing."""
        self._forget(now)
        if not self.room(pair, chunks=len(pieces), bytes=sum(piece.bytes for piece in pieces)):
            return False
        self._add(pair, pieces, now, published=False)
        return True

    def publish(self, pair: Pair, pieces: Sequence[Piece], now: float) -> None:
        """Counts work that is being published, reserved or not, room or not."""
        self._forget(now)
        self._add(pair, pieces, now, published=True)

    def holds(self, ref: ChunkRef, now: float) -> bool:
        """This chunk was published at this fence and is on its way."""
        key = (ref.job, ref.seq)
        entry = self._entries.get(key)
        if entry is not None and self._lost(entry, now):
            self._remove(key)
            return False
        return entry is not None and entry.published and entry.fence == ref.fence

    def settle(self, refs: Iterable[ChunkRef], now: float) -> set[Pair]:
        """Takes out what is settled; gives the pairs that have less in the window now. What was published again at a
        higher fence since stays."""
        freed: set[Pair] = set()
        for ref in refs:
            key = (ref.job, ref.seq)
            entry = self._entries.get(key)
            if entry is None or entry.fence > ref.fence:
                continue
            use = self._pairs[entry.pair]
            use.settled_at = now
            self._remove(key)
            freed.add(entry.pair)
        return freed

    def _add(self, pair: Pair, pieces: Sequence[Piece], now: float, *, published: bool) -> None:
        for piece in pieces:
            key = (piece.ref.job, piece.ref.seq)
            if key in self._entries:
                self._remove(key)
            self._entries[key] = _Entry(pair, piece.ref.fence, piece.bytes, now, published)
            use = self._pairs.get(pair)
            if use is None:
                use = self._pairs[pair] = _Use()
            for one in (self._all, use):
                one.chunks += 1
                one.bytes += piece.bytes

    def _remove(self, key: tuple[str, int]) -> None:
        entry = self._entries.pop(key)
        use = self._pairs[entry.pair]
        for one in (self._all, use):
            one.chunks -= 1
            one.bytes -= entry.bytes
        if not use.chunks:
            del self._pairs[entry.pair]

    def _forget(self, now: float) -> None:
        """Looks at the oldest entries only, so it costs nothing while they are sound."""
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if not self._lost(entry, now):
                return
            self._remove(key)

    def _lost(self, entry: _Entry, now: float) -> bool:
        limits, age = self.limits, now - entry.since
        if not entry.published:
            return age >= limits.reserved_for
        quiet = now - max(self._pairs[entry.pair].settled_at, entry.since)
        return age >= limits.kept_for or quiet >= limits.quiet_for


def _fits(use: _Use, chunks: int, size: int, most_chunks: float, most_bytes: float) -> bool:
    return use.chunks + chunks <= most_chunks and use.bytes + size <= most_bytes
