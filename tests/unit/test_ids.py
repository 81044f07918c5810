"""Ids: their form, their order in time, and that they do not repeat."""

import re
import time

import pytest

from jobs.ids import PREFIXES, new_id


@pytest.mark.parametrize("prefix", sorted(PREFIXES))
def test_the_form(prefix: str) -> None:
    assert re.fullmatch(rf"{prefix}_[0-7][0-9A-HJKMNP-TV-Z]{{25}}", new_id(prefix))


def test_an_unknown_prefix() -> None:
    with pytest.raises(ValueError, match="cat"):
        new_id("cat")


def test_later_ids_sort_after_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for millisecond in (0, 1, 31, 32, 1023, 1024, 1_764_547_200_000, 1_764_547_200_001, 2**48 - 1):
        monkeypatch.setattr(time, "time_ns", lambda ms=millisecond: ms * 1_000_000)
        ids.append(new_id("job"))
    assert ids == sorted(ids)


def test_a_known_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_469_918_176_385 * 1_000_000)
    assert new_id("job")[4:14] == "01ARYZ6S41"  # the example of the ULID specification


def test_ids_do_not_repeat() -> None:
    assert len({new_id("job") for _ in range(50_000)}) == 50_000
