"""Where the API is and which key to show it.

Looked up in this order: arguments, the environment (BATCHYARD_URL, BATCHYARD_API_KEY), a ``batchyard.toml`` (``url``,
``api_key``) in the working folder or one above it, and the ``.batchyard/env`` that a local stack wrote there.
A key out of a file is only ever sent to the address in the same file.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from batchyard.errors import ConfigurationError

URL = "BATCHYARD_URL"
KEY = "BATCHYARD_API_KEY"
TOML = "batchyard.toml"
LOCAL_ENV = Path(".batchyard") / "env"


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    api_key: str
    source: str  # for messages: where the address came from


@dataclass(frozen=True, slots=True)
class _Found:
    source: str
    url: str | None
    key: str | None
    file: bool


def locate(
    url: str | None = None,
    api_key: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Target:
    """ConfigurationError says what was looked for and what to do."""
    env = os.environ if environ is None else environ
    found = [
        _Found("the arguments", url, api_key, file=False),
        _Found("the environment", env.get(URL) or None, env.get(KEY) or None, file=False),
        *_files(Path.cwd() if folder is None else folder),
    ]
    at = next((f for f in found if f.url), None)
    if at is None or at.url is None:
        raise ConfigurationError(
            f"no Batchyard address found: start a local stack with `batchyard up` (in this folder or one above it), "
            f"or set {URL} and {KEY}, or pass url and api_key, or write them into {TOML}"
        )
    address = _checked(at.url, at.source)
    key = next((f.key for f in found if f.key and (not f.file or f is at or _same(f.url, address))), None)
    if key is None:
        raise ConfigurationError(
            f"the address {address} (from {at.source}) comes without a key: set {KEY} or pass api_key"
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigurationError("the API key holds characters that no key has; copy it again")
    return Target(address, key, at.source)


def _same(url: str | None, address: str) -> bool:
    return url is not None and url.rstrip("/") == address


def _checked(url: str, source: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{url!r} (from {source}) is no address: it must start with http:// or https://")
    return url.rstrip("/")


def _files(folder: Path) -> Iterator[_Found]:
    folders = [folder, *folder.parents]
    toml = next((f / TOML for f in folders if (f / TOML).is_file()), None)
    if toml is not None:
        yield _read_toml(toml)
    env = next((f / LOCAL_ENV for f in folders if _ours(f / LOCAL_ENV)), None)
    if env is not None:
        values = read_env(env)
        yield _Found(str(env), values.get(URL), values.get(KEY), file=True)


def _ours(path: Path) -> bool:
    """Someone else's file in a shared folder (/tmp) must not say where to send work."""
    try:
        owner = path.stat().st_uid
    except OSError:
        return False
    return path.is_file() and os.getuid() in (owner, 0)


def _read_toml(path: Path) -> _Found:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    values.pop("server", None)  # settings of the service, which has them checked
    unknown = sorted(set(values) - {"url", "api_key"})
    if unknown:
        raise ConfigurationError(f"{path}: unknown key {unknown[0]!r}; known: url, api_key")
    for name, value in values.items():
        if not isinstance(value, str):
            raise ConfigurationError(f"{path}: {name} must be a string")
    return _Found(str(path), values.get("url"), values.get("api_key"), file=True)


def read_env(path: Path) -> dict[str, str]:
    """``NAME=value`` lines as a local stack writes them; a file that cannot be read counts as empty."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
