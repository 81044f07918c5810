"""The oracle itself is tested: a service that errs in one way makes it print exactly that."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.oracle.check import check
from tests.oracle.client_ledger import ClientLedger, Entry, Outcome, SentItem, read
from tests.oracle.expected import Answer, Failure, expected
from tests.oracle.view import Rows, SeenJob, SeenLine

CLEAN = "T lost=0 unexpected=0 duplicated=0 wrong=0 regressed=0 re_executed=0 acked=4 recovered=1"


@dataclass
class Service:
    """What a service that did everything right would say, to be spoilt by one mutation."""

    seen: list[SeenJob]
    answers: dict[str, list[SeenLine]]
    states: dict[str, list[str]]
    tables: Rows | None = None
    calls: int | None = None

    def jobs(self) -> Iterable[SeenJob]:
        return self.seen

    def lines(self, job: SeenJob) -> Sequence[SeenLine]:
        return self.answers[job.id]

    def history(self) -> Mapping[str, Sequence[str]]:
        return self.states

    def rows(self) -> Rows | None:
        return self.tables

    def executed(self) -> int | None:
        return self.calls


def sent(key: str, tenant: str = "default") -> tuple[str, str, str, list[SentItem]]:
    number = int(key.removeprefix("k")) * 100
    items = [SentItem(f"{key}-{i}", {"id": number + i, "values": [number, i]}) for i in range(3)]
    return key, tenant, "sum", items


@pytest.fixture
def ledger(tmp_path: Path) -> list[Entry]:
    """Four jobs acknowledged (k4 by another tenant), one refused, one whose connection broke."""
    with ClientLedger(tmp_path / "client.jsonl") as client:
        for key in ("k1", "k2", "k3", "k5", "k6"):
            client.sent(*sent(key))
        client.sent(*sent("k4", tenant="other"))
        for key in ("k1", "k2", "k3", "k4"):
            client.answered(key, Outcome.ACKED, status=202, job=f"job_{key}")
        client.answered("k5", Outcome.REFUSED, status=400)
        client.answered("k6", Outcome.UNKNOWN)
        return client.entries()


@pytest.fixture
def service(ledger: list[Entry]) -> Service:
    kept = [entry for entry in ledger if entry.outcome is not Outcome.REFUSED]
    answers = {}
    for entry in kept:
        values = [expected(entry.model, item.input) for item in entry.items]
        answers[f"job_{entry.key}"] = [
            SeenLine(index, entry.items[index].id, "succeeded", value.output, attempts=1)
            for index, value in enumerate(values)
            if isinstance(value, Answer)
        ]
    return Service(
        seen=[SeenJob(f"job_{e.key}", e.tenant, e.key, "succeeded", len(e.items)) for e in kept],
        answers=answers,
        states={f"job_{e.key}": ["queued", "running", "succeeded"] for e in kept},
        tables=Rows({(e.tenant, e.key): 1 for e in kept}, {}, {f"job_{e.key}": 1 for e in kept}),
        calls=sum(len(e.items) for e in kept),
    )


def test_prints_only_zeros_for_a_service_that_is_right(ledger: list[Entry], service: Service) -> None:
    verdict = check(ledger, service)
    assert verdict.line("T") == CLEAN
    assert verdict.clean
    assert verdict.findings == ()
    assert verdict.line("T", kills=8).endswith(" kills=8")


def drop_a_job(service: Service) -> None:
    service.seen = service.seen[1:]


def leave_a_job_unfinished(service: Service) -> None:
    service.seen[0] = replace(service.seen[0], state="running")


def drop_an_item(service: Service) -> None:
    del service.answers["job_k1"][1]


def double_a_line(service: Service) -> None:
    service.answers["job_k1"].append(service.answers["job_k1"][1])


def double_a_job(service: Service) -> None:
    twin = replace(service.seen[0], id="job_twin")
    service.seen.append(twin)


def double_a_job_in_the_tables(service: Service) -> None:
    service.tables = Rows({("default", "k1"): 2}, {}, {})


def double_a_result_in_the_tables(service: Service) -> None:
    service.tables = Rows({}, {("job_k1", 2): 2}, {})


def double_a_terminal_event(service: Service) -> None:
    service.tables = Rows({}, {}, {"job_k1": 2, "job_k2": 1})


def double_a_line_everywhere(service: Service) -> None:
    """Seen by the API and in the tables: one mistake all the same."""
    double_a_line(service)
    service.tables = Rows({}, {("job_k1", 1): 2}, {})


def swap_two_answers(service: Service) -> None:
    first, second = service.answers["job_k1"][:2]
    service.answers["job_k1"][:2] = [replace(first, output=second.output), replace(second, output=first.output)]


def swap_answers_between_jobs(service: Service) -> None:
    mine, theirs = service.answers["job_k1"][0], service.answers["job_k2"][0]
    service.answers["job_k1"][0] = replace(mine, output=theirs.output)
    service.answers["job_k2"][0] = replace(theirs, output=mine.output)


def answer_of_another_tenant(service: Service) -> None:
    theirs = service.answers["job_k4"][0]
    service.answers["job_k1"][0] = replace(service.answers["job_k1"][0], output=theirs.output)


def show_a_job_to_another_tenant(service: Service) -> None:
    shown = next(job for job in service.seen if job.tenant == "other")
    service.seen.append(replace(shown, tenant="default"))


def run_what_was_refused(service: Service) -> None:
    service.seen.append(SeenJob("job_k5", "default", "k5", "succeeded", 3))


def invent_a_job(service: Service) -> None:
    service.seen.append(SeenJob("job_x", "default", None, "succeeded", 1))


def invent_a_line(service: Service) -> None:
    service.answers["job_k1"].append(SeenLine(3, "3", "succeeded", 1))


def reopen_a_job(service: Service) -> None:
    service.states["job_k1"] += ["running", "succeeded"]


def turn_a_final_job(service: Service) -> None:
    service.states["job_k1"].append("failed")


def fail_an_item(service: Service) -> None:
    service.answers["job_k1"][0] = SeenLine(0, "k1-0", "failed", None, "process_died", 2)


def cancel_an_item(service: Service) -> None:
    service.answers["job_k1"][0] = SeenLine(0, "k1-0", "cancelled")


def run_two_items_again(service: Service) -> None:
    assert service.calls is not None
    service.calls += 2


@pytest.mark.parametrize(
    ("mutate", "says"),
    [
        (drop_a_job, "lost=1"),
        (leave_a_job_unfinished, "lost=1"),
        (drop_an_item, "lost=1"),
        (double_a_line, "duplicated=1"),
        (double_a_job, "duplicated=1"),
        (double_a_job_in_the_tables, "duplicated=1"),
        (double_a_result_in_the_tables, "duplicated=1"),
        (double_a_terminal_event, "duplicated=1"),
        (double_a_line_everywhere, "duplicated=1"),
        (swap_two_answers, "wrong=2"),
        (swap_answers_between_jobs, "wrong=2"),
        (answer_of_another_tenant, "wrong=1"),
        (show_a_job_to_another_tenant, "unexpected=1"),
        (run_what_was_refused, "unexpected=1"),
        (invent_a_job, "unexpected=1"),
        (invent_a_line, "unexpected=1"),
        (reopen_a_job, "regressed=1"),
        (turn_a_final_job, "regressed=1"),
        (fail_an_item, "wrong=1"),
        (cancel_an_item, "wrong=1"),
        (run_two_items_again, "re_executed=2"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_prints_exactly_what_was_done(
    ledger: list[Entry], service: Service, mutate: Callable[[Service], None], says: str
) -> None:
    mutate(service)
    verdict = check(ledger, service)
    kind = says.split("=")[0]
    assert verdict.line("T") == CLEAN.replace(f"{kind}=0", says)
    assert verdict.clean == (kind == "re_executed")
    assert len(verdict.findings) == sum((verdict.lost, verdict.unexpected, verdict.wrong, verdict.regressed)) + (
        verdict.duplicated
    )


def test_a_connection_that_broke_may_have_made_a_job_or_not(ledger: list[Entry], service: Service) -> None:
    service.seen = [job for job in service.seen if job.key != "k6"]
    assert service.calls is not None
    service.calls -= 3
    assert check(ledger, service).line("T") == CLEAN.replace("recovered=1", "recovered=0")


def test_two_ids_for_one_key_are_two_jobs(tmp_path: Path, service: Service) -> None:
    with ClientLedger(tmp_path / "more.jsonl") as client:
        client.sent(*sent("k1"))
        client.answered("k1", Outcome.ACKED, status=202, job="job_k1")
        client.answered("k1", Outcome.ACKED, status=200, job="job_other")
        entries = client.entries()
    service.seen = service.seen[:1]
    service.states, service.tables = {}, None
    assert check(entries, service).duplicated == 1


def test_stopped_items_are_fine_where_the_client_asked_for_it(ledger: list[Entry], service: Service) -> None:
    cancel_an_item(service)
    ledger = [replace(entry, may_stop=True) for entry in ledger]
    assert check(ledger, service).line("T") == CLEAN


def test_failures_must_be_the_reference_ones(tmp_path: Path) -> None:
    with ClientLedger(tmp_path / "client.jsonl") as client:
        items = [SentItem("a", {"id": 1, "value": 666}), SentItem("b", {"id": 2, "value": 1})]
        client.sent("k1", "default", "raise_if", items)
        client.answered("k1", Outcome.ACKED, status=202, job="job_1")
        entries = client.entries()
    lines = [
        SeenLine(0, "a", "failed", None, "handler_error", 3),
        SeenLine(1, "b", "succeeded", {"id": 2, "value": 1}),
    ]
    service = Service([SeenJob("job_1", "default", "k1", "partially_failed", 2)], {"job_1": lines}, {})
    assert check(entries, service).clean
    lines[0] = replace(lines[0], code="process_died")
    assert check(entries, service).wrong == 1


def test_the_client_ledger_survives_being_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "client.jsonl"
    with ClientLedger(path) as client:
        client.sent(*sent("k1"))
        assert [(e.key, e.outcome, e.jobs) for e in read(path)] == [("k1", Outcome.UNKNOWN, ())]
        client.answered("k1", Outcome.UNKNOWN)
        client.answered("k1", Outcome.ACKED, status=200, job="job_1")
        assert [(e.key, e.outcome, e.jobs) for e in read(path)] == [("k1", Outcome.ACKED, ("job_1",))]
    path.write_text(path.read_text().replace('"values":[100,1]', '"values":[100,2]'))
    with pytest.raises(ValueError, match="k1"):
        read(path)


@pytest.mark.parametrize(
    ("model", "value", "right"),
    [
        ("echo", 666, Answer({"id": 1, "value": 666})),
        ("raise_if", 666, Failure("handler_error")),
        ("raise_if", "666", Answer({"id": 1, "value": "666"})),
        ("exit_if", 667, Failure("process_died")),
        ("hang_if", 668, Failure("run_timeout")),
        ("nan_if", 669, Answer({"id": 1, "value": "NaN"})),
        ("poison", 669, Answer({"id": 1, "value": "NaN"})),
        ("poison", 3, Answer({"id": 1, "value": 3})),
    ],
)
def test_references(model: str, value: object, right: Answer | Failure) -> None:
    assert expected(model, {"id": 1, "value": value}) == right
