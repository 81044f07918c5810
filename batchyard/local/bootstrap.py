"""Wires the local stack: the one place on this side that knows which adapter stands behind which port."""

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from api.services import Services
from batchyard.local.data import Keys
from jobs.blobs.directory import DirectoryBlobs
from jobs.caches.memory import MemoryCache
from jobs.ids import new_id
from jobs.ledger import Ledger
from jobs.models.catalog import Catalog
from jobs.notifiers.process import ProcessNotifier
from jobs.publisher import Publisher
from jobs.records import ApiKey
from jobs.settings import Settings
from jobs.store import Transaction
from jobs.stores.sqlite import SqliteStore
from jobs.streams.memory import MemoryStream
from migrations.run import upgrade
from workers.supervisor import Supervisor
from workers.upkeep.expirer import Expirer
from workers.upkeep.loop import Agent
from workers.upkeep.relay import Relay
from workers.upkeep.rescuer import Rescuer

log = logging.getLogger("batchyard.stack")

TENANT = "default"
SCOPES = frozenset({"jobs:read", "jobs:write", "webhooks", "usage:read", "models:debug"})
