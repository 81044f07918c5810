"""What the demo says and how it exits: right answers, one wrong answer, and the figures on the way."""

import hashlib
import io
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import onnx
import pytest
from magika import Magika
from rich.console import Console

from tests.demo import __main__ as demo
from tests.demo import files, repository
from tests.demo.batching import Bought
from tests.demo.classify import Answered, Statistics
from tests.demo.compare import Comparison, compare
from tests.demo.files import ROOT
from tests.demo.screen import SAMPLE_ROWS, Screen

CONTENTS = {"a.py": b"import os\n\ndef f(x):\n    return x\n" * 9, "empty": b"", "b.json": b'{"a": [1, 2, null]}' * 5}


def answer_of(path: Path) -> dict[str, Any]:
    """What the package itself says, in the form of our handler's answers."""
    prediction = Magika().identify_path(path).prediction
    return {
        "label": str(prediction.output.label),
        "mime_type": prediction.output.mime_type,
        "group": prediction.output.group,
        "model_label": str(prediction.dl.label),
        "overwritten": str(prediction.overwrite_reason),
        "score": prediction.score,
    }


@pytest.fixture
def lines(tmp_path: Path) -> list[dict[str, Any]]:
    made = []
    for name, content in CONTENTS.items():
        path = tmp_path / name
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        made.append({"path": str(path).encode().hex(), "digest": digest, "answer": answer_of(path)})
    return made


def test_right_answers_agree(lines: list[dict[str, Any]]) -> None:
    assert compare(lines) == Comparison(3, 3, (), ())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("label", "ruby"),
        ("mime_type", "x/y"),
        ("group", "x"),
        ("model_label", "x"),
        ("overwritten", "x"),
        ("score", 0.1),
    ],
)
def test_one_wrong_answer_is_found_and_named(lines: list[dict[str, Any]], field: str, value: object) -> None:
    lines[0]["answer"] = {**lines[0]["answer"], field: value}
    found = compare(lines)
    assert (found.files, found.agree, found.changed) == (3, 2, ())
    (text,) = found.different
    assert "a.py" in text
    assert field in text


def test_a_file_that_changed_meanwhile_is_not_judged(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"other")
    found = compare(lines)
    assert (found.files, found.agree, [Path(name).name for name in found.changed]) == (2, 2, ["a.py"])


def test_the_comparison_runs_in_a_process_of_its_own(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "tests.demo.compare", str(tmp_path / "answers.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["agree"] == 3


@pytest.mark.parametrize(
    ("files", "items", "code"), [((67, 67), (400, 400), 0), ((66, 67), (400, 400), 1), ((67, 67), (399, 400), 1)]
)
def test_any_disagreement_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: tuple[int, int],
    items: tuple[int, int],
    code: int,
) -> None:
    monkeypatch.setattr(demo, "make", lambda folder: folder)
    monkeypatch.setattr(demo, "_stack", lambda models, data: Nothing())
    monkeypatch.setattr(demo, "Client", lambda url, key: Nothing())
    monkeypatch.setattr(demo, "_files", lambda *_: {"agree": files[0], "files": files[1]})
    monkeypatch.setattr(demo, "_batching", lambda *_: {"agree": items[0], "items": items[1]})
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() == code
    end = capsys.readouterr().out.split("the stack is stopped. Next:")[1]
    for command, _ in demo.NEXT:
        assert command in end
    assert len(demo.NEXT) == 3


class Nothing:
    """In place of the stack and of the client."""

    url = key = ""

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def screen(terminal: bool = False) -> tuple[Screen, io.StringIO]:
    written = io.StringIO()
    made = Screen(quiet=False)
    colours = "standard" if terminal else None
    made.console = Console(
        file=written, force_terminal=terminal, color_system=colours, no_color=False, width=120, highlight=False
    )
    return made, written


def answered(number: int) -> Answered:
    label = "python" if number % 3 else "json"
    answer = {"label": label, "mime_type": "text/x", "score": 0.5 if number % 3 else 1.0}
    return Answered(Path(f"/some/folder/file{number}"), "", answer, number / 100)


def test_the_figures_on_the_way() -> None:
    shown, written = screen()
    answers = [answered(number) for number in range(100)]
    shown.types(answers)
    table = [line.split() for line in written.getvalue().splitlines() if line.strip()]
    assert table[1:] == [["python", "66", "0.500"], ["json", "34", "1.000"]]
    written.truncate(0)
    shown.samples(answers, Path("/edges"))
    assert written.getvalue().count("text/x") == SAMPLE_ROWS == 10
    shown.figures(answers, 2.0, Statistics(8, 100, {"full": 5, "idle": 3, "delay": 0}))
    text = written.getvalue()
    assert "100 files in 2.0 s: 50/s" in text
    assert "p50 0.49 s, p99 0.98 s" in text
    assert "average batch 12.5 items in 8 batches, closed because: full 5, idle 3" in text


@pytest.mark.parametrize(("agree", "sign"), [(3000, "32m"), (2999, "31m")])
def test_agree_n_of_n_in_green_or_in_red(agree: int, sign: str) -> None:
    shown, written = screen(terminal=True)
    shown.comparison(Comparison(3000, agree, (), ()))
    assert f"agree {agree:,} of 3,000" in written.getvalue()
    assert sign in written.getvalue()


def test_what_batching_buys_and_that_magika_gains_nothing() -> None:
    shown, written = screen()
    shown.bought(Bought(400, 100.0, 280.0, 25.5, 400, 1000.0, 990.0))
    text = written.getvalue()
    for part in ("2.80 times the rate", "25.5", "agree 400 of 400", "magika's own net gains nothing to speak of"):
        assert part in text


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_items_rate_and_what_is_left(terminal: bool) -> None:
    shown, written = screen(terminal)
    with shown.bar("files", 20) as bar:
        for _ in range(20):
            bar.step()
    text = written.getvalue()
    assert "20/20" in text or "20 of 20 files" in text
    assert "/s" in text
    assert "left" in text


def test_by_default_3000_files_of_the_library_what_git_tracks_and_the_edge_cases(tmp_path: Path) -> None:
    chosen = files.chosen(None, tmp_path)
    library = [path for path in chosen if path.is_relative_to(sysconfig.get_paths()["stdlib"])]
    tracked = [path for path in chosen if path.is_relative_to(ROOT) and path not in set(library)]
    assert len(library) == files.FROM_LIBRARY == 3000
    assert not [path for path in library if "site-packages" in path.parts]
    assert tracked == files.tracked(ROOT)
    assert ROOT / "README.md" in tracked
    assert len(chosen) == len(library) + len(tracked) + len(list(tmp_path.iterdir()))


def test_the_net_of_the_second_part_has_6_layers_of_384(tmp_path: Path) -> None:
    repository._encoder(tmp_path / "one")
    repository._encoder(tmp_path / "two")
    (one,), (two,) = (list((tmp_path / name).rglob("*.onnx")) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes(), "its seed is fixed"
    shapes = [tuple(weight.dims) for weight in onnx.load(one).graph.initializer]
    assert (shapes.count((384, 384)), shapes.count((384, 1536)), shapes.count((1536, 384))) == (24, 6, 6)
