"""One local stack for all tests that only use it; those that stop or kill one start their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchyard import Client
from tests.e2e.stack import LocalStack


@pytest.fixture(scope="session")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """With the test models; its log is shown if it does not end well."""
    with LocalStack(data=tmp_path_factory.mktemp("stack") / "data") as stack:
        yield stack
        assert stack.stop() == 0, stack.log
        assert stack.wait_gone() == []


@pytest.fixture
def client(shared_stack: LocalStack) -> Iterator[Client]:
    with Client(shared_stack.url, shared_stack.key) as made:
        yield made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
