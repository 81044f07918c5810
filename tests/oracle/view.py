"""What the service says at the end, read from outside: through the API, and row by row where there is a file."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import httpx

FINAL = frozenset({"succeeded", "failed", "partially_failed", "cancelled", "expired"})
KEY = "client-key"  # the metadata under which the client repeats its idempotency key, so that a doubled job shows


@dataclass(frozen=True, slots=True)
class SeenJob:
    id: str
    tenant: str  # whose key was shown to read it
    key: str | None  # the client's idempotency key
    state: str
    total: int


@dataclass(frozen=True, slots=True)
class SeenLine:
    """One line of a job's results."""

    index: int
    id: str
    state: str
    output: Any = None
    code: str | None = None  # of its error
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """What lies in the service's own tables. Only counts above 1 matter to the check."""

    jobs: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by (tenant, idempotency key)
    results: Mapping[tuple[str, int], int] = field(default_factory=dict)  # by (job, item index)
    terminal_events: Mapping[str, int] = field(default_factory=dict)  # by job


class View(Protocol):
    def jobs(self) -> Iterable[SeenJob]:
        """Every job of every tenant."""

    def lines(self, job: SeenJob) -> Sequence[SeenLine]:
        """Its results, as they stand."""

    def history(self) -> Mapping[str, Sequence[str]]:
        """By job, the states that were seen over time (repeats left out)."""

    def rows(self) -> Rows | None:
        """None where there is nothing to count rows in."""

    def executed(self) -> int | None:
        """Items given to models over the whole run; None where nobody counted."""


@dataclass
class ApiView:
    """Reads ``url`` with one API key a tenant. History, rows and executions come from who watched them."""

    url: str
    keys: Mapping[str, str]
    seen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    counted: Rows | None = None
    calls: int | None = None

    def jobs(self) -> Iterator[SeenJob]:
        for tenant, key in self.keys.items():
            with self._client(key) as client:
                yield from listed(client, tenant)

    def lines(self, job: SeenJob) -> list[SeenLine]:
        with self._client(self.keys[job.tenant]) as client:
            return read_lines(client, job.id)

    def history(self) -> Mapping[str, Sequence[str]]:
        return self.seen

    def rows(self) -> Rows | None:
        return self.counted

    def executed(self) -> int | None:
        return self.calls

    def _client(self, key: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def listed(client: httpx.Client, tenant: str) -> Iterator[SeenJob]:
    """Every job of the tenant whose key the client shows, page by page."""
    after: str | None = None
    while True:
        params = {"limit": "200"} | ({"after": after} if after else {})
        page = client.get("/v1/jobs", params=params).raise_for_status().json()
        for job in page["data"]:
            key = (job.get("metadata") or {}).get(KEY)
            yield SeenJob(job["id"], tenant, key, job["state"], job["counts"]["total"])
        after = page["next"]
        if not after:
            return


def read_lines(client: httpx.Client, job: str) -> list[SeenLine]:
    """The results of a job: JSON Lines, or the one object of a job with a single input. Links to large outputs are
    followed."""
    body = client.get(f"/v1/jobs/{job}/results").raise_for_status().content
    lines = [parse_line(json.loads(line)) for line in body.split(b"\n") if line.strip()]
    return [replace(line, output=followed(client, line.output)) for line in lines]


def followed(client: httpx.Client, output: Any) -> Any:
    """What a link leads to; the link itself where the bytes behind it are not those that it names."""
    if not isinstance(output, dict) or set(output) != {"link"}:
        return output
    answer = client.get(output["link"]["url"])
    if answer.status_code != 200 or hashlib.sha256(answer.content).hexdigest() != output["link"]["sha256"]:
        return output
    return json.loads(answer.content)


def parse_line(wire: Mapping[str, Any]) -> SeenLine:
    error = wire.get("error") or {}
    return SeenLine(
        index=wire["index"],
        id=wire["id"],
        state=wire["state"],
        output=wire.get("output"),
        code=error.get("code"),
        attempts=wire.get("attempts") or 0,
    )
