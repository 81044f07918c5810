"""model.yaml (schema 1) -> one ModelSpec per version. Strict: what is not understood is refused, with file and line."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from jobs.errors import ModelError
from jobs.models import document, paths, tensors
from jobs.models.document import Node
from jobs.models.section import Section, WrongValue, boolean, choice, entries, number, text, whole
from jobs.models.spec import ENGINES, Artifact, BatchSettings, ModelSpec

FILE = "model.yaml"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
VERSION = re.compile(r"[1-9][0-9]{0,8}\Z")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}\Z")
_HOURS = 24 * 3600.0


def read(data: bytes, folder: Path, versions: Sequence[str]) -> list[ModelSpec]:
    """A spec for each of ``versions`` (names of the version folders, ascending).

    Raises one ModelError with every finding of the file, a line each; its ``where`` is that of the first.
    """
    where = f"{folder.name}/{FILE}"
    findings: list[tuple[int, str]] = []

    def report(line: int, message: str) -> None:
        findings.append((line, message))

    root = document.parse(data, where, report)
    specs = _specs(Section(root, report), folder, versions)
    if findings:
        raise as_error(where, findings)
    return specs


def as_error(where: str, findings: Sequence[tuple[int, str]]) -> ModelError:
    ordered = sorted(findings, key=lambda finding: finding[0])
    (line, first), *rest = ordered
    return ModelError(f"{where}:{line}", "\n".join([first, *(f"{where}:{n}: {message}" for n, message in rest)]))


def _specs(top: Section, folder: Path, versions: Sequence[str]) -> list[ModelSpec]:
    top.need("schema", _schema, 1, "write `schema: 1`")
    name = top.need("name", text, folder.name, "it must be the folder's name")
    if name != folder.name:
        top.report("name", f"is {name!r} but the folder is {folder.name!r}; they must be the same")
    engine = top.need("engine", choice(*ENGINES), "", f"one of {', '.join(ENGINES)}")
    kind = top.need("input", choice("json", "tensors"), "", "write `input: json` or `input: tensors`")
    path, hashes = _artifact(top, engine, versions)
    default = top.take("default_version", _version, versions[-1] if versions else "1")
    if versions and default not in versions:
        top.report("default_version", f"is {default}, but there is no such folder; there is {', '.join(versions)}")
    declared = tensors.read(top, plain_json=kind == "json" and engine == "python")
    if kind == "tensors" and engine == "python" and not (declared.inputs and declared.outputs):
        top.report("engine", "python with `input: tensors` needs `inputs` and `outputs`; nothing else can tell them")
    concurrency, mode = _handler(top, engine)
    timeouts = top.section("timeouts")
    retry = top.section("retry")
    common: dict[str, Any] = {
        "folder": folder,
        "engine": engine,
        "input": kind,
        "default_version": default,
        "pool": top.take("pool", _pool, "default"),
        "inputs": declared.inputs,
        "outputs": declared.outputs,
        "axes": declared.axes,
        "batch": _batch(top),
        "run_timeout": timedelta(seconds=timeouts.take("run_seconds", number(0.001, _HOURS), 30.0)),
        "max_attempts": retry.take("max_attempts", whole(1, 100), 3),
        "instances": top.take("instances", whole(1, 64), 1),
        "handler_concurrency": concurrency,
        "handler_mode": mode,
        "parameters": top.take("parameters", _mapping, {}),
        "non_finite": top.take("non_finite", choice("string", "fail"), "string"),
        "unavailable": top.take("unavailable", choice("wait", "fail"), "wait"),
        "sample": top.take("sample", _sample, ()),
    }
    timeouts.done()
    retry.done()
    _tensorrt(top, engine)
    top.done()
    return [
        ModelSpec(name=name, version=v, artifact=Artifact(path, hashes.get(v)) if path else None, **common)
        for v in versions
    ]


def _schema(node: Node) -> int:
    if node.value != 1 or isinstance(node.value, bool):
        raise WrongValue(f"must be 1, the only one known, not {node.value!r}")
    return 1


def _version(node: Node) -> str:
    value = str(node.value) if isinstance(node.value, (int, str)) and not isinstance(node.value, bool) else ""
    if not VERSION.match(value):
        raise WrongValue(f"must be a version, a whole number from 1, not {node.value!r}")
    return value


def _pool(node: Node) -> str:
    if not NAME.match(text(node)):
        raise WrongValue("must be of a-z, 0-9, _ and -, at most 63 long")
    return text(node)


def _mapping(node: Node) -> Mapping[str, Any]:
    if not isinstance(node.value, Mapping):
        raise WrongValue("must be a mapping (key: value)")
    plain: Mapping[str, Any] = document.plain(node)
    return plain


def _sample(node: Node) -> tuple[Any, ...]:
    plain = document.plain(node)
    return tuple(plain) if isinstance(plain, list) else (plain,)


def _artifact(top: Section, engine: str, versions: Sequence[str]) -> tuple[str | None, Mapping[str, str]]:
    """The path below a version's folder and the expected hash of each version that has one."""
    node = top.node("artifact")
    needed = engine in ("onnxruntime", "tensorrt", "openvino")
    if node is None or node.value is None:
        if needed:
            top.report("artifact", "is missing; write `artifact: {path: model.onnx}`, relative to the version's folder")
        return None, {}
    if engine == "python":
        top.report("artifact", "is not used by engine python; remove it (load() is given the version's folder)")
    section = top.section("artifact")
    path = section.need("path", _path, "", "it is relative to the version's folder")
    hashes: Mapping[str, str] = section.take("sha256", lambda node: _hashes(node, versions), {})
    section.done()
    return path or None, hashes


