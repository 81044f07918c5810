"""The data folder of a local stack: who owns it now, and the addresses and keys it tells its user."""

import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from batchyard.errors import BatchyardError
from batchyard.target import read_env


class Occupied(BatchyardError):
    """Another process runs on this data folder."""

    def __init__(self, folder: Path, pid: int | None) -> None:
        owner = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{folder} is in use by {owner}: stop it first (kill {pid or 'PID'}), or give another folder with --data"
        )
        self.pid = pid


class Lock:
    """``DATA/lock``: held by the one process that may write to the ledger, freed by the kernel however it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def __enter__(self) -> Self:
        path = self._folder / "lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(handle)
            os.close(handle)
            raise Occupied(self._folder, pid) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._file = handle
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None


def owner(folder: Path) -> int | None:
    """The pid of the process that runs on this folder now (0 if it left none), None if there is none."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(handle) or 0
    else:
        return None
    finally:
        os.close(handle)


def _pid_in(handle: int) -> int | None:
    text = os.pread(handle, 32, 0).strip()
    return int(text) if text.isdigit() else None


@dataclass(frozen=True, slots=True)
class Keys:
    """The secrets of a local stack: they stay the same over restarts, so that scripts go on working."""

    api: str
    admin: str

    @classmethod
    def kept(cls, folder: Path) -> Self:
        """Those of DATA/env, new ones where it has none."""
        values = read_env(folder / "env")
        return cls(
            values.get("BATCHYARD_API_KEY") or f"bysk_{secrets.token_urlsafe(32)}",
            values.get("BATCHYARD_ADMIN_KEY") or f"bysk_{secrets.token_urlsafe(32)}",
        )


def prepare(folder: Path) -> Path:
    """Makes the folder (readable by its owner alone) and gives its absolute path."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BatchyardError(f"the data folder {folder} cannot be made: {error.strerror}") from error
    return folder.resolve()


def write_env(folder: Path, url: str, admin_url: str, keys: Keys) -> Path:
    """``DATA/env``, mode 0600, whole or not at all."""
    path = folder / "env"
    draft = folder / f".env.{os.getpid()}"
    text = (
        f"BATCHYARD_URL={url}\nBATCHYARD_API_KEY={keys.api}\n"
        f"BATCHYARD_ADMIN_URL={admin_url}\nBATCHYARD_ADMIN_KEY={keys.admin}\n"
    )
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return path
