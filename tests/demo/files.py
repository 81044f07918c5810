"""Which files the demo classifies, and how they are packed into jobs without holding them all in memory."""

import base64
import hashlib
import os
import random
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FROM_LIBRARY = 3000
REQUEST_BYTES = 16 * 1024 * 1024
ENVELOPE_BYTES = 64 * 1024  # room in a request for everything but the contents
PACK_BYTES = 4 * 1024 * 1024
PACK_ITEMS = 128


@dataclass(frozen=True, slots=True)
class Packed:
    """Files that travel as one job."""

    paths: tuple[Path, ...]
    digests: tuple[str, ...]  # SHA-256 of each content as it was sent
    items: tuple[dict[str, Any], ...]


def chosen(folder: Path | None, edges: Path) -> list[Path]:
    """The files to classify: those under ``folder``, or the default set; and the edge cases, made in ``edges``."""
    found = under(folder) if folder is not None else [*_library(), *tracked(ROOT)]
    return [*edge_files(edges), *found]


def under(folder: Path) -> list[Path]:
    """Every regular file that can be read, in a stable order; installed packages left out, links to folders not
    followed."""
    found = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in ("site-packages", "dist-packages", ".git"))
        found += [path for name in sorted(names) if (path := Path(at, name)).is_file() and os.access(path, os.R_OK)]
    return found


def evenly(paths: list[Path], count: int) -> list[Path]:
    """``count`` of them at equal distances; all where there are not so many."""
    if len(paths) <= count:
        return paths
    return [paths[i * len(paths) // count] for i in range(count)]


def tracked(root: Path) -> list[Path]:
    """The files git tracks in ``root``; none where there is no git."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [path for name in listed.split(b"\0") if name and (path := root / os.fsdecode(name)).is_file()]


def edge_files(folder: Path) -> list[Path]:
    """What real folders rarely hold, made here: nothing, one byte, 10 MB, bytes without meaning, awkward names."""
    rng = random.Random(7)
    line = b"2026-12-01T00:00:00Z INFO request served in 12 ms\n"
    contents = {
        "empty": b"",
        "one byte": b"x",
        "ten megabytes.log": (line * (10_000_000 // len(line) + 1))[:10_000_000],
        "binary.bin": rng.randbytes(100_000),
        "Grüße aus Köln, mit Leerzeichen.txt": "Schöne Grüße aus Köln!\nBis bald.\n".encode(),
        "white space only": b" \t\r\n" * 40,
        "seven bytes": b"\xff\xfe\x00\x01\x02\x03\x04",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def too_large(path: Path) -> bool:
    """Whether the file does not fit into one request."""
    return 4 * ((path.stat().st_size + 2) // 3) + ENVELOPE_BYTES > REQUEST_BYTES


def packed(paths: Iterable[Path]) -> Iterator[Packed]:
    """Jobs of up to 128 files and about 4 MiB (a larger file goes alone); each file is read when its turn comes."""
    group: list[tuple[Path, bytes]] = []
    held = 0
    for path in paths:
        content = path.read_bytes()
        size = 4 * len(content) // 3
        if group and (held + size > PACK_BYTES or len(group) == PACK_ITEMS):
            yield _pack(group)
            group, held = [], 0
        group.append((path, content))
        held += size
    if group:
        yield _pack(group)


def _pack(group: list[tuple[Path, bytes]]) -> Packed:
    items = tuple(
        {"input": {"name": shown(path), "content_b64": base64.b64encode(content).decode("ascii")}}
        for path, content in group
    )
    digests = tuple(hashlib.sha256(content).hexdigest() for _, content in group)
    return Packed(tuple(path for path, _ in group), digests, items)


def shown(path: Path) -> str:
    """The file's name as it can be printed and sent: bytes that are no text are replaced."""
    return os.fsencode(path.name).decode("utf-8", "replace")


def _library() -> list[Path]:
    """From the standard library; compiled modules only as far as there is too little else."""
    paths = under(Path(sysconfig.get_paths()["stdlib"]))
    plain = [path for path in paths if path.suffix != ".pyc"]
    taken = evenly(plain, FROM_LIBRARY)
    return [*taken, *evenly([path for path in paths if path.suffix == ".pyc"], FROM_LIBRARY - len(taken))]