def _path(node: Node) -> str:
    value = text(node)
    try:
        paths.parts_of(value)
    except ValueError as error:
        raise WrongValue(f"is {value!r}: {error}") from None
    return value


def _hashes(node: Node, versions: Sequence[str]) -> Mapping[str, str]:
    """One hash for all versions, or a mapping of version to hash."""
    given = node.value
    pairs = {v: e.value for v, e in given.items()} if isinstance(given, Mapping) else dict.fromkeys(versions, given)
    for version, value in pairs.items():
        if version not in versions:
            raise WrongValue(f"names version {version}, which has no folder")
        if not isinstance(value, str) or not _SHA256.match(value):
            raise WrongValue("must be 64 hexadecimal digits in quotes (sha256sum prints them), or one for each version")
    return {version: value.lower() for version, value in pairs.items()}


def _handler(top: Section, engine: str) -> tuple[int, str]:
    section = top.section("handler")
    concurrency = section.take("concurrency", whole(1, 64), 1)
    mode = section.take("mode", choice("thread", "process"), "process")
    if concurrency > 1 and engine == "python":
        section.report("concurrency", "is for preprocess and postprocess, which engine python does not call; remove it")
    elif concurrency > 1 and mode == "process":
        section.report("concurrency", "above 1 with mode process is not available yet; write `mode: thread`")
    section.done()
    return concurrency, mode


def _batch(top: Section) -> BatchSettings:
    section = top.section("batch")
    defaults = BatchSettings()
    most = section.take("max_size", whole(1, 65_536), defaults.max_size)
    sizes = section.take("preferred_sizes", lambda node: _sizes(node, most), ())
    delay = section.take("max_queue_delay_ms", number(0, 60_000), defaults.max_queue_delay / timedelta(milliseconds=1))
    elements: int | None = section.take("max_padded_elements", whole(1, 2**53), None)
    objective: float | None = section.take("p99_objective_ms", number(0.001, 3_600_000), None)
    section.done()
    return BatchSettings(
        max_size=most,
        preferred_sizes=sizes,
        max_queue_delay=timedelta(milliseconds=delay),
        max_padded_elements=elements,
        p99_objective=None if objective is None else timedelta(milliseconds=objective),
    )


def _sizes(node: Node, most: int) -> tuple[int, ...]:
    size = whole(1, most)
    sizes = tuple(size(entry) for entry in entries(node))
    if list(sizes) != sorted(set(sizes)):
        raise WrongValue("must be ascending, each size once")
    return sizes


def _tensorrt(top: Section, engine: str) -> None:
    """Its keys are checked here; the engine that would use them says at load that it is not available yet."""
    node = top.node("tensorrt")
    if node is None:
        return
    if engine != "tensorrt":
        top.report("tensorrt", "is only for `engine: tensorrt`; remove it")
    section = top.section("tensorrt")
    section.take("precision", choice("fp32", "fp16", "bf16", "int8", "fp8"), "fp32")
    section.take("workspace_mb", whole(1), 1024)
    for key in ("tf32", "version_compatible", "allow_host_code"):
        section.take(key, boolean, False)
    section.take("hardware_compatibility", text, "none")
    section.node("profiles")
    section.done()
