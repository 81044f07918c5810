"""What an exception means for the item or batch it struck, and how it is told: without a word about this machine."""

import math
import re
import traceback
from dataclasses import dataclass
from pathlib import Path

from batchyard.handler import Permanent, Retry
from jobs.errors import BatchyardError
from jobs.states import ErrorCode
from jobs.tensors.encode import NonFinite

MAX_TRACEBACK = 16 * 1024
MAX_MESSAGE = 2_000
_ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:[^\s/'\":;,()<>]+/)+([^\s/'\":;,()<>]*)")
_NO_MEMORY = ("bad_alloc", "bad allocation", "failed to allocate memory", "out of memory")


class OutputInvalid(BatchyardError):
    """What came out cannot be an answer: wrong names, no JSON, a number that may not be."""


class BadFeed(BatchyardError):
    """What preprocess gave cannot be fed to the model."""


class WrongBatch(BatchyardError):
    """Outputs that do not have one row an item: nobody can tell whose they are."""


@dataclass(frozen=True, slots=True)
class Verdict:
    code: str
    message: str
    permanent: bool
    stage: str
    traceback: str | None = None
    retry_after: float | None = None


def judge(error: BaseException, stage: str, folder: Path) -> Verdict:
    """`folder` is the model's: frames of its own files are what a traceback keeps."""
    if isinstance(error, OutputInvalid | NonFinite):
        return Verdict(ErrorCode.OUTPUT_INVALID, told(error, named=False), True, stage)
    if isinstance(error, WrongBatch):
        return Verdict(ErrorCode.ENGINE_ERROR, told(error, named=False), False, stage)
    if isinstance(error, BadFeed):
        return Verdict(ErrorCode.HANDLER_ERROR, told(error, named=False), True, stage)
    trace = handler_traceback(error, folder)
    if isinstance(error, Retry):
        text = told(error, named=False) or "the handler asked for another try"
        return Verdict(ErrorCode.HANDLER_ERROR, text, False, stage, trace, _seconds(error.after))
    if isinstance(error, Permanent):
        text = told(error, named=False) or "the handler gave this item up"
        return Verdict(ErrorCode.HANDLER_ERROR, text, True, stage, trace)
    if isinstance(error, MemoryError) or (stage == "run" and any(t in str(error).lower() for t in _NO_MEMORY)):
        return Verdict(ErrorCode.OUT_OF_MEMORY, told(error), False, stage, trace)
    if stage == "preprocess" and isinstance(error, ValueError | TypeError | KeyError):
        return Verdict(ErrorCode.INVALID_INPUT, told(error), True, stage, trace)
    code = ErrorCode.ENGINE_ERROR if stage == "run" else ErrorCode.HANDLER_ERROR
    return Verdict(code, told(error), False, stage, trace)


def told(error: BaseException, *, named: bool = True) -> str:
    """The exception in one text, ``RuntimeError: no vocabulary``; files by their name alone."""
    try:
        text = str(error)
    except Exception:  # an exception of the handler's own with a broken __str__
        text = ""
    if named:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return without_paths(text)[:MAX_MESSAGE]


def without_paths(text: str) -> str:
    return _ABSOLUTE.sub(r"\1", text)


def handler_traceback(error: BaseException, folder: Path) -> str | None:
    """Of the frames in the model's own files, with the exceptions it came from; None when there is no such frame."""
    whole = traceback.TracebackException.from_exception(error)
    if not _trim(whole, str(folder) + "/", folder.name):
        return None
    text = without_paths("".join(whole.format()))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK + 8 :]}"


def _trim(of: traceback.TracebackException, prefix: str, name: str, depth: int = 0) -> bool:
    kept = [frame for frame in of.stack if frame.filename.startswith(prefix)]
    for frame in kept:
        frame.filename = f"{name}/{frame.filename[len(prefix) :]}"
    of.stack[:] = kept
    found = bool(kept)
    for inner in (of.__cause__, of.__context__, *(of.exceptions or ())):
        if inner is not None and depth < 8:
            found = _trim(inner, prefix, name, depth + 1) or found
    return found


def _seconds(after: object) -> float | None:
    """A delay that can be kept: finite and not below 0."""
    if isinstance(after, int | float) and math.isfinite(after) and after >= 0:
        return float(after)
    return None
