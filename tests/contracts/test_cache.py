"""Contract of every cache."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from jobs.cache import Cache
from jobs.caches.memory import MemoryCache
from jobs.clock import Clock

ADAPTERS: dict[str, Callable[[Clock], Cache]] = {"memory": lambda clock: MemoryCache(clock=clock)}
SECOND = timedelta(seconds=1)


class Time:
    now = datetime(2026, 12, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(params=sorted(ADAPTERS))
def cache(request: pytest.FixtureRequest, time: Time) -> Cache:
    return ADAPTERS[request.param](time)


def test_set_get_delete(cache: Cache) -> None:
    assert cache.get("a") is None
    cache.set("a", b"1", SECOND)
    assert cache.get("a") == b"1"
    cache.set("a", b"2", SECOND)
    assert cache.get("a") == b"2"
    cache.delete("a")
    cache.delete("a")
    assert cache.get("a") is None


def test_an_entry_lives_as_long_as_it_was_given(cache: Cache, time: Time) -> None:
    cache.set("a", b"1", 5 * SECOND)
    time.now += 4 * SECOND
    assert cache.get("a") == b"1"
    time.now += SECOND
    assert cache.get("a") is None


def test_memory_keeps_what_was_used_last(time: Time) -> None:
    cache = MemoryCache(max_entries=2, clock=time)
    cache.set("a", b"1", SECOND)
    cache.set("b", b"2", SECOND)
    cache.get("a")
    cache.set("c", b"3", SECOND)
    assert [cache.get(key) for key in "abc"] == [b"1", None, b"3"]
