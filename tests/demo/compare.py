"""The other opinion, in a process of its own: the magika package's API on the same files, answer by answer.

``python -m tests.demo.compare ANSWERS`` reads JSON Lines ``{"path", "digest", "answer"}`` and prints one JSON object.
"""

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from magika import Magika

GROUP = 32
SCORE_TOLERANCE = 1e-4
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Comparison:
    files: int
    agree: int
    changed: tuple[str, ...]  # files whose content is not what it was when it was sent
    different: tuple[str, ...]  # the first disagreements, in words


def compare(lines: list[dict[str, Any]]) -> Comparison:
    magika = Magika()
    agree = 0
    changed: list[str] = []
    different: list[str] = []
    for at in range(0, len(lines), GROUP):
        group = []
        for line in lines[at : at + GROUP]:
            path = Path(os.fsdecode(bytes.fromhex(line["path"])))
            if hashlib.sha256(path.read_bytes()).hexdigest() == line["digest"]:
                group.append((path, line["answer"]))
            else:
                changed.append(str(path))
        for (path, ours), theirs in zip(group, magika.identify_paths([path for path, _ in group]), strict=True):
            difference = _difference(ours, theirs)
            if difference is not None and _difference(ours, magika.identify_path(path)) is None:
                difference = None  # the net rounds in another way when it is given one file alone: either is right
            agree += difference is None
            if difference is not None and len(different) < SHOWN:
                different.append(f"{path}: {difference}")
    return Comparison(len(lines) - len(changed), agree, tuple(changed), tuple(different))


def _difference(ours: dict[str, Any], theirs: Any) -> str | None:
    if not theirs.ok:
        return f"the package says {theirs.status}"
    prediction = theirs.prediction
    pairs = {
        "label": str(prediction.output.label),
        "mime_type": prediction.output.mime_type,
        "group": prediction.output.group,
        "model_label": str(prediction.dl.label),
        "overwritten": str(prediction.overwrite_reason),
    }
    for name, value in pairs.items():
        if ours[name] != value:
            return f"{name} is {ours[name]!r} here and {value!r} there"
    if abs(ours["score"] - prediction.score) > SCORE_TOLERANCE:
        return f"score is {ours['score']:.6f} here and {prediction.score:.6f} there"
    return None


if __name__ == "__main__":
    with Path(sys.argv[1]).open("rb") as file:
        print(json.dumps(asdict(compare([json.loads(line) for line in file]))))
