"""The catalog's models as the API shows them."""

import msgspec

from jobs.fleet import Fleet
from jobs.models.catalog import Model, ModelVersion, VersionState
from jobs.models.spec import Tensor
from jobs.store import Backlog


class VersionView(msgspec.Struct):
    version: str
    state: str
    error: str | None
    engine: str
    artifact_sha256: str | None


class TensorView(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]


class BatchView(msgspec.Struct):
    max_size: int


class BacklogView(msgspec.Struct):
    items: int
    engine_seconds: float


class StatsView(msgspec.Struct):
    batches: int
    batch_items: int
    padded_elements: int
    elements: int
    engine_seconds: float
    closed: dict[str, int]


class ModelView(msgspec.Struct):
    """One model; `inputs`, `outputs`, `batching` and `stats` are those of its default version."""

    name: str
    default_version: str
    versions: list[VersionView]
    input: str | None
    inputs: list[TensorView]
    outputs: list[TensorView]
    batch: BatchView | None
    batching: str | None
    batching_reason: str | None
    pool: str | None
    workers: int
    ready: bool
    held: None
    queue: BacklogView
    stats: StatsView


def model_view(model: Model, fleet: Fleet, backlog: list[Backlog]) -> ModelView:
    """`backlog` is the whole ledger's; the model's own part of it is picked out."""
    default = model.default
    stats = fleet.stats(model.name, model.default_version)
    items = sum(part.items for part in backlog if part.model == model.name)
    each = stats.engine_seconds / stats.batch_items if stats.batch_items else 0.0
    spec = None if default is None else default.spec
    return ModelView(
        name=model.name,
        default_version=model.default_version,
        versions=[_version(version) for _, version in sorted(model.versions.items())],
        input=None if spec is None else spec.input,
        inputs=[] if spec is None else [_tensor(tensor) for tensor in spec.inputs],
        outputs=[] if spec is None else [_tensor(tensor) for tensor in spec.outputs],
        batch=None if spec is None else BatchView(spec.batch.max_size),
        batching=None if default is None else default.batching,
        batching_reason=None if default is None else default.batching_reason,
        pool=None if spec is None else spec.pool,
        workers=fleet.live_workers(model.name, model.default_version),
        ready=default is not None and default.state is VersionState.READY,
        held=None,
        queue=BacklogView(items, round(items * each, 6)),
        stats=StatsView(
            stats.batches,
            stats.batch_items,
            stats.padded_elements,
            stats.elements,
            round(stats.engine_seconds, 6),
            dict(stats.closed),
        ),
    )


def _version(version: ModelVersion) -> VersionView:
    return VersionView(version.spec.version, version.state, version.error, version.spec.engine, version.artifact_sha256)


def _tensor(tensor: Tensor) -> TensorView:
    return TensorView(tensor.name, tensor.datatype, tensor.wire_shape)
