"""Blobs in one bucket of any S3 server (extra ``[s3]``).

Nothing here is right only thanks to conditional writes, which many servers ignore: a key is written by one process
with one content, and a row in the ledger says which blob counts.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from jobs.blobs.keys import check
from jobs.connections import S3Settings
from jobs.errors import BatchyardError, NotFound, StoreError, Unavailable
from jobs.records import BlobRef

ATTEMPTS = 4  # of one request, the first included, with growing pauses
CONNECT_SECONDS = 5
READ_SECONDS = 30
CONNECTIONS = 16

_ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})
_PASSING = frozenset({"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling", "503", "500"})


def client(settings: S3Settings) -> Any:
    """A boto3 client; thread-safe. StoreError that names the extra when boto3 is missing."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise StoreError("blobs on S3 need the extra: pip install 'batchyard[s3]'") from error
    return boto3.client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
        config=Config(
            signature_version="s3v4",
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            max_pool_connections=CONNECTIONS,
            # A bucket as a part of the path works with every server; as a part of the host it needs DNS.
            s3={"addressing_style": "path"} if settings.endpoint else {},
        ),
    )


class S3Blobs:
    """NotFound means that the server said so; whatever else goes wrong is Unavailable or, where a retry cannot help
    (no right to do it, no such bucket), StoreError."""

    def __init__(self, settings: S3Settings, s3: Any = None) -> None:
        from boto3.s3.transfer import TransferConfig

        self._bucket = settings.bucket
        self._prefix = settings.prefix
        self._s3 = client(settings) if s3 is None else s3
        self._part_bytes = settings.part_bytes
        self._transfer = TransferConfig(
            multipart_threshold=settings.part_bytes, multipart_chunksize=settings.part_bytes, max_concurrency=4
        )

    def put(self, key: str, data: bytes) -> BlobRef:
        """Large ones go in parts; one that fails leaves no parts behind."""
        where = self._where(key)
        with _ours(f"blob {key} cannot be written"):
            if len(data) <= self._part_bytes:
                self._s3.put_object(**where, Body=data)
            else:
                self._s3.upload_fileobj(io.BytesIO(data), where["Bucket"], where["Key"], Config=self._transfer)
        return BlobRef(key, len(data), hashlib.sha256(data).hexdigest())

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        where = self._where(key)
        if stop is not None and stop <= start:
            with _ours(f"blob {key} cannot be read"):
                self._s3.head_object(**where)  # so that a missing one is said to be missing
            return b""
        if start or stop is not None:
            where["Range"] = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        try:
            with _ours(f"blob {key} cannot be read"):
                answer = self._s3.get_object(**where)
                data: bytes = answer["Body"].read()  # a body cut short raises
        except _OutOfRange:
            return b""
        if "Range" in where and "ContentRange" not in answer:
            data = data[start:stop]  # a server that knows no ranges sends the whole
        return data

    def delete(self, key: str) -> None:
        with _ours(f"blob {key} cannot be deleted"):
            self._s3.delete_object(**self._where(key))

    def keys(self, prefix: str) -> list[str]:
        with _ours(f"blobs below {prefix!r} cannot be listed"):
            return sorted(self._listed(prefix))

    def _listed(self, prefix: str) -> Iterator[str]:
        pages = self._s3.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
            for listed in page.get("Contents", ()):
                yield listed["Key"].removeprefix(self._prefix)

    def sign(self, key: str, expires_in: timedelta) -> str:
        """Made here, without asking the server."""
        with _ours(f"blob {key} cannot be signed"):
            link: str = self._s3.generate_presigned_url(
                "get_object", Params=self._where(key), ExpiresIn=int(expires_in.total_seconds())
            )
        return link

    def _where(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + check(key)}


class _OutOfRange(Exception):
    """The range begins behind the end of the blob."""


@contextmanager
def _ours(what: str) -> Iterator[None]:
    """What boto3 raises, as one of our errors."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _of_answer(what, error) from error
    except Boto3Error as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, ClientError):
            raise _of_answer(what, cause) from error
        raise Unavailable(f"{what}: {error}") from error
    except BotoCoreError as error:
        raise Unavailable(f"{what}: {error}") from error


def _of_answer(what: str, error: Any) -> Exception:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code == "InvalidRange":
        return _OutOfRange()
    if code in _ABSENT:
        return NotFound(f"{what}: there is none")
    failed: type[BatchyardError] = Unavailable if code in _PASSING or status >= 500 or status == 429 else StoreError
    return failed(f"{what}: the store says {code or status}")
