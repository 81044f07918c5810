"""Apache Kafka in KRaft mode, one broker: its jars come by Maven, its Java from Debian."""

import subprocess
from pathlib import Path

from tests.services.install import KAFKA_JARS
from tests.services.service import Service, ServiceFailed, find, free_port, listens, spawn, wait_until

# A short-lived broker on shared cores: the client compiler alone, and one thread to collect.
JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def start(folder: Path, port: int | None = None) -> Service:
    """Formats the folder if it is new; the same folder brings back the same topics."""
    folder.mkdir(parents=True, exist_ok=True)
    port, log = port or free_port(), folder / "kafka.log"
    classes = f"{KAFKA_JARS}/*"
    properties, data = folder / "server.properties", folder / "data"
    text = (Path(__file__).parent / "kafka.properties").read_text()
    text = text.replace("CPORT", str(free_port())).replace("PORT", str(port)).replace("DATA", str(data))
    properties.write_text(text)
    java = find("java")
    if not (data / "meta.properties").exists():
        tool = [java, "-cp", classes, "kafka.tools.StorageTool"]
        made = _run([*tool, "random-uuid"]).strip().splitlines()[-1]
        _run([*tool, "format", "-t", made, "-c", str(properties)])
    process = spawn([java, *JVM, "-cp", classes, "kafka.Kafka", str(properties)], log, cwd=folder)
    wait_until(
        lambda: listens(port) and "Kafka Server started" in log.read_text(errors="replace"), process, "Kafka", log
    )
    return Service("kafka", "127.0.0.1", port, folder, process)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceFailed(f"{' '.join(command[3:5])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
