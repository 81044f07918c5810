"""Batch limits and sizes of one model version, in the batcher's terms."""

from batcher.batch import Limits
from batcher.forming import Elements
from jobs.models.spec import ModelSpec


def batch_limits(spec: ModelSpec, max_size: int) -> Limits:
    batch = spec.batch
    return Limits(
        max_size=max_size,
        preferred_sizes=tuple(size for size in batch.preferred_sizes if size <= max_size),
        max_queue_delay=batch.max_queue_delay.total_seconds(),
        max_padded_elements=batch.max_padded_elements,
    )


def elements_of(spec: ModelSpec) -> Elements | None:
    """Elements of one item's variable inputs, by axis lengths in the order in which the inputs name the axes."""
    variable = [tensor for tensor in spec.inputs if any(isinstance(dim, str) for dim in tensor.shape)]
    if not variable or spec.input == "json":
        return None
    names: list[str] = []
    for tensor in spec.inputs:
        names += [dim for dim in tensor.shape if isinstance(dim, str) and dim not in names]

    def elements(lengths: tuple[int, ...]) -> int:
        by_name = dict(zip(names, lengths, strict=True))
        total = 0
        for tensor in variable:
            size = 1
            for dim in tensor.shape:
                size *= by_name[dim] if isinstance(dim, str) else dim
            total += size
        return total

    return elements
