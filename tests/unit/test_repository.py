"""The model repository: what is found, that a broken model hides no other, and that nothing leads out of it (S5)."""

import hashlib
import os
from pathlib import Path

import pytest

from jobs.errors import ModelError
from jobs.models import paths, repository
from jobs.models.catalog import Catalog, VersionState
from tests.unit.repositories import onnx_model, python_model, write_model

HANDLER = "class Handler:\n    def predict(self, inputs, parameters):\n        return inputs\n"
ARTIFACT = b"not really a model"


def test_versions_are_found_and_the_rest_is_passed_by(tmp_path: Path) -> None:
    python_model(tmp_path, "a", HANDLER)
    for version in ("2", "10"):
        (tmp_path / "a" / version).mkdir()
    for other in ("a/notes", "a/0", "a/01", "a/1x", ".hidden/1", "__pycache__", "scripts"):
        (tmp_path / other).mkdir(parents=True)
    (tmp_path / "README.md").write_text("models")
    found = repository.read_repository(tmp_path)
    assert found.errors == ()
    assert [v.spec.key for v in found.versions] == [("a", "1"), ("a", "2"), ("a", "10")]
    assert {v.state for v in found.versions} == {VersionState.LOADING}
    assert {v.spec.default_version for v in found.versions} == {"10"}


def test_a_broken_model_is_unavailable_and_hides_no_other(tmp_path: Path) -> None:
    python_model(tmp_path, "good", HANDLER)
    python_model(tmp_path, "bad", HANDLER, extra="batsch: 1\n")
    (tmp_path / "bad" / "3").mkdir()
    (tmp_path / "empty" / "1").mkdir(parents=True)
    write_model(tmp_path, "none", "schema: 1\nname: none\nengine: python\ninput: json\n")
    (tmp_path / "none" / "1").rmdir()
    found = repository.read_repository(tmp_path)
    catalog = Catalog()
    catalog.replace_all(found.versions)
    good, bad = catalog.find("good"), catalog.find("bad", "1")
    assert good is not None
    assert good.state is VersionState.LOADING
    assert bad is not None
    assert bad.state is VersionState.UNAVAILABLE
    assert bad.error is not None
    assert bad.error.startswith("bad/model.yaml:5: unknown key batsch")
    assert catalog.find("bad") == catalog.find("bad", "3")
    empty, none = catalog.find("empty"), catalog.find("none")
    assert empty is not None
    assert "model.yaml does not exist" in str(empty.error)
    assert none is not None
    assert "has no version; make the folder `1`" in str(none.error)
    assert {where for where, _ in found.errors} == {"bad/model.yaml:5", "empty/model.yaml", "none"}


def test_a_folder_with_no_name_for_a_model_is_an_error_and_no_model(tmp_path: Path) -> None:
    for name in ("Upper", "%2e%2e%2f", "back\\slash", "a b", "x" * 64):
        write_model(tmp_path, name, "schema: 1\n")
    found = repository.read_repository(tmp_path)
    assert found.versions == ()
    assert len(found.errors) == 5


@pytest.mark.parametrize("name", ["..", ".", "", "a/../b", "/etc", "%2e%2e", "a\\b", "a\0b", "a/b"])
def test_s5_names_lead_nowhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError):
        repository.read_model(tmp_path, name)


@pytest.mark.parametrize("version", ["..", "../1", "1/../1", "", "%31", "1\0", "01", "1\\"])
def test_s5_versions_lead_nowhere(tmp_path: Path, version: str) -> None:
    python_model(tmp_path, "a", HANDLER)
    if version:
        with pytest.raises(ModelError, match="has no version"):
            repository.read_version(tmp_path, "a", version)
    else:
        assert repository.read_version(tmp_path, "a", version).version == "1"


def test_an_unknown_model_names_the_known(tmp_path: Path) -> None:
    python_model(tmp_path, "a", HANDLER)
    with pytest.raises(ModelError, match="no such model in the repository; there is a"):
        repository.read_model(tmp_path, "b")


