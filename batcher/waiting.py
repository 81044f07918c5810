"""Is it worth to hold an idle engine back for items that are about to come? Learned from what was seen; pure.

A batch of n items keeps the engine busy for about ``a + b*n`` seconds: ``a`` for the call itself, ``b`` for each
item. With n items queued and m more expected in g seconds there are two ways to go:

* Go now: the n end at ``a + b*n``; the m find the engine free then and end at ``(a + b*n) + (a + b*m)``.
* Wait: all of them end at ``g + a + b*(n + m)``.

So waiting ends each of the m items ``a - g`` sooner and each of the n items ``g + b*m`` later, and is worth it
exactly if ``m * (a - g) > n * (g + b*m)``. A lone item with nothing expected is served at once, and so is one whose
company would come later than a call takes; where calls are dear and items come close together, they are gathered.
"""

import math


def worth_waiting(queued: int, expected: float, gap: float, overhead: float, per_item: float) -> bool:
    """`queued` items are there, `expected` more in `gap` seconds; a call takes `overhead` + `per_item` * items."""
    return expected * (overhead - gap) > queued * (gap + per_item * expected)


class Cost:
    """What a batch costs: a line through (size, seconds) by least squares, older readings counting less and less.

    Until batches of different sizes were seen nothing can be said about `overhead`: it is 0 (nobody waits for it).
    """

    _KEEP = 0.98  # of the weight of all earlier readings, at each new one
    _SETTLED = 8  # readings before one far from the line is cut down
    _FAR = 4.0  # times the expected seconds: a stall of the machine, not a cost of the batch
    _SPREAD = 0.05  # of the mean size: the least standard deviation that tells the two parts apart

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean_size = 0.0
        self._mean_seconds = 0.0
        self._variance = 0.0  # of the size
        self._covariance = 0.0
        self._readings = 0
        self.overhead = 0.0
        self.per_item = 0.0

    def observe(self, size: int, seconds: float) -> None:
        if size < 1 or not 0.0 <= seconds < float("inf"):
            return
        if self._readings >= self._SETTLED:
            seconds = min(seconds, self._FAR * max(self.estimate(size), 1e-6))
        self._readings += 1
        self._weight = self._weight * self._KEEP + 1.0
        share = 1.0 / self._weight
        off_size, off_seconds = size - self._mean_size, seconds - self._mean_seconds
        self._mean_size += share * off_size
        self._mean_seconds += share * off_seconds
        self._variance = (1.0 - share) * (self._variance + share * off_size * off_size)
        self._covariance = (1.0 - share) * (self._covariance + share * off_size * off_seconds)
        self._fit()

    def _fit(self) -> None:
        size, seconds = self._mean_size, self._mean_seconds
        if self._variance > (self._SPREAD * size) ** 2:
            slope = max(0.0, self._covariance / self._variance)
            overhead = seconds - slope * size
        else:  # sizes do not differ (any more): the overhead once learned holds
            overhead = self.overhead
        # The line goes through the mean, and neither part of a cost is negative.
        self.overhead = min(max(0.0, overhead), seconds)
        self.per_item = (seconds - self.overhead) / size

    def estimate(self, size: int) -> float:
        """Seconds that a batch of `size` items will take; 0 before the first reading."""
        return self.overhead + self.per_item * size


class Arrivals:
    """How many items come at once and how long it is from one arrival to the next, as moving averages.

    What is offered with one time is one arrival: a commit of many jobs reaches the batcher together. Gaps are averaged
    by their logarithm, so that the pause between two bursts does not hide how close together items come within them;
    a gap longer than `longest` counts as `longest`, so that a quiet night is forgotten within a few arrivals.
    """

    _NEW = 0.2  # weight of the newest reading
    _TOGETHER = 100e-6  # seconds: closer than this is one arrival

    def __init__(self, longest: float) -> None:
        self._longest = max(longest, 2 * self._TOGETHER)
        self._last: float | None = None
        self._items = 0  # of the arrival that may still be going on
        self._mean_items = 0.0
        self._mean_log = 0.0
        self._deviation = 0.0  # mean distance of the logarithms from their mean
        self._seen = False  # one whole gap at least

    def offered(self, items: int, at: float) -> None:
        if self._last is None:
            self._last, self._items = at, items
            return
        gap = at - self._last
        if gap <= self._TOGETHER:
            self._items += items
            return
        log = math.log(min(gap, self._longest))
        if self._seen:
            self._deviation += self._NEW * (abs(log - self._mean_log) - self._deviation)
            self._mean_log += self._NEW * (log - self._mean_log)
            self._mean_items += self._NEW * (self._items - self._mean_items)
        else:
            self._seen, self._mean_log, self._mean_items = True, log, float(self._items)
        self._last, self._items = at, items

    def expected(self, now: float) -> tuple[float, float] | None:
        """(items, seconds until they should be there); None: nothing is known, or they are overdue already.

        The gap allows for how much gaps differ, so that a wait does not end just before what it was for.
        """
        if self._last is None or not self._seen:
            return None
        left = self._last + math.exp(self._mean_log + self._deviation) - now
        return (max(1.0, self._mean_items), left) if left > 0.0 else None
