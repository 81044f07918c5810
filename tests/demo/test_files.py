"""The demo's file set: even, complete, bounded in memory."""

import base64
import os
from pathlib import Path

from tests.demo import files
from tests.demo.screen import Screen


def test_takes_files_at_equal_distances() -> None:
    paths = [Path(str(i)) for i in range(10)]
    assert files.evenly(paths, 4) == [paths[0], paths[2], paths[5], paths[7]]
    assert files.evenly(paths, 20) == paths


def test_finds_every_file_below_a_folder_but_installed_packages(tmp_path: Path) -> None:
    for name in ("b/x", "a/y", "site-packages/p/z", "c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    assert [str(path.relative_to(tmp_path)) for path in files.under(tmp_path)] == ["c", "a/y", "b/x"]


def test_packs_by_count_and_by_size_and_loses_nothing(tmp_path: Path) -> None:
    sizes = [10] * 300 + [3_000_000, 2_000_000, 10, 11_000_000, 0]
    paths = []
    for number, size in enumerate(sizes):
        paths.append(tmp_path / f"{number:03}")
        paths[-1].write_bytes(bytes([number % 256]) * size)
    jobs = list(files.packed(paths))
    assert [len(job.items) for job in jobs] == [128, 128, 45, 2, 1, 1]
    assert [path for job in jobs for path in job.paths] == paths
    sent = [base64.b64decode(item["input"]["content_b64"]) for job in jobs for item in job.items]
    assert sent == [path.read_bytes() for path in paths]


def test_a_file_that_does_not_fit_into_a_request_is_known_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 12_500_000)
    assert not files.too_large(path)
    os.truncate(path, 12_600_000)
    assert files.too_large(path)


def test_edge_files_are_what_they_are_called(tmp_path: Path) -> None:
    made = files.edge_files(tmp_path / "edge")
    sizes = {path.name: path.stat().st_size for path in made}
    assert (sizes["empty"], sizes["one byte"], sizes["ten megabytes.log"]) == (0, 1, 10_000_000)
    assert any(" " in name and "ü" in name for name in sizes)


def test_a_quiet_screen_prints_nothing(capsys: object) -> None:
    screen = Screen(quiet=True)
    screen.title("x")
    with screen.bar("files", 2) as bar:
        bar.step()
    assert capsys.readouterr().out == ""  # type: ignore[attr-defined]
