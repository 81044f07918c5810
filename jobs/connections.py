"""Where the services of a deployment over many machines are, and how they are used: plain values for the adapters."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    servers: tuple[str, ...]
    prefix: str = "by."  # of the topics' names: another for each deployment that shares a cluster
    partitions: int = 12  # of a pool's topic when it is made here
    replicas: int = 1
    client_id: str = "batchyard"
    member: str | None = None  # static membership: a name that stays the same over restarts of one worker
    session_seconds: float = 10.0
    delivery_seconds: float = 10.0  # until a record that is not acknowledged is given up; below the publishing lease
    queued_records: int = 2_000  # that wait for the sender


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Where the bucket is. Keys that are left out are found as boto3 finds them (environment, files, roles)."""

    bucket: str
    prefix: str = ""  # of every key in the bucket, with its slash
    endpoint: str | None = None  # None: the vendor's own
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None
    part_bytes: int = 8 * MIB  # an upload above this goes in parts of this size
