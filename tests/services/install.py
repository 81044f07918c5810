"""Brings what the services lack: Debian's packages by apt (as root, or with sudo), Kafka's jars by Maven.

``python -m tests.services.install`` says what it does; a second run does nothing.
"""

import os
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

from tests.services.service import LOG_TAIL, ServiceFailed

KAFKA_JARS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batchyard-tests" / "kafka-4.4.0"

PACKAGES = {
    "postgresql": lambda: bool(glob("/usr/lib/postgresql/*/bin/postgres")),
    "redis-server": lambda: shutil.which("redis-server") is not None,
    "default-jre-headless": lambda: shutil.which("java") is not None,
    "maven": lambda: shutil.which("mvn") is not None or any(KAFKA_JARS.glob("kafka_*.jar")),
}


def missing() -> list[str]:
    return [package for package, there in PACKAGES.items() if not there()]


def install() -> None:
    """ServiceFailed, saying what to do by hand, when apt or Maven fail or may not be used."""
    wanted = missing()
    if wanted:
        _say(f"installing {', '.join(wanted)} with apt")
        apt = [*_as_root(wanted), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
        _run([*apt, "update"])
        _run([*apt, "install", "--no-install-recommends", *wanted])
    if not any(KAFKA_JARS.glob("kafka_*.jar")):
        _say("bringing Apache Kafka's jars with Maven (43 MB)")
        KAFKA_JARS.mkdir(parents=True, exist_ok=True)
        pom = Path(__file__).parent / "kafka-pom.xml"
        _run(["mvn", "-q", "-B", "dependency:copy-dependencies", "-f", str(pom), f"-DoutputDirectory={KAFKA_JARS}"])


def _as_root(wanted: list[str]) -> list[str]:
    if os.getuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    if shutil.which("sudo") and subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode == 0:
        return sudo
    raise ServiceFailed(f"this needs root or sudo: apt-get install {' '.join(wanted)}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceFailed(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")


def _say(text: str) -> None:
    sys.stderr.write(f"services: {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Without the rights to install the tests that need a service are skipped; 1 where that is not allowed."""
    try:
        install()
    except (ServiceFailed, OSError) as error:
        _say(str(error))
        return int(os.environ.get("REQUIRE_SERVICES") == "1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
