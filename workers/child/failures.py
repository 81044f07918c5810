"""What an exception means for the item or batch it struck."""

import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from batchyard.handler import Permanent, Retry
from jobs.errors import BatchyardError
from jobs.states import ErrorCode
from jobs.tensors.encode import NonFinite

MAX_TRACEBACK = 16 * 1024
MAX_MESSAGE = 2_000
_OWN = str(Path(__file__).resolve().parents[2])


class OutputInvalid(BatchyardError):
    """What came out cannot be an answer: wrong names, no JSON, a number that may not be."""


class WrongBatch(BatchyardError):
    """Outputs that do not have one row an item: nobody can tell whose they are."""


@dataclass(frozen=True, slots=True)
class Verdict:
    code: str
    message: str
    permanent: bool
    stage: str
    traceback: str | None
    retry_after: float | None = None


def judge(error: BaseException, stage: str, folder: Path) -> Verdict:
    """`folder` is the model's: frames of its own files are what a traceback keeps."""
    trace = _traceback(error, folder)
    if isinstance(error, Retry):
        return Verdict(ErrorCode.HANDLER_ERROR, _message(error, folder), False, stage, trace, error.after)
    if isinstance(error, Permanent):
        return Verdict(ErrorCode.HANDLER_ERROR, _message(error, folder), True, stage, trace)
    if isinstance(error, MemoryError):
        return Verdict(ErrorCode.OUT_OF_MEMORY, "not enough memory for this item", False, stage, trace)
    if isinstance(error, OutputInvalid | NonFinite):
        return Verdict(ErrorCode.OUTPUT_INVALID, str(error)[:MAX_MESSAGE], True, stage, None)
    if isinstance(error, WrongBatch):
        return Verdict(ErrorCode.ENGINE_ERROR, str(error)[:MAX_MESSAGE], False, stage, None)
    if stage == "preprocess" and isinstance(error, ValueError | TypeError | KeyError):
        return Verdict(ErrorCode.INVALID_INPUT, _message(error, folder), True, stage, trace)
    code = ErrorCode.ENGINE_ERROR if stage == "run" else ErrorCode.HANDLER_ERROR
    return Verdict(code, _message(error, folder), False, stage, trace)


def _message(error: BaseException, folder: Path) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _without_paths(text, folder)[:MAX_MESSAGE]


def _without_paths(text: str, folder: Path) -> str:
    """The model's folder by its name, nothing of where this machine keeps things."""
    return text.replace(str(folder), folder.name).replace(_OWN + "/", "")


def _traceback(error: BaseException, folder: Path) -> str | None:
    """From the first frame of the handler's own file on; None when it never got there."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and not frame.tb_frame.f_code.co_filename.startswith(str(folder)):
        frame = frame.tb_next
    if frame is None:
        return None
    text = "".join(traceback.format_exception(type(error), error, frame))
    return _without_paths(text, folder)[-MAX_TRACEBACK:]
