"""The API that most tests here ask."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.api_kit import Kit


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with closing(Kit(tmp_path)) as made:
        yield made
