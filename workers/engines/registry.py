"""Engine names of model.yaml -> adapters. Each is imported when first used, so a child loads one runtime only."""

from jobs.errors import ModelError
from jobs.models.spec import ENGINES, ModelSpec
from workers.engine import Engine


def open_engine(spec: ModelSpec, threads: int) -> Engine | None:
    """None for engine python: the handler's predict does it all. ModelError when it cannot be loaded."""
    if spec.engine == "python":
        return None
    if spec.engine == "onnxruntime":
        from workers.engines.onnxruntime import OnnxRuntimeEngine

        return OnnxRuntimeEngine(spec, threads)
    if spec.engine in ENGINES:
        raise ModelError(f"{spec.name}/model.yaml", f"engine {spec.engine} is not available yet")
    raise ModelError(f"{spec.name}/model.yaml", f"engine {spec.engine!r} is unknown; known: {', '.join(ENGINES)}")
