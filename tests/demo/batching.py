"""Part two: what batching buys. The same net, the same 400 items, one by one and through Batchyard."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from batchyard import Client
from tests.demo.alone import measure as alone
from tests.demo.classify import DemoFailed, statistics
from tests.demo.repository import MAX_BATCH, NET, rows

ITEMS = 400
TOLERANCE = 1e-4  # of an answer; sums are taken in another order in a batch
FILES, FEATURES, TOKENS = 64, 2048, 257  # of magika's net: rows of byte values and a padding token
FILES_A_CALL = 16
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Bought:
    """Rates in items a second."""

    items: int
    alone: float  # one item a call
    batched: float  # through Batchyard: HTTP, disk and all
    average_batch: float
    agree: int
    magika_alone: float  # magika's net, without Batchyard
    magika_batched: float  # the same, 16 rows a call

    @property
    def ratio(self) -> float:
        return self.batched / self.alone

    @property
    def magika_ratio(self) -> float:
        return self.magika_batched / self.magika_alone


def measure(client: Client, repository: Path, scratch: Path) -> Bought:
    """One after the other, so that each has the machine to itself. DemoFailed if an item has no answer."""
    np.save(scratch / "ids.npy", rows(ITEMS))
    noise = np.random.default_rng(1).integers(0, TOKENS, (FILES, FEATURES), dtype=np.int32)
    np.save(scratch / "features.npy", noise)
    files = repository / "magika" / "1" / "model.onnx"
    wire = [{"input": {"ids": row}} for row in rows(ITEMS).tolist()]
    client.submit(NET, items=wire[: 2 * MAX_BATCH]).wait()  # warm-up

    (single,) = alone(repository / NET / "1" / "model.onnx", scratch / "ids.npy", [1])
    before = statistics(client, NET)
    started = time.perf_counter()
    answers = []
    for result in client.submit(NET, items=wire).results():
        if not result.succeeded:
            raise DemoFailed(f"item {result.index} of {NET}: {result.state}: {result.error}")
        answers.append(result.output["y"]["data"])
    elapsed = time.perf_counter() - started
    spent = statistics(client, NET).since(before)
    plain, batched = alone(files, scratch / "features.npy", [1, FILES_A_CALL], ROUNDS)
    return Bought(
        items=ITEMS,
        alone=single.rate,
        batched=ITEMS / elapsed,
        average_batch=spent.average,
        agree=sum(_same(ours, theirs) for ours, theirs in zip(answers, single.answers, strict=True)),
        magika_alone=plain.rate,
        magika_batched=batched.rate,
    )


def _same(ours: list[float], theirs: list[float]) -> bool:
    scale = max(1.0, *(abs(value) for value in theirs))
    pairs = zip(ours, theirs, strict=True)
    return all(abs(mine - other) <= TOLERANCE * scale for mine, other in pairs)
