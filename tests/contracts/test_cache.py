"""Contract of every cache."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis

from jobs.cache import Cache
from jobs.caches.memory import MemoryCache
from jobs.caches.redis import RedisCache
from jobs.clock import Clock, system_clock
from tests.services.running import needed


def redis_cache(_: Clock) -> Cache:
    service = needed("redis")
    return RedisCache(f"redis://{service.host}:{service.port}/0", prefix=f"{uuid.uuid4().hex}:")


ADAPTERS: dict[str, Callable[[Clock], Cache]] = {"memory": lambda clock: MemoryCache(clock=clock), "redis": redis_cache}
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


def test_an_entry_lives_as_long_as_it_was_given(time: Time) -> None:
    cache = MemoryCache(clock=time)
    cache.set("a", b"1", 5 * SECOND)
    time.now += 4 * SECOND
    assert cache.get("a") == b"1"
    time.now += SECOND
    assert cache.get("a") is None


def test_an_entry_in_redis_has_its_time_to_live() -> None:
    cache = redis_cache(system_clock)
    assert isinstance(cache, RedisCache)
    cache.set("a", b"1", timedelta(seconds=300))
    (key,) = cache._redis.keys(f"{cache._prefix}*")
    assert 295_000 < cache._redis.pttl(key) <= 300_000


def test_without_redis_the_cache_is_empty_and_not_asked_each_time() -> None:
    asked: list[str] = []
    now = 0.0

    class Away:
        def get(self, key: str) -> bytes:
            asked.append(key)
            raise redis.ConnectionError("away")

        set = delete = get

    cache = RedisCache("redis://127.0.0.1:1/0", "p:", monotonic=lambda: now, client=Away())
    assert [cache.get("a"), cache.get("b")] == [None, None]
    assert asked == ["p:a"]
    now = 1.0
    assert cache.get("c") is None
    assert asked == ["p:a", "p:c"]


def test_memory_keeps_what_was_used_last(time: Time) -> None:
    cache = MemoryCache(max_entries=2, clock=time)
    cache.set("a", b"1", SECOND)
    cache.set("b", b"2", SECOND)
    cache.get("a")
    cache.set("c", b"3", SECOND)
    assert [cache.get(key) for key in "abc"] == [b"1", None, b"3"]
