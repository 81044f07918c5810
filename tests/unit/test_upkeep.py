"""The upkeep agents: each step on a scripted ledger, and the loop under them with real threads and no sleeping."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.errors import Unavailable
from jobs.notifier import Ping
from jobs.publisher import Publisher
from jobs.records import ChunkMessage, Counts, Job, Usage
from jobs.states import JobState, Priority
from jobs.window import Window, WindowLimits
from workers.upkeep import expirer as expirer_module
from workers.upkeep import relay as relay_module
from workers.upkeep.expirer import Expirer
from workers.upkeep.relay import Relay
from workers.upkeep.rescuer import Rescuer

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=15)
PATIENCE = 10.0  # seconds before a test gives up on another thread


class ScriptedLedger:
    """Hands every change the same object as its transaction."""

    def __init__(self, tx: Any) -> None:
        self.tx = tx
        self.calls = 0

    def call(self, change: Callable[[Any], Any]) -> Any:
        self.calls += 1
        return change(self.tx)


# -- relay


def message(number: int, *, tenant: str = "tenant_a", fence: int = 0, size: int = 10) -> ChunkMessage:
    return ChunkMessage(
        job=f"job_{number:04}",
        seq=0,
        fence=fence,
        tenant=tenant,
        model="mlp",
        version="1",
        priority=Priority.NORMAL,
        count=1,
        alone=False,
        attempts=0,
        max_attempts=3,
        run_timeout=timedelta(seconds=30),
        created_at=NOW,
        queue_deadline_at=None,
        deadline_at=None,
        traceparent=None,
        payload=b"x" * size,
    )


class DueChunks:
    """`take_due` of the store: what was taken is not due again until its lease is up (`lapse`)."""

    def __init__(self, *due: ChunkMessage) -> None:
        self.due = list(due)
        self.leased: list[ChunkMessage] = []
        self.leases: set[timedelta] = set()

    def take_due(self, limit: int, lease: timedelta, skip: Collection[tuple[str, str]] = ()) -> list[ChunkMessage]:
        taken = [chunk for chunk in self.due if (chunk.tenant, chunk.model) not in skip][:limit]
        self.due = [chunk for chunk in self.due if chunk not in taken]
        self.leased += taken
        self.leases.add(lease)
        return taken

    def lapse(self) -> None:
        self.due, self.leased = self.leased + self.due, []


class Conveyor:
    def __init__(self) -> None:
        self.records = 0
        self.broken = False

    def publish(self, pool: str, values: list[bytes], lost: object = None) -> None:
        if self.broken:
            raise Unavailable("broker away")
        self.records += len(values)

    def consumer(self, pool: str, group: str = "workers") -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


class RelayBench:
    def __init__(self, *due: ChunkMessage, chunks: int = 10) -> None:
        self.window = Window(WindowLimits(chunks=chunks, bytes=10**9))
        self.stream = Conveyor()
        self.publisher = Publisher(self.stream, lambda model, version: "default", self.window, monotonic=lambda: 0.0)
        self.chunks = DueChunks(*due)
        self.ledger = ScriptedLedger(self.chunks)
        self.relay = Relay(self.ledger, self.publisher, lease=LEASE)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "STEP", 4)
    monkeypatch.setattr(expirer_module, "STEP", 3)


def test_the_relay_publishes_what_is_due_and_moves_its_lease_on() -> None:
    bench = RelayBench(*[message(number) for number in range(3)])
    assert bench.relay.step() == 3
    assert (bench.chunks.due, bench.chunks.leases, bench.stream.records) == ([], {LEASE}, 1)
    assert bench.relay.step() == 0


def test_the_relay_stops_when_the_window_is_full_and_goes_on_when_there_is_room() -> None:
    everything = [message(number, tenant=f"tenant_{number % 4}") for number in range(20)]
    bench = RelayBench(*everything)
    published = bench.relay.step()
    assert 10 <= published < 10 + relay_module.STEP
    assert bench.relay.step() == 0
    bench.publisher.settled(bench.chunks.leased)
    assert bench.relay.step() == 20 - published
    assert bench.chunks.due == []


def test_the_relay_passes_over_a_pair_whose_part_is_full() -> None:
    flood = [message(number) for number in range(30)]
    bench = RelayBench(*flood, message(99, tenant="tenant_b"))
    assert bench.relay.step() == 9  # two steps of the flood, then the one behind it
    assert bench.chunks.leased[-1].tenant == "tenant_b"
    assert all(chunk.tenant == "tenant_a" for chunk in bench.chunks.due)


def test_the_relay_does_not_publish_again_what_is_on_its_way() -> None:
    bench = RelayBench(message(1), message(2))
    bench.relay.step()
    bench.chunks.lapse()
    assert bench.relay.step() == 0
    assert (bench.stream.records, bench.chunks.due) == (1, [])
    bench.publisher.settled([message(1)])
    bench.chunks.lapse()
    assert bench.relay.step() == 1


def test_the_relay_publishes_what_came_back_at_another_fence() -> None:
    bench = RelayBench(message(1))
    bench.relay.step()
    bench.chunks.due = [message(1, fence=2)]
    assert bench.relay.step() == 1


def test_the_relay_clears_those_behind_when_nothing_is_due_but_not_those_it_passed_over() -> None:
    bench = RelayBench(*[message(number) for number in range(9)])
    bench.publisher._behind |= {("tenant_a", "mlp"), ("tenant_b", "mlp")}
    bench.relay.step()
    assert bench.publisher.behind == {("tenant_a", "mlp")}
    assert bench.relay.backlog == 1
    bench.publisher.settled(bench.chunks.leased)
    bench.relay.step()
    assert bench.relay.backlog == 0


def test_the_relay_does_not_lease_everything_while_the_stream_is_away() -> None:
    bench = RelayBench(*[message(number) for number in range(9)])
    bench.stream.broken = True
    assert bench.relay.step() == 0
    assert len(bench.chunks.leased) == relay_module.STEP
    assert bench.window.chunks == 0
    bench.stream.broken = False
    bench.chunks.lapse()
    assert bench.relay.step() == 8


def test_two_relays_publish_everything_once() -> None:
    bench = RelayBench(*[message(number, tenant=f"tenant_{number}") for number in range(200)], chunks=1_000)
    other = Relay(bench.ledger, bench.publisher, lease=LEASE)  # type: ignore[arg-type]
    assert bench.relay.step() + other.step() == 200
    assert len(bench.chunks.leased) == 200


# -- rescuer


class LapsedWork:
    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.graces: list[timedelta] = []

    def rescue(self, grace: timedelta) -> int:
        self.graces.append(grace)
        freed, self.chunks = self.chunks, 0
        return freed


def test_the_rescuer_waits_a_whole_lease_after_its_start() -> None:
    seconds, woken = [1_000.0], []
    tx = LapsedWork(5)
    rescuer = Rescuer(
        ScriptedLedger(tx),  # type: ignore[arg-type]
        lease=timedelta(seconds=30),
        grace=timedelta(seconds=2),
        on_rescued=lambda: woken.append(1),
        monotonic=lambda: seconds[0],
    )
    seconds[0] += 29.9
    assert rescuer.step() == 0
    assert tx.graces == []
    seconds[0] += 0.1
    assert rescuer.step() == 5
    assert rescuer.step() == 0
    assert (tx.graces, woken) == ([timedelta(seconds=2)] * 2, [1])


# -- expirer


def job(name: str, state: JobState, *, stop_as: JobState | None = None) -> Job:
    return Job(
        id=f"job_{name}",
        tenant="tenant_a",
        kind="inline",
        model="mlp",
        version="1",
        priority=Priority.NORMAL,
        state=state,
        counts=Counts(total=1),
        sealed=True,
        paused=False,
        single=True,
        created_at=NOW,
        started_at=None,
        finished_at=None,
        deadline_at=None,
        results_expire_at=None,
        not_before=None,
        stop_as=stop_as,
        error=None,
        parent_job=None,
        metadata={},
        usage=Usage(),
    )


class DueJobs:
    def __init__(self, expired: list[Job], stopped: list[Job]) -> None:
        self.expired = expired
        self.stopped = stopped
        self.graces: list[timedelta] = []

    def expire_due(self, limit: int) -> tuple[Job, ...]:
        due, self.expired = self.expired[:limit], self.expired[limit:]
        return tuple(due)

    def force_stopped(self, grace: timedelta) -> tuple[Job, ...]:
        self.graces.append(grace)
        due, self.stopped = self.stopped, []
        return tuple(due)


class Pings:
    def __init__(self) -> None:
        self.sent: list[Ping] = []

    def ping(self, ping: Ping) -> None:
        self.sent.append(ping)

    def subscribe(self, told: Callable[[Ping], None]) -> Callable[[], None]:
        raise NotImplementedError


def expirer_of(tx: DueJobs) -> tuple[Expirer, Pings]:
    pings = Pings()
    grace = timedelta(seconds=5)
    return Expirer(ScriptedLedger(tx), pings, cancel_grace=grace), pings  # type: ignore[arg-type]


def test_the_expirer_tells_who_ended_and_whose_work_must_stop() -> None:
    ended = job("ended", JobState.EXPIRED, stop_as=JobState.EXPIRED)
    goes_on = job("goes_on", JobState.RUNNING)  # some of its chunks were not started in time
    forced = job("forced", JobState.CANCELLED, stop_as=JobState.CANCELLED)
    expirer, pings = expirer_of(DueJobs([ended, goes_on], [forced]))
    assert expirer.step() == 3
    (ping,) = pings.sent
    assert ping.jobs == ("job_ended", "job_goes_on", "job_forced")
    assert ping.finals == (ended, forced)
    assert ping.stopped == ("job_ended", "job_forced")


def test_the_expirer_says_nothing_when_nothing_is_due() -> None:
    tx = DueJobs([], [])
    expirer, pings = expirer_of(tx)
    assert expirer.step() == 0
    assert (pings.sent, tx.graces) == ([], [timedelta(seconds=5)])


def test_the_expirer_goes_on_until_all_that_is_due_has_ended() -> None:
    tx = DueJobs([job(str(number), JobState.EXPIRED) for number in range(8)], [])
    expirer, pings = expirer_of(tx)
    assert expirer.step() == 8
    assert len(tx.graces) == 4  # the last of them finds nothing
    assert [len(ping.jobs) for ping in pings.sent] == [3, 3, 2]
