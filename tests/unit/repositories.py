"""Model repositories made for a test, and small ONNX graphs to put into them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

Dims = list[int | str | None]


def write_model(
    root: Path, name: str, yaml: str, files: Mapping[str, str | bytes] | None = None, version: str = "1"
) -> Path:
    """`files` by path below the model's folder. Gives that folder."""
    folder = root / name
    (folder / version).mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(yaml, encoding="utf-8")
    for path, content in (files or {}).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def python_model(root: Path, name: str, body: str, extra: str = "", kind: str = "json") -> Path:
    """engine python with `body` as its handler.py."""
    return write_model(
        root, name, f"schema: 1\nname: {name}\nengine: python\ninput: {kind}\n{extra}", {"1/handler.py": body}
    )


def onnx_model(root: Path, name: str, artifact: bytes, extra: str = "", handler: str | None = None) -> Path:
    kind = "tensors" if handler is None else "json"
    files: dict[str, str | bytes] = {"1/model.onnx": artifact}
    if handler is not None:
        files["1/handler.py"] = handler
    yaml = f"schema: 1\nname: {name}\nengine: onnxruntime\ninput: {kind}\nartifact: {{path: model.onnx}}\n{extra}"
    return write_model(root, name, yaml, files)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Dims | None]],
    outputs: Mapping[str, tuple[int, Dims | None]],
    weights: Sequence[onnx.TensorProto] = (),
) -> bytes:
    """Shapes with the batch dimension."""
    made = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, *of) for name, of in inputs.items()],
        [helper.make_tensor_value_info(name, *of) for name, of in outputs.items()],
        list(weights),
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def double(batch: int | str | None = "batch", width: int | str = 3) -> bytes:
    """y = x + x."""
    shape: Dims = [batch, width]
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return graph([node], {"x": (TensorProto.FLOAT, shape)}, {"y": (TensorProto.FLOAT, shape)})
