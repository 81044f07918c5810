"""The model repository: a folder of ``<name>/model.yaml`` and ``<name>/<version>/…``. Reads, checks, never writes.

A model that cannot be used is there all the same, as unavailable and with the reason; it never hides the others.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import ModelError
from jobs.models import paths, reader
from jobs.models.catalog import ModelVersion, VersionState
from jobs.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Repository:
    versions: tuple[ModelVersion, ...]  # loading, or unavailable with an error
    errors: tuple[tuple[str, str], ...]  # where (a file, or file:line), what


def read_repository(root: Path) -> Repository:
    """Every model below `root`. ModelError only when the folder itself cannot be read."""
    try:
        names = sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith((".", "_")))
    except OSError as error:
        raise ModelError(str(root), f"the model repository cannot be read: {error.strerror}") from None
    versions: list[ModelVersion] = []
    errors: list[tuple[str, str]] = []
    for name in names:
        folder = root / name
        if not folder.is_dir() or not _looks_like_model(folder):
            continue  # README, shared scripts, and whatever else lies beside the models
        try:
            for spec in read_model(root, name):
                version = _checked(spec, errors)
                versions.append(version)
        except ModelError as error:
            errors.append((error.where, error.message))
            if reader.NAME.match(name):
                versions += _broken(folder, name, str(error))
    return Repository(tuple(versions), tuple(errors))


def read_model(root: Path, name: str) -> list[ModelSpec]:
    """The specs of one model's versions, ascending; ModelError names file and line."""
    if not reader.NAME.match(name):
        raise ModelError(
            name, "a model's name is of a-z, 0-9, _ and -, at most 63 long, and starts with a letter or digit"
        )
    folder = root / name
    if folder.is_symlink():
        raise ModelError(name, "is a symbolic link; a model must lie in the repository itself")
    if not folder.is_dir():
        known = ", ".join(sorted(path.parent.name for path in root.glob(f"*/{reader.FILE}"))) or "none"
        raise ModelError(name, f"there is no such model in the repository; there is {known}")
    data = paths.read_inside(root, (name, reader.FILE), f"{name}/{reader.FILE}")
    return reader.read(data, folder, _versions(folder))


def read_version(root: Path, name: str, version: str | None = None) -> ModelSpec:
    """One version's spec, the default one where none is named."""
    specs = read_model(root, name)
    wanted = version or specs[0].default_version
    for spec in specs:
        if spec.version == wanted:
            return spec
    raise ModelError(name, f"has no version {wanted}; it has {', '.join(spec.version for spec in specs)}")


def check_artifact(spec: ModelSpec) -> str | None:
    """The artifact's SHA-256 in hexadecimal, None where there is none. ModelError when it is not the pinned one."""
    if spec.artifact is None:
        return None
    where = f"{spec.name}/{spec.version}/{spec.artifact.path}"
    digest = paths.hash_inside(spec.folder, (spec.version, *paths.parts_of(spec.artifact.path)), where)
    if spec.artifact.sha256 not in (None, digest):
        raise ModelError(
            where,
            f"its SHA-256 is {digest}, but model.yaml pins {spec.artifact.sha256}; restore it or pin the new hash",
        )
    return digest


def _looks_like_model(folder: Path) -> bool:
    return os.path.lexists(folder / reader.FILE) or any(map(os.path.isdir, folder.glob("[1-9]*")))


def _versions(folder: Path) -> list[str]:
    """The version folders, ascending. ModelError when there is none, or one that is a link."""
    try:
        found = [entry for entry in os.scandir(folder) if reader.VERSION.match(entry.name)]
    except OSError as error:
        raise ModelError(folder.name, f"cannot be read: {error.strerror}") from None
    for entry in found:
        if entry.is_symlink():
            raise ModelError(f"{folder.name}/{entry.name}", "is a symbolic link; a version must be a real folder")
    versions = sorted((entry.name for entry in found if entry.is_dir()), key=int)
    if not versions:
        raise ModelError(folder.name, "has no version; make the folder `1` beside model.yaml")
    return versions


def _checked(spec: ModelSpec, errors: list[tuple[str, str]]) -> ModelVersion:
    try:
        digest = check_artifact(spec)
    except ModelError as error:
        errors.append((error.where, error.message))
        return ModelVersion(spec, VersionState.UNAVAILABLE, error=str(error))
    return ModelVersion(spec, artifact_sha256=digest)


def _broken(folder: Path, name: str, error: str) -> list[ModelVersion]:
    """Stand-ins for a model whose file cannot be understood: no engine is started for them."""
    try:
        versions = _versions(folder)
    except ModelError:
        versions = ["1"]
    common = {"name": name, "folder": folder, "engine": "", "input": "json", "default_version": versions[-1]}
    specs = [ModelSpec(version=version, **common) for version in versions]  # type: ignore[arg-type]
    return [ModelVersion(spec, VersionState.UNAVAILABLE, error=error) for spec in specs]
