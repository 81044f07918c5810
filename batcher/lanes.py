"""Lanes: one queue of spans for each (priority, tenant), and the policy that says whose turn it is.

Inside a lane the order is always first in, first out. Between lanes an Order decides. It sees the head of every lane
that could give something and picks one: the one place where priorities and fairness between tenants sit. Every lane
is also indexed by group, so that looking for further spans of one batch key never passes over others.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batcher.batch import Span

LaneKey = tuple[str, str]
"""(priority, tenant)"""

Group = tuple[Hashable, bool]
"""(batch key, alone): the spans that may be looked at for one batch."""


@dataclass(slots=True, eq=False)
class Entry:
    """A span in a lane. ``seq`` rises with every offer; ``span`` shrinks while batches take from it."""

    seq: int
    span: Span
    lane: LaneKey
    group: Group
    split: bool = False  # some of its items are in a batch already
    gone: bool = False  # no longer queued


class Head(NamedTuple):
    """The next entry of one lane."""

    lane: LaneKey
    entry: Entry


class Order(Protocol):
    """Whose turn it is among lanes. Asking changes nothing: it is also asked for batches that are not formed yet."""

    def pick(self, heads: Sequence[Head]) -> int:
        """The position in `heads` (never empty) of the lane that goes next."""


class FifoOrder:
    """First in, first out over all lanes: neither priority nor tenant counts."""

    def pick(self, heads: Sequence[Head]) -> int:
        return min(range(len(heads)), key=lambda position: heads[position].entry.seq)


class _Lane:
    __slots__ = ("entries", "groups")

    def __init__(self) -> None:
        # OrderedDict, not dict: it is a linked list, so the first entry is found at once however many left before it.
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self.groups: dict[Group, OrderedDict[int, Entry]] = {}

    def add(self, entry: Entry) -> None:
        self.entries[entry.seq] = entry
        group = self.groups.get(entry.group)
        if group is None:
            group = self.groups[entry.group] = OrderedDict()
        group[entry.seq] = entry

    def remove(self, entry: Entry) -> None:
        del self.entries[entry.seq]
        group = self.groups[entry.group]
        del group[entry.seq]
        if not group:
            del self.groups[entry.group]


class Lanes:
    """All lanes that hold something. Adding and removing an entry costs the same however many are queued."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lanes: dict[LaneKey, _Lane] = {}
        self._holders: dict[Group, dict[LaneKey, _Lane]] = {}  # the lanes that hold spans of a group

    def add(self, entry: Entry) -> None:
        lane = self._lanes.get(entry.lane)
        if lane is None:
            lane = self._lanes[entry.lane] = _Lane()
        lane.add(entry)
        self._holders.setdefault(entry.group, {})[entry.lane] = lane

    def remove(self, entry: Entry) -> None:
        lane = self._lanes[entry.lane]
        lane.remove(entry)
        if entry.group not in lane.groups:
            holders = self._holders[entry.group]
            del holders[entry.lane]
            if not holders:
                del self._holders[entry.group]
        if not lane.entries:
            del self._lanes[entry.lane]

    def head(self) -> Entry | None:
        """The entry whose turn it is; None when nothing is queued."""
        if not self._lanes:
            return None
        heads = [Head(key, next(iter(lane.entries.values()))) for key, lane in self._lanes.items()]
        return heads[0 if len(heads) == 1 else self._order.pick(heads)].entry

    def oldest(self) -> Entry | None:
        """The entry that was offered first, whoever's turn it is."""
        firsts = (next(iter(lane.entries.values())) for lane in self._lanes.values())
        return min(firsts, key=lambda entry: entry.seq, default=None)

    def walk(self, group: Group) -> Iterator[Entry]:
        """The entries of a group in the order in which they are to be taken: a span that was split goes on first,
        then as the Order says. Nothing may be added or removed while the walk is used."""
        holders = self._holders.get(group, {})
        if len(holders) == 1:
            for lane in holders.values():
                yield from lane.groups[group].values()
            return
        rests = [iter(lane.groups[group].values()) for lane in holders.values()]
        heads = [Head(key, next(rest)) for key, rest in zip(holders, rests, strict=True)]
        while heads:
            at = next((position for position, head in enumerate(heads) if head.entry.split), -1)
            if at < 0:
                at = self._order.pick(heads)
            yield heads[at].entry
            following = next(rests[at], None)
            if following is None:
                del heads[at], rests[at]
            else:
                heads[at] = Head(heads[at].lane, following)
