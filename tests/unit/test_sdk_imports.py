"""`import batchyard` needs httpx alone; a handler in an engine process not even that."""

import subprocess
import sys
import textwrap

import batchyard

HEAVY = """
    import sys
    from importlib.abc import MetaPathFinder

    class Refuse(MetaPathFinder):
        known = {"typer", "rich", "click", "numpy", "msgspec", "orjson", "fastapi", "uvicorn", "sqlalchemy", "alembic",
                 "yaml", "pydantic", "onnxruntime", "onnx", "api", "jobs", "workers", "batcher", "migrations"}
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in self.known or name.startswith(("batchyard.local", "batchyard.command")):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Refuse())
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HEAVY) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_whole_client_works_with_httpx_alone() -> None:
    out = run(
        """
        import batchyard
        for name in batchyard.__all__:
            getattr(batchyard, name)
        client = batchyard.Client("http://127.0.0.1:9", "bysk_x", retry_for=0)
        try:
            client.models()
        except batchyard.ConnectionFailed as error:
            print(error)
        """
    )
    assert "nothing answers at http://127.0.0.1:9 (address from the arguments)" in out


def test_the_handler_types_cost_no_http_client() -> None:
    run("import batchyard.handler\nassert 'httpx' not in sys.modules")


def test_every_public_name_is_there() -> None:
    assert set(batchyard.__all__) <= set(dir(batchyard))
    assert all(getattr(batchyard, name) for name in batchyard.__all__)
    assert not hasattr(batchyard, "nothing_of_the_kind")
