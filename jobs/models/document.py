"""A YAML file as plain values that remember their line. Tags, anchors and duplicate keys are refused.

Scalars are resolved by the JSON-like core rules of YAML 1.2 (`no` is a string, `1e-5` a number), so nothing in a file
can name a type, build an object or expand into more than was written.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import yaml

from jobs.errors import ModelError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64

Report = Callable[[int, str], None]
"""Notes one finding: line (from 1) and what is wrong and what to do."""


_OPENING = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


@dataclass(frozen=True, slots=True)
class Node:
    """``value`` is None, bool, int, float, str, a list of Nodes or a mapping of str to Node."""

    value: Any
    line: int


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^(?:[-+]?[0-9]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def parse(data: bytes, where: str, report: Report) -> Node:
    """The document of ``data``; ModelError(`where:line`) if it is no YAML document at all."""
    if len(data) > MAX_BYTES:
        raise ModelError(where, f"is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ModelError(f"{where}:{line}", "is not UTF-8 text") from None
    try:
        _refuse_indirections(text, where)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ModelError(f"{where}:{line}", f"is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ModelError(f"{where}:1", f"is not YAML: {str(error).splitlines()[0]}") from None
    if root is None:
        raise ModelError(f"{where}:1", "is empty; `batchyard models init` writes a filled one")
    return _node(root, report)


def _refuse_indirections(text: str, where: str) -> None:
    depth = 0
    for token in yaml.scan(text, Loader=_Loader):
        line = token.start_mark.line + 1
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > MAX_DEPTH:
            raise ModelError(f"{where}:{line}", f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(token, yaml.TagToken):
            raise ModelError(f"{where}:{line}", "YAML tags (!…) are refused; write the plain value")
        if isinstance(token, (yaml.AnchorToken, yaml.AliasToken)):
            raise ModelError(f"{where}:{line}", "YAML anchors and aliases (&, *) are refused; write the value out")


def _node(node: yaml.Node, report: Report) -> Node:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        entries: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = _key(key_node)
            if key is None:
                report(key_node.start_mark.line + 1, "a key must be a plain word or a quoted string")
            elif key in entries:
                report(key_node.start_mark.line + 1, f"{key!r} is given twice; keep one")
            else:
                value = _node(value_node, report)
                entries[key] = Node(value.value, key_node.start_mark.line + 1)
        return Node(entries, line)
    if isinstance(node, yaml.SequenceNode):
        return Node([_node(entry, report) for entry in node.value], line)
    return Node(_scalar(node, report, line), line)


def _key(node: yaml.Node) -> str | None:
    if isinstance(node, yaml.ScalarNode) and node.tag.rpartition(":")[2] in ("str", "int", "bool"):
        return str(node.value)
    return None


def _scalar(node: yaml.Node, report: Report, line: int) -> Any:
    kind = node.tag.rpartition(":")[2]
    text = str(node.value)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        try:
            return int(text, 16 if text.startswith("0x") else 10)
        except ValueError:
            report(line, "the number has too many digits")
            return 0
    if kind == "float":
        number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if not isfinite(number):
            report(line, 'a number must be finite; for a tensor write the string "NaN", "Infinity" or "-Infinity"')
        return number
    return text


def plain(node: Node) -> Any:
    """The value without its lines, as JSON would have it."""
    if isinstance(node.value, Mapping):
        return {key: plain(value) for key, value in node.value.items()}
    if isinstance(node.value, list):
        return [plain(entry) for entry in node.value]
    return node.value
