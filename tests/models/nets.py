"""Nets of known size with seeded weights, built with the onnx helper: the same bytes every time."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 9  # old enough for every runtime that is allowed here
BATCH = "batch"
Value = tuple[str, int, list[str | int | None]]
"""An input's or output's name, element type and shape."""


def mlp(*, sizes: Sequence[int] = (64, 128, 10), seed: int = 1) -> bytes:
    """Dense layers with Relu between: input ``x`` [batch, sizes[0]], output ``y`` [batch, sizes[-1]], FP32."""
    graph = _Graph(seed)
    value = "x"
    for number, (width, height) in enumerate(pairwise(sizes)):
        last = number == len(sizes) - 2
        value = graph.dense(value, width, height, f"dense{number}", output="y" if last else None)
        if not last:
            value = graph.node("Relu", [value])
    return graph.model("mlp", ("x", TensorProto.FLOAT, [BATCH, sizes[0]]), ("y", TensorProto.FLOAT, [BATCH, sizes[-1]]))


def encoder(
    *,
    layers: int = 6,
    hidden: int = 768,
    heads: int = 12,
    tokens: int = 8,
    vocabulary: int = 2000,
    outputs: int = 8,
    seed: int = 2,
) -> bytes:
    """A transformer encoder over ``tokens`` ids, feed-forward 4 x hidden, mean over the tokens, one dense layer:
    input ``ids`` INT64 [batch, tokens], output ``y`` FP32 [batch, outputs]."""
    graph = _Graph(seed)
    words = graph.weight("words", (vocabulary, hidden), 1.0)
    places = graph.weight("places", (tokens, hidden), 1.0)
    value = graph.node("Add", [graph.node("Gather", [words, "ids"]), places])
    for layer in range(layers):
        name = f"layer{layer}"
        value = graph.normed(value, graph.attention(value, hidden, heads, tokens, name), hidden, f"{name}.first")
        inner = graph.node("Relu", [graph.dense(value, hidden, 4 * hidden, f"{name}.up")])
        value = graph.normed(value, graph.dense(inner, 4 * hidden, hidden, f"{name}.down"), hidden, f"{name}.second")
    pooled = graph.node("ReduceMean", [value], axes=[1], keepdims=0)
    graph.dense(pooled, hidden, outputs, "head", output="y")
    return graph.model(
        "encoder", ("ids", TensorProto.INT64, [BATCH, tokens]), ("y", TensorProto.FLOAT, [BATCH, outputs])
    )


class _Graph:
    """Collects nodes and seeded weights."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def node(self, kind: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        name = output or f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(self, name: str, shape: tuple[int, ...], scale: float) -> str:
        return self.constant(name, (scale * self._rng.standard_normal(shape)).astype(np.float32))

    def constant(self, name: str, value: NDArray[np.generic]) -> str:
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def dense(self, value: str, width: int, height: int, name: str, output: str | None = None) -> str:
        product = self.node("MatMul", [value, self.weight(f"{name}.w", (width, height), width**-0.5)])
        return self.node("Add", [product, self.weight(f"{name}.b", (height,), 0.1)], output)

    def attention(self, value: str, hidden: int, heads: int, tokens: int, name: str) -> str:
        """[batch, tokens, hidden] -> the same."""
        split = self.constant(f"{name}.split", np.array([0, tokens, heads, hidden // heads], np.int64))
        joined = self.constant(f"{name}.join", np.array([0, tokens, hidden], np.int64))
        scale = self.constant(f"{name}.scale", np.array((hidden // heads) ** -0.5, np.float32))

        def headed(part: str, order: list[int]) -> str:
            dense = self.dense(value, hidden, hidden, f"{name}.{part}")
            return self.node("Transpose", [self.node("Reshape", [dense, split])], perm=order)

        query, key, carried = headed("q", [0, 2, 1, 3]), headed("k", [0, 2, 3, 1]), headed("v", [0, 2, 1, 3])
        scores = self.node("Mul", [self.node("MatMul", [query, key]), scale])
        mixed = self.node("MatMul", [self.node("Softmax", [scores], axis=-1), carried])
        together = self.node("Reshape", [self.node("Transpose", [mixed], perm=[0, 2, 1, 3]), joined])
        return self.dense(together, hidden, hidden, f"{name}.out")

    def normed(self, value: str, addition: str, hidden: int, name: str) -> str:
        scale = self.constant(f"{name}.scale", np.ones(hidden, np.float32))
        bias = self.constant(f"{name}.bias", np.zeros(hidden, np.float32))
        return self.node("LayerNormalization", [self.node("Add", [value, addition]), scale, bias], axis=-1)

    def model(self, name: str, given: Value, answer: Value) -> bytes:
        inputs, outputs = [helper.make_tensor_value_info(*given)], [helper.make_tensor_value_info(*answer)]
        graph = helper.make_graph(self._nodes, name, inputs, outputs, self._weights)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="batchyard-tests",
        )
        onnx.checker.check_model(model)
        text: bytes = model.SerializeToString(deterministic=True)
        return text


def masked_mean() -> bytes:
    """Inputs ``x`` and ``mask`` FP32 [batch, length]; outputs ``y`` [batch, 1], the mean of x where mask is 1, and
    ``centred`` [batch, length], x less that mean."""
    nodes = [
        helper.make_node("Mul", ["x", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["total"], keepdims=1),
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["y"]),
        helper.make_node("Sub", ["x", "y"], ["centred"]),
    ]
    vector: list[str | int | None] = [BATCH, "length"]
    graph = helper.make_graph(
        nodes,
        "masked_mean",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, vector) for name in ("x", "mask")],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, 1]),
            helper.make_tensor_value_info("centred", TensorProto.FLOAT, vector),
        ],
        [numpy_helper.from_array(np.array([1], np.int64), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    text: bytes = model.SerializeToString(deterministic=True)
    return text
