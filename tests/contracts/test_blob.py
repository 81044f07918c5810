"""Contract of every blob store, and what only the directory adapter does: keys stay inside, links are signed."""

import errno
import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.blob import BlobStore
from jobs.blobs.directory import DirectoryBlobs
from jobs.blobs.s3 import S3Blobs, client
from jobs.connections import S3Settings
from jobs.errors import Gone, NotFound, Refused, Unavailable
from tests.services import s3
from tests.services.running import needed

SECRET = b"k" * 32


def s3_blobs(_: Path) -> BlobStore:
    """A bucket of its own."""
    service = needed("s3")
    settings = S3Settings(
        bucket=f"b-{uuid.uuid4().hex}",
        prefix="some/prefix/",
        endpoint=f"http://{service.host}:{service.port}",
        access_key=s3.KEY,
        secret_key=s3.SECRET,
        part_bytes=5 * 1024 * 1024,
    )
    client(settings).create_bucket(Bucket=settings.bucket)
    return S3Blobs(settings)


ADAPTERS: dict[str, Callable[[Path], BlobStore]] = {
    "directory": lambda folder: DirectoryBlobs(folder, SECRET),
    "s3": s3_blobs,
}


@pytest.fixture(params=sorted(ADAPTERS))
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return ADAPTERS[request.param](tmp_path / "blobs")


def test_what_was_put_is_got(blobs: BlobStore) -> None:
    ref = blobs.put("results/job_1/0-1/3", b"abc" * 1000)
    assert blobs.get(ref.key) == b"abc" * 1000
    assert (ref.key, ref.bytes) == ("results/job_1/0-1/3", 3000)
    assert ref.sha256 == "328de8f1895f8bb09f6e6b4c2012ef2b2a6f067cd002794b750aa040a6f6d8bd"


@pytest.mark.parametrize(
    ("start", "stop", "expected"), [(0, 3, b"012"), (3, None, b"3456789"), (8, 99, b"89"), (20, 30, b""), (4, 4, b"")]
)
def test_a_range(blobs: BlobStore, start: int, stop: int | None, expected: bytes) -> None:
    blobs.put("a", b"0123456789")
    assert blobs.get("a", start, stop) == expected


def test_an_empty_blob_is_a_blob(blobs: BlobStore) -> None:
    blobs.put("a", b"")
    assert blobs.get("a") == b""


def test_a_second_put_replaces_the_whole(blobs: BlobStore) -> None:
    blobs.put("a", b"long long long")
    blobs.put("a", b"short")
    assert blobs.get("a") == b"short"


def test_a_missing_blob(blobs: BlobStore) -> None:
    with pytest.raises(NotFound):
        blobs.get("a/b")
    blobs.delete("a/b")


def test_delete(blobs: BlobStore) -> None:
    blobs.put("a/b", b"x")
    blobs.delete("a/b")
    with pytest.raises(NotFound):
        blobs.get("a/b")
    assert blobs.keys("") == []


def test_keys_by_prefix(blobs: BlobStore) -> None:
    for key in ("a/1", "a/2", "ab", "b/1"):
        blobs.put(key, b"x")
    assert blobs.keys("a/") == ["a/1", "a/2"]
    assert blobs.keys("") == ["a/1", "a/2", "ab", "b/1"]


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".hidden", "a\0b", "a\\b", "ü"])
def test_a_key_that_is_not_ours_is_refused(tmp_path: Path, key: str) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs", SECRET)
    for act in (lambda: blobs.put(key, b"x"), lambda: blobs.get(key), lambda: blobs.delete(key)):
        with pytest.raises((Refused, NotFound)):
            act()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs", SECRET)
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", tmp_path / "blobs" / "a")
    with pytest.raises(NotFound):
        blobs.get("a")


def test_a_folder_behind_a_symlink_is_not_entered(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs", SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_text("secret")
    os.symlink(tmp_path / "outside", tmp_path / "blobs" / "b")
    for act in (lambda: blobs.get("b/a"), lambda: blobs.put("b/new", b"x"), lambda: blobs.delete("b/a")):
        with pytest.raises(Refused):
            act()
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["a"]


def test_the_start_of_a_key_is_no_blob(blobs: BlobStore) -> None:
    blobs.put("a/b", b"x")
    with pytest.raises(NotFound):
        blobs.get("a")
    blobs.delete("a")
    blobs.delete("a/b/c")
    assert blobs.get("a/b") == b"x"


def test_a_fault_of_the_disk_is_no_missing_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs", SECRET)
    blobs.put("a", b"x")

    def busy(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", busy)
        with pytest.raises(Unavailable, match="too many open files"):
            blobs.get("a")
    assert blobs.get("a") == b"x"


def test_a_failed_put_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs", SECRET)
    blobs.put("a", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match="no space"):
        blobs.put("a", b"new")
    assert blobs.get("a") == b"old"
    assert len(list((tmp_path / "blobs").iterdir())) == 1


class TestLinks:
    def test_a_link_reads_its_blob_until_it_expires(self, tmp_path: Path) -> None:
        now = datetime(2026, 12, 1, tzinfo=UTC)
        blobs = DirectoryBlobs(tmp_path, SECRET, clock=lambda: now)
        token = blobs.sign("a/b", timedelta(minutes=5)).removeprefix("/v1/blobs/")
        assert blobs.verify(token) == "a/b"
        now += timedelta(minutes=5)
        with pytest.raises(Gone):
            blobs.verify(token)

    @pytest.mark.parametrize(
        "change", [lambda t: t[:-1], lambda t: "A" + t[1:], lambda t: t + "x", lambda t: "é", str.upper]
    )
    def test_a_changed_token_is_no_link(self, tmp_path: Path, change: Callable[[str], str]) -> None:
        blobs = DirectoryBlobs(tmp_path, SECRET)
        token = blobs.sign("a/b", timedelta(minutes=5)).removeprefix("/v1/blobs/")
        with pytest.raises(NotFound):
            blobs.verify(change(token))

    def test_another_secret_signs_other_links(self, tmp_path: Path) -> None:
        token = DirectoryBlobs(tmp_path, b"other" * 8).sign("a", timedelta(minutes=5)).removeprefix("/v1/blobs/")
        with pytest.raises(NotFound):
            DirectoryBlobs(tmp_path, SECRET).verify(token)
