"""Targets and figures, and who pays for the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import figures
from tests.bench.figures import Figure, missed, write
from tests.bench.processor import GroupMeter, TreeMeter, meter

BURN = """
import subprocess, sys, time
if len(sys.argv) > 1:
    subprocess.run([sys.executable, __file__])
until = time.process_time() + 0.3
while time.process_time() < until:
    pass
print("burnt", flush=True)
sys.stdin.read()
"""


def test_met_is_on_the_right_side_of_the_target() -> None:
    assert Figure(figures.SINGLY, 0.04).met
    assert not Figure(figures.SINGLY, 0.039).met
    assert Figure(figures.SINGLY_CPU, 37).met
    assert not Figure(figures.SINGLY_CPU, 37.1).met


def test_a_check_fails_on_missed_ratios_only() -> None:
    late, slow = Figure(figures.ACCEPTED, 500), Figure(figures.SINGLY, 0.01)
    assert missed([late, slow, Figure(figures.M2_CPU, 1.1)]) == [slow]


def test_writes_what_others_read(tmp_path: Path) -> None:
    write([Figure(figures.M2_CPU, 1.23456)], tmp_path / "build" / "bench.json")
    assert json.loads((tmp_path / "build" / "bench.json").read_text()) == [
        {"name": figures.M2_CPU.name, "target": 1.2, "value": 1.2346, "unit": "x", "met": False}
    ]


@pytest.mark.parametrize("kind", ["best", "tree"])
def test_counts_a_process_and_its_ended_child(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "burn.py"
    script.write_text(BURN)
    counting: GroupMeter | TreeMeter = TreeMeter([]) if kind == "tree" else meter([])
    process = subprocess.Popen([sys.executable, str(script), "child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        counting.add(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        # The child inherits its parent's input and reads it to the end: it is told by closing.
        assert process.stdout.readline() == b"burnt\n"
        process.stdin.close()
        assert process.stdout.readline() == b"burnt\n"
        spent = counting.read()
        process.wait(10)
    finally:
        process.kill()
        process.wait()
        counting.remove()
    assert 0.5 < spent < 3.0
