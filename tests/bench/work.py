"""The work: seeded inputs of the two nets, as JSON and as arrays, with the answers that onnxruntime alone gives."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

MODELS = Path(__file__).resolve().parents[1] / "models"
TOLERANCE = 1e-4  # of an answer's largest value; sums are taken in another order in a batch of another size


@dataclass(frozen=True)
class Work:
    """``rows`` distinct items of one net, used over and over."""

    model: str
    input: str
    max_batch: int
    rows: int

    @property
    def net(self) -> Path:
        return MODELS / self.model / "1" / "model.onnx"

    def session(self) -> onnxruntime.InferenceSession:
        """One intra-op thread, as in the service."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(str(self.net), options, providers=["CPUExecutionProvider"])

    @cached_property
    def inputs(self) -> NDArray[np.generic]:
        """[rows, 64] FP32 with three decimals (about 450 bytes as JSON), or [rows, 8] INT64."""
        rng = np.random.default_rng(20)
        if self.model == "mlp":
            return np.round(rng.normal(size=(self.rows, 64)), 3).astype(np.float32)
        return rng.integers(0, 2000, (self.rows, 8), dtype=np.int64)

    @cached_property
    def texts(self) -> list[str]:
        """Each item's input as JSON: ``{"x":[…]}``."""
        if self.model == "mlp":
            values = [[round(float(value), 3) for value in row] for row in self.inputs]
        else:
            values = self.inputs.tolist()
        return [json.dumps({self.input: row}, separators=(",", ":")) for row in values]

    def answers(self) -> NDArray[np.float32]:
        """The reference: [rows, outputs]."""
        session = self.session()
        found = [
            session.run(["y"], {self.input: self.inputs[at : at + self.max_batch]})[0]
            for at in range(0, self.rows, self.max_batch)
        ]
        return np.concatenate(found).reshape(self.rows, -1)


M1 = Work("mlp", "x", 64, 4096)
M2 = Work("encoder", "ids", 32, 512)
BY_MODEL = {work.model: work for work in (M1, M2)}


def same(ours: NDArray[np.float64], right: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Row by row, whether answers are the reference's: [n, outputs] twice -> [n]."""
    scale = np.maximum(1.0, np.abs(right).max(axis=1, keepdims=True))
    close: NDArray[np.bool_] = (np.abs(ours - right) <= TOLERANCE * scale).all(axis=1)
    return close
