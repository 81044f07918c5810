"""The one frame format for payloads, results and stream records: magic, header, lengths, bytes.

``BYF1 | u32 header length | header (JSON) | u32 parts | u32 length of each part | the parts``, little-endian.
Frames can stand one after another in one value. Parts are read as views, so nothing is copied or parsed on the way.
"""

import struct
from collections.abc import Iterator, Sequence

import msgspec

from jobs.errors import Undecodable

MAGIC = b"BYF1"
_U32 = struct.Struct("<I")


class Column(msgspec.Struct, frozen=True, array_like=True):
    """A tensor's name, V2 datatype and the shape of one row (``rows`` frames) or -1s (``ragged`` frames)."""

    name: str
    datatype: str
    shape: tuple[int, ...]


NO_PARAMETERS = msgspec.Raw()
"""Empty, so false. (A decoder takes no union with Raw, so None cannot say it.)"""


class PayloadHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inputs of the items of one chunk.

    kind ``json``: a part per item, its verbatim JSON. ``rows``: a part per column holding all rows, in canonical V2
    binary form. ``ragged``: a part per (item, column), item by item, with ``shapes[item][column]``.
    """

    kind: str
    items: tuple[tuple[int, int], ...]
    ids: tuple[str, ...] | None = None  # None: each item's id is its index
    parameters: msgspec.Raw = NO_PARAMETERS  # the job's, verbatim JSON object
    item_parameters: dict[int, msgspec.Raw] = {}  # by position in the chunk
    outputs: tuple[str, ...] | None = None  # tensor models: the outputs wanted
    columns: tuple[Column, ...] = ()
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()


class ResultError(msgspec.Struct, frozen=True):
    code: str
    message: str
    permanent: bool
    stage: str


class ResultBlob(msgspec.Struct, frozen=True, array_like=True):
    """An output that lies in a blob. ``name`` is the output's, or "" for the whole answer of a json model."""

    name: str
    key: str
    bytes: int
    sha256: str


class ResultHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """Results of some items, all of one state (``succeeded`` | ``failed`` | ``expired`` | ``cancelled``).

    kind ``json``: a part per item, its JSON answer. ``rows``/``ragged``: as in PayloadHeader. ``none``: no parts
    (items that did not succeed); ``errors`` then has one entry an item.
    """

    kind: str
    items: tuple[tuple[int, int], ...]
    state: str = "succeeded"
    ids: tuple[str, ...] | None = None
    columns: tuple[Column, ...] = ()
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    errors: tuple[ResultError, ...] = ()
    attempts: int = 1  # charged or successful tries, the same for all items of the frame
    blobs: dict[int, tuple[ResultBlob, ...]] = {}  # by position in the frame


UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""What the decoder raises for JSON that is none, that is of another shape, or that is nested without end."""

_payload_decoder = msgspec.json.Decoder(PayloadHeader)
_result_decoder = msgspec.json.Decoder(ResultHeader)
_encoder = msgspec.json.Encoder()


def pack(header: msgspec.Struct, parts: Sequence[bytes | memoryview]) -> bytes:
    """One frame."""
    head = _encoder.encode(header)
    lengths = struct.pack(f"<{len(parts)}I", *[len(part) for part in parts])
    return b"".join((MAGIC, _U32.pack(len(head)), head, _U32.pack(len(parts)), lengths, *parts))


def split(buffer: bytes | bytearray | memoryview, offset: int = 0) -> tuple[memoryview, list[memoryview], int]:
    """The header's bytes, the parts and the offset behind the frame at ``offset``; Undecodable if it is none."""
    view = memoryview(buffer)
    try:
        if view[offset : offset + 4] != MAGIC:
            raise Undecodable(f"no frame at offset {offset}")
        (size,) = _U32.unpack_from(view, offset + 4)
        at = offset + 8
        head = view[at : at + size]
        at += size
        (count,) = _U32.unpack_from(view, at)
        at += 4
        if count * 4 > len(view) - at:
            raise Undecodable("frame is cut off")
        lengths = struct.unpack_from(f"<{count}I", view, at)
        at += 4 * count
    except struct.error as error:
        raise Undecodable("frame is cut off") from error
    parts = []
    for length in lengths:
        parts.append(view[at : at + length])
        at += length
    if at > len(view):
        raise Undecodable("frame is cut off")
    return head, parts, at


def unpack_payload(buffer: bytes | memoryview) -> tuple[PayloadHeader, list[memoryview]]:
    head, parts, _ = split(buffer)
    try:
        return _payload_decoder.decode(head), parts
    except UNREADABLE as error:
        raise Undecodable(f"payload header: {error}") from error


def unpack_results(buffer: bytes | memoryview) -> Iterator[tuple[ResultHeader, list[memoryview]]]:
    """Every result frame of a chunk, in the order written."""
    at = 0
    while at < len(buffer):
        head, parts, at = split(buffer, at)
        try:
            yield _result_decoder.decode(head), parts
        except UNREADABLE as error:
            raise Undecodable(f"result header: {error}") from error
