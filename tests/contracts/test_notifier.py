"""Contract of every notifier."""

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from jobs.notifier import Notifier, Ping
from jobs.notifiers.process import ProcessNotifier
from jobs.notifiers.redis import RedisNotifier
from tests.services.running import needed

SECONDS = 10.0  # that a ping may take
LAST = Ping(("job_last",))

Made = tuple[Notifier, Callable[[], None]]


def redis_notifier() -> Made:
    service = needed("redis")
    made = RedisNotifier(f"redis://{service.host}:{service.port}/0", channel=f"pings:{uuid.uuid4().hex}")
    assert made.start(SECONDS)
    return made, made.close


ADAPTERS: dict[str, Callable[[], Made]] = {
    "process": lambda: (ProcessNotifier(), lambda: None),
    "redis": redis_notifier,
}


@pytest.fixture(params=sorted(ADAPTERS))
def notifier(request: pytest.FixtureRequest) -> Iterator[Notifier]:
    made, close = ADAPTERS[request.param]()
    yield made
    close()


class Told(list[Ping]):
    """A subscriber that can be waited for."""

    def __init__(self) -> None:
        self._came = threading.Condition()

    def __call__(self, ping: Ping) -> None:
        with self._came:
            self.append(ping)
            self._came.notify_all()

    def until(self, count: int) -> "Told":
        with self._came:
            assert self._came.wait_for(lambda: len(self) >= count, SECONDS)
        return self

    def until_last(self) -> None:
        with self._came:
            assert self._came.wait_for(lambda: LAST in self, SECONDS)


def heard(notifier: Notifier) -> None:
    """Everything pinged so far has been heard by everybody."""
    last = Told()
    end = notifier.subscribe(last)
    notifier.ping(LAST)
    last.until_last()
    end()


def test_every_subscriber_is_told(notifier: Notifier) -> None:
    one, two = Told(), Told()
    notifier.subscribe(one)
    notifier.subscribe(two)
    ping = Ping(("job_1", "job_2"), stopped=("job_2",))
    notifier.ping(ping)
    assert one.until(1) == two.until(1) == [ping]


def test_an_ended_subscription_is_told_no_more(notifier: Notifier) -> None:
    told = Told()
    end = notifier.subscribe(told)
    end()
    end()
    notifier.ping(Ping(("job_1",)))
    heard(notifier)
    assert told == []


def test_two_subscriptions_of_one_function_are_two(notifier: Notifier) -> None:
    told = Told()
    end = notifier.subscribe(told)
    notifier.subscribe(told)
    end()
    notifier.ping(Ping(("job_1",)))
    heard(notifier)
    assert [ping.jobs for ping in told] == [("job_1",), ("job_last",)]


def test_a_subscriber_that_fails_costs_the_others_nothing(notifier: Notifier) -> None:
    told = Told()

    def fails(ping: Ping) -> None:
        raise RuntimeError("broken")

    notifier.subscribe(fails)
    notifier.subscribe(told)
    notifier.ping(Ping(("job_1",)))
    assert len(told.until(1)) == 1


def test_pings_reach_other_processes_and_odd_ones_are_passed() -> None:
    here, close = redis_notifier()
    there, close_there = redis_notifier()
    assert isinstance(here, RedisNotifier)
    assert isinstance(there, RedisNotifier)
    there._channel = here._channel
    told = Told()
    here.subscribe(told)
    there._sender.publish(here._channel, b"\xff no ping")
    there.ping(Ping(("job_1",)))
    assert [ping.jobs for ping in told.until(1)] == [("job_1",)]
    close()
    close_there()


def test_a_ping_without_redis_is_lost_and_nothing_else() -> None:
    notifier = RedisNotifier("redis://127.0.0.1:1/0")
    assert not notifier.start(timeout=0.1)
    notifier.ping(Ping(("job_1",)))
    notifier.close()
