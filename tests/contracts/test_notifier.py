"""Contract of every notifier."""

from collections.abc import Callable

import pytest

from jobs.notifier import Notifier, Ping
from jobs.notifiers.process import ProcessNotifier

ADAPTERS: dict[str, Callable[[], Notifier]] = {"process": ProcessNotifier}


@pytest.fixture(params=sorted(ADAPTERS))
def notifier(request: pytest.FixtureRequest) -> Notifier:
    return ADAPTERS[request.param]()


def test_every_subscriber_is_told(notifier: Notifier) -> None:
    one: list[Ping] = []
    two: list[Ping] = []
    notifier.subscribe(one.append)
    notifier.subscribe(two.append)
    ping = Ping(("job_1", "job_2"), stopped=("job_2",))
    notifier.ping(ping)
    assert one == two == [ping]


def test_an_ended_subscription_is_told_no_more(notifier: Notifier) -> None:
    told: list[Ping] = []
    end = notifier.subscribe(told.append)
    end()
    end()
    notifier.ping(Ping(("job_1",)))
    assert told == []


def test_two_subscriptions_of_one_function_are_two(notifier: Notifier) -> None:
    told: list[Ping] = []
    add = told.append
    end = notifier.subscribe(add)
    notifier.subscribe(add)
    end()
    notifier.ping(Ping(("job_1",)))
    assert len(told) == 1


def test_a_subscriber_that_fails_costs_the_others_nothing(notifier: Notifier) -> None:
    told: list[Ping] = []

    def fails(ping: Ping) -> None:
        raise RuntimeError("broken")

    notifier.subscribe(fails)
    notifier.subscribe(told.append)
    notifier.ping(Ping(("job_1",)))
    assert len(told) == 1
