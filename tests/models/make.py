"""``python -m tests.models.make``: builds the artifacts of the test models, which are not kept in version control."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.models import nets

FOLDER = Path(__file__).parent
ARTIFACTS: Mapping[str, Callable[[], bytes]] = {"mlp": nets.mlp, "encoder": nets.encoder, "pad": nets.masked_mean}


def make(folder: Path = FOLDER) -> list[Path]:
    """Writes what is missing or older than the code that makes it; gives what was written."""
    written = []
    code = max(Path(nets.__file__).stat().st_mtime, Path(__file__).stat().st_mtime)
    for name, build in ARTIFACTS.items():
        path = folder / name / "1" / "model.onnx"
        if path.exists() and path.stat().st_mtime >= code:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(build())
        part.replace(path)
        written.append(path)
    return written


if __name__ == "__main__":
    for path in make():
        print(f"made {path.relative_to(FOLDER.parents[1])} ({path.stat().st_size:,} bytes)")
