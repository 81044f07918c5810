"""Where the client finds address and key, and where a key never goes."""

import os
from pathlib import Path

import pytest

from batchyard.errors import ConfigurationError
from batchyard.target import Target, locate

ENV = {"BATCHYARD_URL": "http://env:1/", "BATCHYARD_API_KEY": "bysk_env"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder below one with a local stack's file."""
    (tmp_path / ".batchyard").mkdir()
    (tmp_path / ".batchyard" / "env").write_text(
        "BATCHYARD_URL=http://127.0.0.1:8123\nBATCHYARD_API_KEY=bysk_local\nBATCHYARD_ADMIN_KEY=bysk_admin\n"
    )
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    return below


def test_arguments_win_over_everything(folder: Path) -> None:
    target = locate("http://here", "bysk_here", environ=ENV, folder=folder)
    assert target == Target("http://here", "bysk_here", "the arguments")


def test_environment_wins_over_files(folder: Path) -> None:
    assert locate(environ=ENV, folder=folder) == Target("http://env:1", "bysk_env", "the environment")


def test_toml_wins_over_the_local_stack(folder: Path) -> None:
    path = folder.parent / "batchyard.toml"
    path.write_text('url = "https://batchyard.example"\napi_key = "bysk_toml"\n')
    assert locate(environ={}, folder=folder) == Target("https://batchyard.example", "bysk_toml", str(path))


def test_the_local_stack_is_found_from_below(folder: Path) -> None:
    target = locate(environ={}, folder=folder)
    assert (target.url, target.api_key) == ("http://127.0.0.1:8123", "bysk_local")


def test_a_key_out_of_a_file_goes_to_the_address_of_that_file_only(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="comes without a key"):
        locate("http://stranger", environ={}, folder=folder)
    assert locate("http://127.0.0.1:8123/", environ={}, folder=folder).api_key == "bysk_local"
    (folder / "batchyard.toml").write_text('url = "https://batchyard.example"\n')
    with pytest.raises(ConfigurationError, match="comes without a key"):
        locate(environ={}, folder=folder)


def test_a_key_from_the_environment_goes_with_any_address(folder: Path) -> None:
    only_key = {"BATCHYARD_API_KEY": "bysk_env"}
    assert locate("http://here", environ=only_key, folder=folder).api_key == "bysk_env"
    assert locate(environ=only_key, folder=folder) == Target(
        "http://127.0.0.1:8123", "bysk_env", str(folder.parents[1] / ".batchyard" / "env")
    )


def test_a_strangers_file_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(ConfigurationError, match="batchyard up"):
        locate(environ={}, folder=folder)


def test_nothing_found_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="start a local stack with `batchyard up`"):
        locate(environ={}, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("url = 3", "url must be a string"),
        ("url = ", "batchyard.toml: "),
        ('adress = "x"', "unknown key 'adress'; known: url, api_key"),
    ],
)
def test_a_bad_toml_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "batchyard.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        locate(environ={}, folder=tmp_path)


def test_a_bad_address_or_key_is_told_without_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must start with http"):
        locate("localhost:8000", "k", environ={}, folder=tmp_path)
    with pytest.raises(ConfigurationError, match="copy it again") as caught:
        locate("http://x", "bysk_\nsecret", environ={}, folder=tmp_path)
    assert "secret" not in str(caught.value)
