"""Typed reading of one mapping of a document: each key is taken once, what is left over is unknown and refused."""

import difflib
from collections.abc import Callable, Mapping
from typing import TypeVar

from jobs.models.document import Node, Report

T = TypeVar("T")
D = TypeVar("D")


class WrongValue(Exception):
    """A value that cannot be used; the text says what was expected."""


class Section:
    """One mapping. ``path`` is how its keys are named in findings: ``batch.max_size``."""

    def __init__(self, node: Node, report: Report, path: str = "") -> None:
        self.line = node.line
        self._report = report
        self._path = path
        self._known: list[str] = []
        self._entries: Mapping[str, Node] = {}
        if isinstance(node.value, Mapping):
            self._entries = node.value
        elif node.value is not None or not path:
            report(node.line, f"{path or 'the document'} must be a mapping (key: value)")

    def name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def report(self, key: str, message: str) -> None:
        """Notes a finding at ``key``'s line (the section's own where it is left out)."""
        entry = self._entries.get(key)
        self._report(entry.line if entry else self.line, f"{self.name(key)} {message}")

    def node(self, key: str) -> Node | None:
        """The raw entry; None where it is left out."""
        self._known.append(key)
        return self._entries.get(key)

    def take(self, key: str, read: Callable[[Node], T], default: D) -> T | D:
        """The value of ``key``; ``default`` where it is left out, null or wrong (which is reported)."""
        node = self.node(key)
        if node is None or node.value is None:
            return default
        try:
            return read(node)
        except WrongValue as wrong:
            self._report(node.line, f"{self.name(key)} {wrong}")
            return default

    def need(self, key: str, read: Callable[[Node], T], default: D, hint: str) -> T | D:
        """As `take`, but leaving it out is a finding that ends in ``hint``."""
        node = self._entries.get(key)
        if node is None or node.value is None:
            self._known.append(key)
            self._report(node.line if node else self.line, f"{self.name(key)} is missing; {hint}")
            return default
        return self.take(key, read, default)

    def section(self, key: str) -> "Section":
        node = self.node(key)
        return Section(node or Node(None, self.line), self._report, self.name(key))

    def names(self) -> list[str]:
        """Every key there is, for mappings whose keys are names of the author's; all become known."""
        self._known.extend(self._entries)
        return list(self._entries)

    def done(self) -> None:
        """Reports every key that nothing asked for."""
        for key, node in self._entries.items():
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(self._known)}"
                self._report(node.line, f"unknown key {self.name(key)}; {hint}")


def whole(least: int, most: int = 2**31 - 1) -> Callable[[Node], int]:
    def read(node: Node) -> int:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongValue(f"must be a whole number, not {_shown(value)}")
        if not least <= value <= most:
            raise WrongValue(f"must be from {least} to {most}, not {value}")
        return value

    return read


def number(least: float, most: float) -> Callable[[Node], float]:
    def read(node: Node) -> float:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise WrongValue(f"must be a number, not {_shown(value)}")
        if not least <= value <= most:
            raise WrongValue(f"must be from {least:g} to {most:g}, not {value}")
        return float(value)

    return read


def choice(*known: str) -> Callable[[Node], str]:
    def read(node: Node) -> str:
        if node.value not in known or not isinstance(node.value, str):
            raise WrongValue(f"must be one of {', '.join(known)}, not {_shown(node.value)}")
        return node.value

    return read


def text(node: Node) -> str:
    if not isinstance(node.value, str) or not node.value:
        raise WrongValue(f"must be text, not {_shown(node.value)}")
    return node.value


def boolean(node: Node) -> bool:
    if not isinstance(node.value, bool):
        raise WrongValue(f"must be true or false, not {_shown(node.value)}")
    return node.value


def entries(node: Node) -> list[Node]:
    if not isinstance(node.value, list):
        raise WrongValue(f"must be a list in [ ], not {_shown(node.value)}")
    return node.value


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
