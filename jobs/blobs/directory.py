"""Blobs as files in one folder, with links that the API itself serves."""

import base64
import binascii
import errno
import hashlib
import hmac
import os
import tempfile
from datetime import timedelta
from pathlib import Path

from jobs.blobs.keys import check, is_key
from jobs.clock import Clock, system_clock, to_micros
from jobs.errors import BatchyardError, Gone, NotFound, Refused, Unavailable
from jobs.records import BlobRef

_MAC_BYTES = 32
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""What the system says of a path at which no blob of ours can lie."""


class DirectoryBlobs:
    """`secret` signs links; who holds a link can read that one blob until it expires.

    NotFound means that the blob is not there; anything else that the disk says is Unavailable, so that a full disk or
    too many open files never passes for a lost blob.
    """

    def __init__(self, folder: Path, secret: bytes, clock: Clock = system_clock) -> None:
        self._folder = folder
        self._secret = secret
        self._clock = clock
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, data: bytes) -> BlobRef:
        path = self._path(key)
        try:
            self._write(path, data)
        except OSError as error:
            raise Unavailable(f"blob {key} cannot be written: {error.strerror or error}") from error
        return BlobRef(key, len(data), hashlib.sha256(data).hexdigest())

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".put-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._sync(path.parent)

    def _sync(self, folder: Path) -> None:
        """Makes new names durable: of the file, and of every folder down to it."""
        while True:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if folder == self._folder:
                return
            folder = folder.parent

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        path = self._path(key)
        try:
            with open(path, "rb", opener=_opener) as file:
                file.seek(start)
                return file.read(-1 if stop is None else max(0, stop - start))
        except OSError as error:
            raise _failed(key, error) from error

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            if not path.is_dir():
                path.unlink(missing_ok=True)
        except OSError as error:
            failed = _failed(key, error)
            if not isinstance(failed, NotFound):
                raise failed from error

    def keys(self, prefix: str) -> list[str]:
        found = (path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file())
        return sorted(key for key in found if key.startswith(prefix) and is_key(key))

    def _path(self, key: str) -> Path:
        path = self._folder / check(key)
        if any(folder.is_symlink() for folder in path.parents[: key.count("/")]):
            raise Refused(f"blob key {key!r} leads through a symbolic link")
        return path

    def sign(self, key: str, expires_in: timedelta) -> str:
        self._path(key)
        until = to_micros(self._clock() + expires_in)
        text = f"{until} {key}".encode()
        token = base64.urlsafe_b64encode(self._mac(text) + text).decode().rstrip("=")
        return f"/v1/blobs/{token}"

    def verify(self, token: str) -> str:
        """The key that a link's token names; NotFound for one that this store did not sign, Gone once it expired."""
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error) as error:
            raise NotFound("no such link") from error
        mac, text = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(text)):
            raise NotFound("no such link")
        until, _, key = text.decode().partition(" ")
        if int(until) <= to_micros(self._clock()):
            raise Gone("this link has expired; read the results again for a fresh one")
        return key

    def _mac(self, text: bytes) -> bytes:
        return hmac.digest(self._secret, text, "sha256")


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _failed(key: str, error: OSError) -> BatchyardError:
    """Whether the blob is not there or cannot be read at the moment."""
    if error.errno in _ABSENT:
        return NotFound(f"no blob {key!r}")
    return Unavailable(f"blob {key} cannot be read: {error.strerror or error}")
