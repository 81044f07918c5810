"""Pure decisions about failures: who is charged, who is suspected, and that nothing can go round for ever."""

import random
from datetime import timedelta

import pytest

from workers.isolation import (
    Fate,
    RestartPause,
    Retry,
    Suspicion,
    backoff,
    judge_batch,
    judge_failure,
)


@pytest.mark.parametrize(
    ("charged", "permanent", "fatal", "fate"),
    [
        (0, False, False, Fate.RETRY),
        (1, False, False, Fate.RETRY),
        (2, False, False, Fate.FAIL),  # the third of three
        (0, True, False, Fate.FAIL),
        (0, False, True, Fate.RETRY),
        (1, False, True, Fate.FAIL),  # a second death is final
    ],
)
def test_a_failure_is_retried_until_its_attempts_are_used_up(
    charged: int, permanent: bool, fatal: bool, fate: Fate
) -> None:
    assert judge_failure(Retry(charged, max_attempts=3), permanent, fatal) is fate


def test_an_item_with_one_attempt_is_never_retried() -> None:
    assert judge_failure(Retry(0, max_attempts=1), permanent=False, fatal=False) is Fate.FAIL
    assert judge_failure(Retry(0, max_attempts=1), permanent=False, fatal=True) is Fate.FAIL


def test_a_batch_is_isolated_and_a_lone_item_is_the_culprit() -> None:
    assert judge_batch(32, started=True, unstarted_losses=0) is Suspicion.ISOLATE
    assert judge_batch(1, started=True, unstarted_losses=0) is Suspicion.CULPRIT


def test_a_batch_that_never_started_goes_back_once_and_is_suspected_then() -> None:
    assert judge_batch(8, started=False, unstarted_losses=0) is Suspicion.RETURN
    assert judge_batch(8, started=False, unstarted_losses=1) is Suspicion.ISOLATE
    assert judge_batch(1, started=False, unstarted_losses=1) is Suspicion.CULPRIT


def test_the_pause_doubles_up_to_a_minute_with_jitter() -> None:
    chance = random.Random(1)
    for charged, seconds in ((1, 1), (2, 2), (3, 4), (7, 60), (50, 60)):
        for _ in range(50):
            pause = backoff(charged, None, chance).total_seconds()
            assert 0.8 * seconds <= pause <= 1.2 * seconds
    assert len({backoff(1, None, chance) for _ in range(10)}) > 1


def test_a_handler_may_name_the_pause_within_an_hour() -> None:
    chance = random.Random(1)
    assert backoff(1, 7.5, chance) == timedelta(seconds=7.5)
    assert backoff(1, -1.0, chance) == timedelta(0)
    assert backoff(1, 1e9, chance) == timedelta(hours=1)


def test_a_version_that_does_not_load_is_tried_ever_more_seldom() -> None:
    pause = RestartPause()
    assert [pause.load_failed() for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_death_in_service_costs_no_pause_unless_nothing_gets_done_between() -> None:
    pause = RestartPause()
    assert pause.died_in_service() == 0.0
    assert pause.died_in_service() == 0.1
    assert [pause.died_in_service() for _ in range(20)][-1] == 2.0
    pause.finished_batch()
    assert pause.died_in_service() == 0.0


def test_a_process_that_dies_with_nothing_to_do_is_not_spun_up_again_and_again() -> None:
    pause = RestartPause()
    assert [pause.died_idle() for _ in range(8)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
