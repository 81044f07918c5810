"""What only the S3 adapter does: parts, links that the server honours, and what a server's refusals become."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ConnectionClosedError

from jobs.blobs.s3 import S3Blobs, client
from jobs.connections import S3Settings
from jobs.errors import NotFound, StoreError, Unavailable
from tests.contracts.test_blob import s3_blobs

PART = 5 * 1024 * 1024


@pytest.fixture
def blobs(tmp_path: Path) -> S3Blobs:
    made = s3_blobs(tmp_path)
    assert isinstance(made, S3Blobs)
    return made


def unfinished(blobs: S3Blobs) -> list[Any]:
    found: list[Any] = blobs._s3.list_multipart_uploads(Bucket=blobs._bucket).get("Uploads", [])
    return found


def test_a_large_blob_goes_in_parts_and_comes_back_whole(blobs: S3Blobs) -> None:
    data = bytes(range(256)) * (2 * PART // 256) + b"tail"
    ref = blobs.put("large", data)
    assert (ref.bytes, blobs.get("large")) == (len(data), data)
    assert blobs.get("large", PART - 2, PART + 2) == data[PART - 2 : PART + 2]
    head = blobs._s3.head_object(Bucket=blobs._bucket, Key="some/prefix/large", PartNumber=1)
    assert head["PartsCount"] == 3
    assert unfinished(blobs) == []


def test_an_upload_that_fails_leaves_no_parts(blobs: S3Blobs) -> None:
    def cut(params: dict[str, Any], **_: Any) -> None:
        if params["query_string"].get("partNumber") == 2:
            raise ConnectionClosedError(endpoint_url="http://s3")

    blobs._s3.meta.events.register("before-call.s3.UploadPart", cut)
    with pytest.raises(Unavailable, match="cannot be written"):
        blobs.put("large", b"x" * (3 * PART))
    assert unfinished(blobs) == []
    with pytest.raises(NotFound):
        blobs.get("large")


def test_a_list_of_many_pages(blobs: S3Blobs) -> None:
    for number in range(1050):
        blobs._s3.put_object(Bucket=blobs._bucket, Key=f"some/prefix/a/{number:04d}", Body=b"")
    blobs._s3.put_object(Bucket=blobs._bucket, Key="other/a/1", Body=b"")
    assert blobs.keys("a/") == [f"a/{number:04d}" for number in range(1050)]


def test_a_link_reads_this_one_blob_without_a_key(blobs: S3Blobs) -> None:
    blobs.put("a/b", b"what the link reads")
    link = blobs.sign("a/b", timedelta(minutes=5))
    assert httpx.get(link).content == b"what the link reads"
    assert "X-Amz-Expires=300" in link
    assert "AWS4-HMAC-SHA256" in link


def test_a_server_that_is_away_is_no_missing_blob() -> None:
    away = S3Settings("b", endpoint="http://127.0.0.1:1", access_key="k", secret_key="s")
    s3 = client(away)
    s3.meta.config.retries = {"mode": "standard", "total_max_attempts": 1}
    blobs = S3Blobs(away, s3)
    for act in (lambda: blobs.get("a"), lambda: blobs.put("a", b"x"), lambda: blobs.keys("")):
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            act()


def test_a_bucket_that_is_not_there_is_said_at_once(blobs: S3Blobs) -> None:
    blobs._bucket = "nowhere"
    for act in (lambda: blobs.get("a"), lambda: blobs.put("a", b"x"), lambda: blobs.keys("")):
        with pytest.raises(StoreError, match="NoSuchBucket"):
            act()
