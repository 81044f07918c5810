"""Makes the demo's model repository: the net inside the magika package with our handler, and a small transformer."""

import base64
import hashlib
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import magika
import numpy as np
import yaml
from numpy.typing import NDArray

from tests.models.nets import encoder

HERE = Path(__file__).resolve().parent
NET = "encoder384"
TOKENS, VOCABULARY = 8, 2000
MAX_BATCH = 32
# Long and plain enough for the net to be sure. Of short texts its scores move by up to 0.005 between a call of one row
# and a call of many, by rounding alone: as samples they would make it look as if batches changed its answers.
SAMPLES: dict[str, bytes] = {
    "handler.py": (HERE / "magika_handler.py").read_bytes(),
    "prices.csv": b"id,name,price\n" + b"".join(b"%d,item %d,%d.50\n" % (n, n, 3 * n) for n in range(100)),
    "files.py": (HERE / "files.py").read_bytes(),
    "empty": b"",
}


class DamagedPackage(Exception):
    """The installed package is not what its own record says."""


def make(folder: Path) -> Path:
    """Writes the repository anew and gives its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    _magika(folder / "magika")
    _encoder(folder / NET)
    return folder


def rows(count: int, seed: int = 384) -> NDArray[np.int64]:
    """Seeded token ids: [count, 8]."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, (count, TOKENS), dtype=np.int64)


def _magika(folder: Path) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    package = Path(magika.__file__).parent
    (net,) = package.glob("models/*/model.onnx")
    shutil.copyfile(net, version / "model.onnx")
    shutil.copyfile(net.with_name("config.min.json"), version / "config.min.json")
    shutil.copyfile(package / "config" / "content_types_kb.min.json", version / "content_types_kb.min.json")
    shutil.copyfile(HERE / "magika_handler.py", folder / "handler.py")
    _write(
        folder,
        {
            "schema": 1,
            "name": "magika",
            "engine": "onnxruntime",
            "artifact": {"path": "model.onnx", "sha256": _pinned(version / "model.onnx", net)},
            "input": "json",
            "batch": {"max_size": 16, "max_queue_delay_ms": 5},
            "sample": [
                {"name": name, "content_b64": base64.b64encode(content).decode()} for name, content in SAMPLES.items()
            ],
        },
    )


def _pinned(copy: Path, original: Path) -> str:
    """The artifact's SHA-256 (hex), after it was found to be the one in the package's record of itself."""
    digest = hashlib.sha256(copy.read_bytes())
    recorded = {Path(file.locate()).resolve(): file.hash for file in metadata.files("magika") or ()}
    entry = recorded.get(original.resolve())
    ours = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if entry is None or (entry.mode, entry.value) != ("sha256", ours):
        raise DamagedPackage(
            f"{original} is not what the magika package was published with: pip install --force-reinstall magika"
        )
    return digest.hexdigest()


def _encoder(folder: Path) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(
        encoder(layers=6, hidden=384, heads=12, tokens=TOKENS, vocabulary=VOCABULARY, seed=384)
    )
    _write(
        folder,
        {
            "schema": 1,
            "name": NET,
            "engine": "onnxruntime",
            "artifact": {
                "path": "model.onnx",
                "sha256": hashlib.sha256((version / "model.onnx").read_bytes()).hexdigest(),
            },
            "input": "tensors",
            "batch": {"max_size": MAX_BATCH, "max_queue_delay_ms": 5},
        },
    )


def _write(folder: Path, declared: dict[str, Any]) -> None:
    (folder / "model.yaml").write_text(yaml.safe_dump(declared, sort_keys=False, allow_unicode=True), "utf-8")
