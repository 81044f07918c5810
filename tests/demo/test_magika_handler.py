"""Our handler around magika's net answers as the package itself does, edge cases included."""

import base64
import random
import shutil
from pathlib import Path
from typing import Any

import magika
import numpy as np
import onnxruntime
import pytest

from batchyard.handler import Permanent
from tests.demo.magika_handler import Handler

RANDOM = random.Random(3)
CONTENTS = {
    "empty": b"",
    "one byte": b"x",
    "one bad byte": b"\xff",
    "seven bytes": b"1234567",
    "eight bytes": b"12345678",
    "white space": b" \t\r\n\x0b\x0c" * 30,
    "few after white space": b" " * 300 + b"abc",
    "few bad after white space": b" " * 300 + b"\xff\xfe",
    "white space beyond the block": b" " * 5000 + b"import os\n" * 50,
    "a character cut by the block": b" " * 4095 + "ü".encode() * 10,
    "python": b"import os\n\n\ndef f(x):\n    return x + 1\n" * 5,
    "json": b'{"a": [1, 2, 3], "b": {"c": null}}',
    "markdown": b"# Title\n\nSome *text* and a [link](http://example.org).\n\n- one\n- two\n",
    "words": b"hello my friend this is not much of a text",
    "random": RANDOM.randbytes(20_000),
    "zeros": bytes(5000),
    "exactly a block": b"line of text\n" * 315 + b"x",
    "elf": b"\x7fELF\x02\x01\x01" + bytes(9) + RANDOM.randbytes(3000),
    "png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + RANDOM.randbytes(900),
    "csv": b"a,b,c\n" + b"1,2,3\n" * 100,
}


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> Handler:
    folder = tmp_path_factory.mktemp("magika")
    package = Path(magika.__file__).parent
    (config,) = package.glob("models/*/config.min.json")
    shutil.copy(config, folder)
    shutil.copy(package / "config" / "content_types_kb.min.json", folder)
    handler = Handler()
    handler.load(folder, {})
    return handler


@pytest.fixture(scope="module")
def package() -> magika.Magika:
    return magika.Magika()


@pytest.fixture(scope="module")
def session() -> Any:
    (net,) = Path(magika.__file__).parent.glob("models/*/model.onnx")
    return onnxruntime.InferenceSession(str(net), providers=["CPUExecutionProvider"])


def answer(handler: Handler, session: Any, content: bytes) -> dict[str, Any]:
    arrays = handler.preprocess({"name": "x", "content_b64": base64.b64encode(content).decode()}, {})
    (scores,) = session.run(["target_label"], {"bytes": arrays["bytes"][None]})
    return handler.postprocess({"target_label": scores[0], "decided": arrays["decided"]}, {})


@pytest.mark.parametrize("name", CONTENTS)
def test_answers_as_the_package_does(handler: Handler, session: Any, package: magika.Magika, name: str) -> None:
    ours = answer(handler, session, CONTENTS[name])
    theirs = package.identify_bytes(CONTENTS[name]).prediction
    assert (ours["label"], ours["model_label"], ours["overwritten"]) == (
        str(theirs.output.label),
        str(theirs.dl.label),
        str(theirs.overwrite_reason),
    )
    assert (ours["mime_type"], ours["group"]) == (theirs.output.mime_type, theirs.output.group)
    assert ours["score"] == pytest.approx(theirs.score, abs=1e-5)


@pytest.mark.parametrize("own", ["python", "randombytes", "randomtxt", "markdown", "elf", "txt"])
@pytest.mark.parametrize("score", [0.2, 0.499, 0.5, 0.74, 0.75, 0.949, 0.99])
def test_overrules_the_net_as_the_package_does(
    handler: Handler, package: magika.Magika, own: str, score: float
) -> None:
    scores = np.zeros(len(handler.config.target_labels_space))
    scores[handler.config.target_labels_space.index(own)] = score
    ours = handler.postprocess({"target_label": scores, "decided": np.array(0)}, {})
    label, reason = package._get_output_label_from_dl_label_and_score(magika.ContentTypeLabel(own), score)
    assert (ours["label"], ours["overwritten"]) == (str(label), str(reason))


@pytest.mark.parametrize("given", [None, {}, {"content_b64": 3}, "text"])
def test_refuses_what_is_no_file(handler: Handler, given: object) -> None:
    with pytest.raises(Permanent, match="content_b64"):
        handler.preprocess(given, {})


def test_refuses_what_is_no_base64(handler: Handler) -> None:
    with pytest.raises(ValueError, match=r"(?i)base64|padding|character"):
        handler.preprocess({"content_b64": "!"}, {})
