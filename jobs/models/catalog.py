"""The catalog: every model version this process knows and where it stands. Read on the hot path, so reads take no lock.

State of a version: loading -> ready | unavailable, and back to loading when its engine starts again. A version that
was ready keeps its described inputs while it reloads, so submissions go on.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from jobs.models.spec import ModelSpec


class VersionState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    spec: ModelSpec  # inputs and outputs filled in once the artifact was read
    state: VersionState = VersionState.LOADING
    error: str | None = None
    artifact_sha256: str | None = None
    batching: str = "sound"  # | unsound
    batching_reason: str | None = None
    described: bool = False  # inputs and outputs are known: submissions can be validated


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    default_version: str
    versions: Mapping[str, ModelVersion]

    @property
    def default(self) -> ModelVersion | None:
        return self.versions.get(self.default_version)


class Catalog:
    """Thread-safe: writers swap a whole mapping under a lock, readers see one mapping or the next."""

    def __init__(self) -> None:
        self._models: Mapping[str, Model] = {}
        self._lock = threading.Lock()

    def models(self) -> Mapping[str, Model]:
        return self._models

    def find(self, name: str, version: str | None = None) -> ModelVersion | None:
        model = self._models.get(name)
        if model is None:
            return None
        return model.versions.get(model.default_version if version is None else version)

    def replace_all(self, versions: Iterable[ModelVersion]) -> None:
        """What the repository now holds; default_version is taken from each model's specs."""
        by_name: dict[str, dict[str, ModelVersion]] = {}
        for version in versions:
            by_name.setdefault(version.spec.name, {})[version.spec.version] = version
        with self._lock:
            self._models = {
                name: Model(name, next(iter(vs.values())).spec.default_version, vs) for name, vs in by_name.items()
            }

    def report(self, version: ModelVersion) -> None:
        """A version has a new state; ignored if the repository no longer holds it."""
        with self._lock:
            model = self._models.get(version.spec.name)
            if model is None or version.spec.version not in model.versions:
                return
            versions = {**model.versions, version.spec.version: version}
            self._models = {**self._models, model.name: replace(model, versions=versions)}
