"""Settings come from a file, the environment and the command line; all that is wrong is named at once."""

from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path

import pytest

from jobs.connections import KafkaSettings, S3Settings
from jobs.settings import Limits, Settings
from jobs.settings_reader import SettingsError

TOML = """
url = "http://of-the-client"

[server]
pool = "gpu"
lease = 12.5
queue_timeout = 600
models = "/srv/models"

[server.limits]
items = 500

[server.kafka]
servers = ["k1:9092", "k2:9092"]
partitions = 24

[server.s3]
bucket = "results"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "batchyard.toml"
    path.write_text(TOML)
    return path


def findings(environ: dict[str, str], file: Path | None = None, **given: object) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        Settings.from_environment(environ, file, **given)
    return str(raised.value).split("\n")


def assert_default(made: Settings) -> None:
    default = Settings()
    assert replace(made, crash=default.crash) == default


def test_without_anything_all_has_its_default() -> None:
    assert_default(Settings.from_environment({}))


def test_a_file_sets_what_it_names(file: Path) -> None:
    made = Settings.from_environment({}, file)
    assert (made.pool, made.lease, made.queue_timeout, made.models) == (
        "gpu", timedelta(seconds=12.5), timedelta(minutes=10), Path("/srv/models"),
    )  # fmt: skip
    assert made.limits == Limits(items=500)
    assert made.kafka == KafkaSettings(("k1:9092", "k2:9092"), partitions=24)
    assert made.s3 is not None
    assert (made.s3.bucket, made.s3.region) == ("results", "us-east-1")


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(file: Path) -> None:
    environ = {"BATCHYARD_POOL": "cpu", "BATCHYARD_LEASE": "20", "BATCHYARD_KAFKA_SERVERS": "k3:9092, k4:9092"}
    made = Settings.from_environment(environ, file, pool="mine", data=Path("d"))
    assert (made.pool, made.lease, made.data) == ("mine", timedelta(seconds=20), Path("d"))
    assert made.kafka == KafkaSettings(("k3:9092", "k4:9092"), partitions=24)


def test_what_is_not_ours_is_left_alone() -> None:
    environ = {"BATCHYARD_URL": "http://x", "BATCHYARD_API_KEY": "k", "PATH": "/bin", "POOL": "x"}
    assert_default(Settings.from_environment(environ))


def test_a_secret_may_lie_in_a_file(tmp_path: Path, file: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t\n")
    made = Settings.from_environment({"BATCHYARD_S3_SECRET_KEY_FILE": str(secret)}, file)
    assert made.s3 is not None
    assert made.s3.secret_key == "s3cr3t"
    both = {"BATCHYARD_S3_SECRET_KEY_FILE": str(secret), "BATCHYARD_S3_SECRET_KEY": "other"}
    assert "both set" in findings(both, file)[0]
    assert "No such file" in findings({"BATCHYARD_S3_SECRET_KEY_FILE": str(tmp_path / "none")}, file)[0]


def test_an_empty_variable_takes_a_setting_away(file: Path) -> None:
    assert Settings.from_environment({"BATCHYARD_QUEUE_TIMEOUT": ""}, file).queue_timeout is None


def test_everything_that_is_wrong_is_named_at_once_with_its_place(file: Path) -> None:
    file.write_text(
        'pool = "x"\n[server]\npoool = "x"\nlease = "soon"\nlimits = 3\n'
        '[server.kafka]\npartitions = 2.5\nserver = "k"\n[server.s3]\nprefix = "p/"\n'
    )
    found = findings({"BATCHYARD_PORT": "http", "BATCHYARD_DRAIN": "-1"}, file)
    assert [line.split(": there")[0].split(": expected")[0] for line in found] == [
        f"{file}: pool",
        f"{file}: [server] poool",
        "BATCHYARD_PORT",
        f"{file}: [server] lease",
        "BATCHYARD_DRAIN",
        f"{file}: [server] limits",
        f"{file}: [server.kafka] server",
        f"{file}: [server.kafka] partitions",
        "s3: bucket must be set too",
    ]
    assert "known: servers, prefix, partitions" in found[6]


@pytest.mark.parametrize("text", ["[", "\xff", "a = 1\na = 2"])
def test_a_file_that_is_no_toml(file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    assert findings({}, file)[0].startswith(f"{file}: ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in findings({}, tmp_path / "none.toml")[0]


def test_a_record_is_given_up_before_its_publishing_lease_ends() -> None:
    environ = {"BATCHYARD_KAFKA_SERVERS": "k:9092", "BATCHYARD_PUBLISH_LEASE": "10"}
    assert "delivery_seconds must be less than publish_lease" in findings(environ)[0]


def test_the_page_of_settings_names_all_of_them() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text()
    shown = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    parts = {"limits": Limits, "kafka": KafkaSettings, "s3": S3Settings}
    alone = {field.name for field in fields(Settings)} - {"crash", *parts}
    assert shown == alone | {f"{part}.{field.name}" for part, kind in parts.items() for field in fields(kind)}
