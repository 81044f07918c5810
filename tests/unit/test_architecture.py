"""ARCHITECTURE.md's state diagrams are what jobs/states.py says, line by line."""

import re
from pathlib import Path

from jobs.states import CHUNK_TRANSITIONS, FINAL, JOB_TRANSITIONS, JobState

ROOT = Path(__file__).parents[2]


def diagram(marker: str) -> set[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(rf"<!-- {marker} -->\n```mermaid\nstateDiagram-v2\n(.*?)```", text, re.S)
    assert block, f"no diagram {marker}"
    return {line.strip() for line in block[1].splitlines() if line.strip()}


def test_job_states() -> None:
    expected = {"[*] --> queued"}
    for name, (sources, targets) in JOB_TRANSITIONS.items():
        target = "final" if targets == FINAL else str(next(iter(targets)))
        expected |= {f"{source} --> {target}: {name}" for source in sources}
    assert diagram("job-states") == expected


def test_chunk_states() -> None:
    expected = {"[*] --> queued"}
    expected |= {f"{source} --> {target}: {name}" for name, (source, target) in CHUNK_TRANSITIONS.items()}
    assert diagram("chunk-states") == expected


def test_final_states_never_reopen() -> None:
    assert not [name for name, (sources, _) in JOB_TRANSITIONS.items() if sources & FINAL]
    assert {JobState.QUEUED, JobState.RUNNING} | FINAL == set(JobState)
