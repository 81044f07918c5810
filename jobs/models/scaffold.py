"""Writes a filled model.yaml for an artifact: what `reader` reads, with the words that an author needs beside it."""

import json
import re
from collections.abc import Mapping, Sequence

from jobs.models.spec import Axis, Tensor

LONGEST = 1024
"""What an axis may measure at most until the author says otherwise."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_WORDS = frozenset({"true", "false", "null"})


def model_yaml(
    name: str,
    *,
    artifact: str,
    sha256: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    max_size: int,
    batch_note: str,
) -> str:
    """The text of a tensor model's file. Axes whose names `reader` would not take are renamed, everywhere alike.

    `batch_note` says beside `max_size` why it is what it is.
    """
    names = axis_names([*inputs, *outputs])
    lines = [
        "schema: 1",
        f"name: {name}",
        "engine: onnxruntime",
        f'artifact: {{path: {artifact}, sha256: "{sha256}"}} # below the version\'s folder; remove sha256 to unpin',
        "default_version: 1",
        "input: tensors # `json`: items are JSON that Handler.preprocess in handler.py turns into these tensors",
        "",
        "# Without the batch dimension. A name stands for a length that varies from item to item: items of one batch",
        "# are padded to the longest with `pad`, and outputs are cut back. An input that marks what is real (1) and",
        "# what is padding (0) has `mask_for: <the input it marks>`.",
        "inputs:",
        *(_tensor(tensor, names, padded=True) for tensor in inputs),
        "outputs:",
        *(_tensor(tensor, names, padded=False) for tensor in outputs),
    ]
    if names:
        lines += ["axes: # shortest and longest item that is taken; set max to what your model can do", *_axes(names)]
    lines += [
        "",
        f"batch: {{max_size: {max_size}, max_queue_delay_ms: 5}} # {batch_note}",
        "timeouts: {run_seconds: 30} # of one batch",
        "retry: {max_attempts: 3} # of one item",
        "",
        "# Three items or more are run at load: to warm up, and to see that a batch gives what each item gives alone.",
        "# Left out, made-up numbers are used, which a model that looks ids up in a table may not take.",
        "# sample:",
        f"#   - {_sample(inputs, names)}",
    ]
    return "\n".join(lines) + "\n"


def axis_names(tensors: Sequence[Tensor]) -> dict[str, str]:
    """What each variable dimension is called in the file: ASCII words, each distinct name staying distinct."""
    names: dict[str, str] = {}
    for tensor in tensors:
        for dim in tensor.shape:
            if isinstance(dim, str) and dim not in names:
                word = re.sub(r"[^A-Za-z0-9_]+", "_", dim).strip("_")[:48] or "axis"
                word = word if word[0].isalpha() else f"axis_{word}"
                while word in names.values() or word.lower() in _WORDS:
                    word += "_"
                names[dim] = word
    return names


def _axes(names: Mapping[str, str]) -> list[str]:
    axis = Axis(1, LONGEST)
    return [f"  {name}: {{min: {axis.min}, max: {axis.max}}}" for name in names.values()]


def _tensor(tensor: Tensor, names: Mapping[str, str], *, padded: bool) -> str:
    shape = ", ".join(names[dim] if isinstance(dim, str) else str(dim) for dim in tensor.shape)
    pad = f", pad: {_pad(tensor.datatype)}" if padded and any(isinstance(dim, str) for dim in tensor.shape) else ""
    return f"  {_key(tensor.name)}: {{datatype: {tensor.datatype}, shape: [{shape}]{pad}}}"


def _key(name: str) -> str:
    return name if _PLAIN.match(name) and name.lower() not in _WORDS else json.dumps(name)


def _pad(datatype: str) -> str:
    return {"BOOL": "false", "BYTES": '""'}.get(datatype, "0")


def _sample(inputs: Sequence[Tensor], names: Mapping[str, str]) -> str:
    def one(tensor: Tensor) -> str:
        value = {"BOOL": "true", "BYTES": '"text"'}.get(tensor.datatype, "1")
        shape = " x ".join(names[dim] if isinstance(dim, str) else str(dim) for dim in tensor.shape)
        return f"{_key(tensor.name)}: [{value}, …]" + (f" ({shape} of them)" if shape else "")

    return "{" + ", ".join(one(tensor) for tensor in inputs) + "}"
