"""The loop that runs an upkeep agent: cadence, waking, stopping, errors."""

import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest

from jobs.errors import Unavailable
from workers.upkeep.loop import Agent

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=15)
PATIENCE = 10.0  # seconds before a test gives up on another thread


class Duty:
    """Tells when it ran; fails while `error` is set; holds while `gate` is closed."""

    name = "duty"
    interval = 3_600.0
    backlog = 0

    def __init__(self) -> None:
        self.ran = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: Exception | None = None

    def step(self) -> int:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        self.ran.release()
        if self.error is not None:
            raise self.error
        return 0

    def ran_again(self) -> bool:
        return self.ran.acquire(timeout=PATIENCE)


def even(low: float, high: float) -> float:
    return (low + high) / 2


def test_an_agent_runs_at_once_then_when_woken_and_stops_promptly() -> None:
    duty = Duty()
    agent = Agent(duty, clock=lambda: NOW)
    agent.start()
    assert duty.ran_again()
    agent.wake()
    assert duty.ran_again()
    assert agent.stop(PATIENCE)
    assert agent.state.last_run == NOW
    assert not duty.ran.acquire(blocking=False)


def test_an_agent_runs_by_itself_at_its_interval() -> None:
    duty = Duty()
    duty.interval = 0.001
    agent = Agent(duty)
    agent.start()
    try:
        assert all(duty.ran_again() for _ in range(3))
    finally:
        assert agent.stop(PATIENCE)


def test_a_wake_during_a_step_brings_another_step() -> None:
    duty = Duty()
    duty.gate.clear()
    agent = Agent(duty)
    agent.start()
    try:
        assert duty.entered.wait(PATIENCE)
        agent.wake()
        duty.gate.set()
        assert duty.ran_again()
        assert duty.ran_again()
    finally:
        assert agent.stop(PATIENCE)


def test_stop_waits_for_the_step_that_runs() -> None:
    duty = Duty()
    duty.gate.clear()
    agent = Agent(duty)
    agent.start()
    assert duty.entered.wait(PATIENCE)
    assert not agent.stop(0.0)
    duty.gate.set()
    assert agent.stop(PATIENCE)
    assert duty.ran.acquire(blocking=False)


def test_an_agent_survives_errors_and_backs_off(caplog: pytest.LogCaptureFixture) -> None:
    duty = Duty()
    duty.interval = 0.5
    agent = Agent(duty, clock=lambda: NOW, uniform=even)
    duty.error = Unavailable("database away")
    with caplog.at_level(logging.INFO):
        pauses = [agent.run_once() for _ in range(8)]
        assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
        state = agent.state
        assert (state.failures, state.last_error, state.last_run) == (8, "Unavailable: database away", None)
        duty.error = None
        assert agent.run_once() == 0.5
    state = agent.state
    assert (state.failures, state.last_error, state.last_run) == (0, None, NOW)
    assert [bool(record.exc_info) for record in caplog.records[:8]] == [True] + [False] * 7
    assert caplog.records[-1].getMessage() == "upkeep duty works again after 8 failed steps"


def test_pauses_are_jittered_by_a_tenth() -> None:
    duty = Duty()
    duty.interval = 10.0
    assert Agent(duty, uniform=lambda low, high: low).run_once() == pytest.approx(9.0)
    assert Agent(duty, uniform=lambda low, high: high).run_once() == pytest.approx(11.0)


def test_a_failing_agent_can_be_woken_and_stopped() -> None:
    duty = Duty()
    duty.error = RuntimeError("broken")
    agent = Agent(duty)
    agent.start()
    assert duty.ran_again()
    agent.wake()
    assert duty.ran_again()
    assert agent.stop(PATIENCE)


def test_an_agent_starts_once_and_stops_without_a_start() -> None:
    agent = Agent(Duty())
    assert agent.stop()
    running = Agent(Duty())
    running.start()
    with pytest.raises(RuntimeError, match="duty was started already"):
        running.start()
    assert running.stop(PATIENCE)
