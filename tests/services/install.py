"""Brings what the services lack: Debian's packages by apt (as root, or with sudo), Kafka's jars by Maven.

``python -m tests.services.install`` says what it does; a second run does nothing.
"""

import os
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

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
    """Raises CalledProcessError when apt or Maven fail."""
    wanted = missing()
    if wanted:
        _say(f"installing {', '.join(wanted)} with apt")
        as_root = [] if os.getuid() == 0 else ["sudo", "-n"]
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
        subprocess.run([*apt, "update"], env=environ, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(
            [*apt, "install", "--no-install-recommends", *wanted], env=environ, check=True, stdout=subprocess.DEVNULL
        )
    if not any(KAFKA_JARS.glob("kafka_*.jar")):
        _say("bringing Apache Kafka's jars with Maven (43 MB)")
        KAFKA_JARS.mkdir(parents=True, exist_ok=True)
        pom = Path(__file__).parent / "kafka-pom.xml"
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", "-f", str(pom), f"-DoutputDirectory={KAFKA_JARS}"],
            check=True,
        )


def _say(text: str) -> None:
    sys.stderr.write(f"services: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    install()
