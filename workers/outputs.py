"""Large outputs: what of a result frame is too large for a row goes into blobs, and the frame names them."""

from collections.abc import Callable

import msgspec

from jobs import frames, ranges
from jobs.blob import BlobStore
from jobs.frames import Column, ResultBlob, ResultHeader
from jobs.records import ChunkRef
from workers.payloads import split_rows

_EMPTY = memoryview(b"")


def shrink(frame: bytes, ref: ChunkRef, blobs: BlobStore, limit: int, put: Callable[[], None]) -> bytes:
    """The frame to keep: every output of an item above `limit` bytes lies in a blob of its own, its part is empty.

    A blob holds the JSON answer of a json model, else the output in V2 binary form. A ``rows`` frame that loses a
    column becomes ``ragged``, whose parts may be empty one by one. `put` is called after each blob.
    """
    if len(frame) <= limit:
        return frame
    kept: list[bytes] = []
    for header, parts in frames.unpack_results(frame):
        kept.append(_shrunk(header, parts, ref, blobs, limit, put))
    return b"".join(kept)


def _shrunk(
    header: ResultHeader,
    parts: list[memoryview],
    ref: ChunkRef,
    blobs: BlobStore,
    limit: int,
    put: Callable[[], None],
) -> bytes:
    indexes = list(ranges.indexes(header.items))
    names = [column.name for column in header.columns] or [""]
    if header.kind == "rows":
        columns = [split_rows(column, part, len(indexes)) for column, part in zip(header.columns, parts, strict=True)]
        rows = [column[position] for position in range(len(indexes)) for column in columns]
        if any(len(row) > limit for row in rows):
            header, parts = _ragged(header, len(indexes)), rows
    if header.kind == "rows" or not any(len(part) > limit for part in parts):
        return frames.pack(header, parts)
    moved = dict(header.blobs)
    for at, part in enumerate(parts):
        if len(part) > limit:
            position, column_at = divmod(at, len(names))
            name = names[column_at]
            stored = blobs.put(f"results/{ref.job}/{ref.seq}-{ref.fence}/{indexes[position]}-{column_at}", bytes(part))
            put()
            blob = ResultBlob(name, stored.key, stored.bytes, stored.sha256)
            moved[position] = (*moved.get(position, ()), blob)
            parts[at] = _EMPTY
    return frames.pack(msgspec.structs.replace(header, blobs=moved), parts)


def _ragged(header: ResultHeader, items: int) -> ResultHeader:
    shapes = tuple(column.shape for column in header.columns)
    columns = tuple(Column(column.name, column.datatype, (-1,) * len(column.shape)) for column in header.columns)
    return msgspec.structs.replace(header, kind="ragged", columns=columns, shapes=(shapes,) * items)
