"""Features before, labels after: what the magika package does around its model, as a Batchyard handler.

An item is ``{"name": "report.pdf", "content_b64": "…"}``; only the content counts. The answer has the label, MIME type
and group, how sure the model was, the model's own label and why it was overruled (``none`` if it was not).
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchyard.handler import Permanent

MODEL, EMPTY, TEXT, UNKNOWN = range(4)
"""Who decides: the model, or one of the rules for files with too little in them to be classified."""
RULES = {EMPTY: "empty", TEXT: "txt", UNKNOWN: "unknown"}


@dataclass(frozen=True)
class Config:
    """The parts of the package's ``config.min.json`` that matter here."""

    beg_size: int
    end_size: int
    block_size: int
    padding_token: int
    min_file_size_for_dl: int
    medium_confidence_threshold: float
    thresholds: dict[str, float]
    overwrite_map: dict[str, str]
    target_labels_space: list[str]

    @classmethod
    def read(cls, path: Path) -> "Config":
        """ValueError for a model whose features are cut in another way than this handler cuts them."""
        values = json.loads(path.read_text("utf-8"))
        if values["mid_size"] or values["use_inputs_at_offsets"]:
            raise ValueError(f"{path}: features from the middle of a file are not known to this handler")
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})


class Handler:
    def load(self, path: Path, parameters: dict[str, Any]) -> None:
        self.config = Config.read(Path(path) / "config.min.json")
        self.types = json.loads((Path(path) / "content_types_kb.min.json").read_text("utf-8"))

    def preprocess(self, input: Any, parameters: dict[str, Any]) -> dict[str, NDArray[Any]]:  # noqa: A002
        content = _content(input)
        features = self._features(content)
        if not content:
            decided = EMPTY
        elif len(content) < self.config.min_file_size_for_dl or features[self.config.min_file_size_for_dl - 1] == (
            self.config.padding_token  # white space but for a few bytes
        ):
            decided = TEXT if _is_utf8(content[: self.config.block_size]) else UNKNOWN
        else:
            decided = MODEL
        # `decided` is no input of the model: it passes it by and comes back to postprocess.
        return {"bytes": features, "decided": np.array(decided, np.int8)}

    def postprocess(self, outputs: dict[str, NDArray[Any]], parameters: dict[str, Any]) -> dict[str, Any]:
        decided = int(outputs["decided"])
        if decided != MODEL:
            return self._answer("undefined", RULES[decided], 1.0, "none")
        scores = outputs["target_label"]
        best = int(scores.argmax())
        return self._labelled(self.config.target_labels_space[best], float(scores[best]))

    def _features(self, content: bytes) -> NDArray[np.int32]:
        """The first and last bytes without the white space around them, padded: [beg_size + end_size]."""
        config = self.config
        beg = content[: config.block_size].lstrip()[: config.beg_size]
        end = content[-config.block_size :].rstrip()[-config.end_size :]
        features = np.full(config.beg_size + config.end_size, config.padding_token, np.int32)
        features[: len(beg)] = np.frombuffer(beg, np.uint8)
        features[len(features) - len(end) :] = np.frombuffer(end, np.uint8)
        return features

    def _labelled(self, own: str, score: float) -> dict[str, Any]:
        """The model's own label, unless it is always replaced or not sure enough."""
        config = self.config
        label = config.overwrite_map.get(own, own)
        reason = "none" if label == own else "overwrite_map"
        if score < config.thresholds.get(own, config.medium_confidence_threshold):
            label = "txt" if self.types[label]["is_text"] else "unknown"
            reason = "none" if label == own else "low_confidence"
        return self._answer(own, label, score, reason)

    def _answer(self, own: str, label: str, score: float, reason: str) -> dict[str, Any]:
        kind = self.types[label]
        fallback = "text/plain" if kind["is_text"] else "application/octet-stream"
        return {
            "label": label,
            "mime_type": fallback if kind["mime_type"] is None else kind["mime_type"],
            "group": "unknown" if kind["group"] is None else kind["group"],
            "score": score,
            "model_label": own,
            "overwritten": reason,
        }


def _content(given: Any) -> bytes:
    if not isinstance(given, dict) or not isinstance(given.get("content_b64"), str):
        raise Permanent('expected {"name": "…", "content_b64": "…"}')
    return base64.b64decode(given["content_b64"], validate=True)  # ValueError: the item fails as invalid_input


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
