"""Reading below a folder without ever leaving it: no ``..``, no absolute or encoded path, no link of any kind."""

import hashlib
import os
import re
import stat
from pathlib import Path

from jobs.errors import ModelError

_ENCODED = re.compile(r"%[0-9a-fA-F]{2}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def parts_of(path: str) -> tuple[str, ...]:
    """The names that make up a relative path; ValueError says what is wrong with it."""
    if not path or path.isspace():
        raise ValueError("the path is empty")
    if "\0" in path:
        raise ValueError("a path must not hold a NUL character")
    if "\\" in path:
        raise ValueError("write / in paths, a backslash is refused")
    if _ENCODED.search(path):
        raise ValueError("percent-encoded characters are refused in paths")
    if path.startswith("/"):
        raise ValueError("the path must be relative")
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError("the path must be plain names joined by /, without '..'")
    return parts


def open_inside(root: Path, parts: tuple[str, ...], where: str, *, single: bool = False) -> int:
    """A descriptor of the regular file ``root/parts``, opened name by name without following links.

    ``single``: also refuse a file that has another name (hard link). The caller closes it. ModelError(where) otherwise.
    """
    shown = "/".join(parts)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        file = os.open(parts[-1], _FILE, dir_fd=folder)
    except FileNotFoundError:
        raise ModelError(where, f"{shown} does not exist") from None
    except OSError:
        raise ModelError(where, f"{shown} cannot be opened, or is or lies behind a symbolic link") from None
    finally:
        os.close(folder)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise ModelError(where, f"{shown} is not a regular file")
    if single and status.st_nlink > 1:
        os.close(file)
        raise ModelError(where, f"{shown} has a second name (hard link); copy it instead")
    return file


def read_inside(root: Path, parts: tuple[str, ...], where: str, *, single: bool = False) -> bytes:
    with os.fdopen(open_inside(root, parts, where, single=single), "rb") as file:
        return file.read()


def hash_inside(root: Path, parts: tuple[str, ...], where: str) -> str:
    """SHA-256 of a file that may be larger than memory, in hexadecimal."""
    with os.fdopen(open_inside(root, parts, where, single=True), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