def test_hashes_are_computed_and_checked(tmp_path: Path) -> None:
    digest = hashlib.sha256(ARTIFACT).hexdigest()
    onnx_model(tmp_path, "plain", ARTIFACT)
    pinned = onnx_model(tmp_path, "pinned", ARTIFACT)
    (pinned / "model.yaml").write_text(
        f"schema: 1\nname: pinned\nengine: onnxruntime\ninput: tensors\n"
        f"artifact: {{path: model.onnx, sha256: {{1: '{digest}', 2: '{'0' * 64}'}}}}\n"
    )
    (pinned / "2").mkdir()
    (pinned / "2" / "model.onnx").write_bytes(ARTIFACT)
    found = {v.spec.key: v for v in repository.read_repository(tmp_path).versions}
    assert found["plain", "1"].artifact_sha256 == digest
    assert found["pinned", "1"].artifact_sha256 == digest
    assert found["pinned", "1"].state is VersionState.LOADING
    wrong = found["pinned", "2"]
    assert wrong.state is VersionState.UNAVAILABLE
    assert wrong.error is not None
    assert digest in wrong.error
    assert "0" * 64 in wrong.error


def test_a_version_without_its_artifact_is_unavailable_alone(tmp_path: Path) -> None:
    folder = onnx_model(tmp_path, "m", ARTIFACT)
    (folder / "2").mkdir()
    one, two = repository.read_repository(tmp_path).versions
    assert one.state is VersionState.LOADING
    assert two.state is VersionState.UNAVAILABLE
    assert two.error == "m/2/model.onnx: 2/model.onnx does not exist"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that must never be opened."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(ARTIFACT)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def opened_outside(monkeypatch: pytest.MonkeyPatch, outside: Path) -> list[str]:
    """Names of files outside the repository that were opened from now on."""
    seen: list[str] = []
    really = os.open

    def watched(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = really(path, flags, mode, dir_fd=dir_fd)
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if real.startswith(str(outside)):
            seen.append(real)
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    return seen


@pytest.mark.parametrize("link", ["file", "parent", "version", "model", "yaml", "hard"])
def test_s5_links_are_refused(root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    folder = onnx_model(root, "m", ARTIFACT)
    artifact = folder / "1" / "model.onnx"
    if link == "file":
        artifact.unlink()
        artifact.symlink_to(outside / "model.onnx")
    elif link == "hard":
        artifact.unlink()
        artifact.hardlink_to(outside / "model.onnx")
    elif link == "parent":
        (folder / "1" / "sub").symlink_to(outside)
        text = (folder / "model.yaml").read_text().replace("path: model.onnx", "path: sub/model.onnx")
        (folder / "model.yaml").write_text(text)
    elif link == "version":
        (folder / "2").symlink_to(outside)
    elif link == "model":
        (root / "n").symlink_to(folder)
    else:
        (outside / "model.yaml").write_text((folder / "model.yaml").read_text())
        (folder / "model.yaml").unlink()
        (folder / "model.yaml").symlink_to(outside / "model.yaml")
    opened = opened_outside(monkeypatch, outside)
    found = repository.read_repository(root)
    refused = [v for v in found.versions if v.state is VersionState.UNAVAILABLE]
    assert refused
    assert "link" in str(refused[0].error)
    assert opened == []


def test_special_files_are_refused_without_waiting(root: Path) -> None:
    folder = onnx_model(root, "m", ARTIFACT)
    (folder / "1" / "model.onnx").unlink()
    os.mkfifo(folder / "1" / "model.onnx")
    (version,) = repository.read_repository(root).versions
    assert "is not a regular file" in str(version.error)


def test_a_missing_repository_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        repository.read_repository(tmp_path / "nowhere")


def test_paths_that_are_fine() -> None:
    assert paths.parts_of("a/b.onnx") == ("a", "b.onnx")
    assert paths.parts_of("..a/b..c") == ("..a", "b..c")
    assert paths.parts_of("100%.onnx") == ("100%.onnx",)
