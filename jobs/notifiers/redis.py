"""Pings over Redis (extra ``[redis]``): one published message a commit, one connection that listens, in each process.

A ping carries ids and no records: whoever waits reads what changed. While Redis is away pings are lost; those who wait
look for themselves once a second.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from jobs.caches.redis import connect
from jobs.notifier import Ping
from jobs.notifiers.process import ProcessNotifier

log = logging.getLogger("batchyard.notifier")

CHANNEL = "by:pings"
SEND_SECONDS = 0.25
LISTEN_SECONDS = 1.0  # between looks whether the end has come
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between tries to connect


class _Message(msgspec.Struct, frozen=True, array_like=True):
    jobs: tuple[str, ...]
    stopped: tuple[str, ...] = ()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Message)


class RedisNotifier:
    """`start` before anybody subscribes. Pings of this process come back over Redis like all others."""

    def __init__(self, url: str, channel: str = CHANNEL) -> None:
        self._sender = connect(url, SEND_SECONDS)
        self._receiver = connect(url, 2 * LISTEN_SECONDS)
        self._channel = channel
        self._here = ProcessNotifier()
        self._stopping = threading.Event()
        self._listening = threading.Event()  # the channel is subscribed to
        self._thread = threading.Thread(target=self._listen, name="notifier", daemon=True)
        self._lost = 0

    def start(self, timeout: float = 2.0) -> bool:
        """Whether it listens already; if not it goes on trying."""
        self._thread.start()
        return self._listening.wait(timeout)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(2 * LISTEN_SECONDS + SEND_SECONDS)
        self._sender.close()
        self._receiver.close()

    def ping(self, ping: Ping) -> None:
        import redis

        try:
            self._sender.publish(self._channel, _encoder.encode(_Message(ping.jobs, ping.stopped)))
        except redis.RedisError as error:
            if not self._lost:
                log.warning("pings are lost (%s); whoever waits looks once a second", error)
            self._lost += 1
        else:
            if self._lost:
                log.info("pings go out again; %d were lost", self._lost)
                self._lost = 0

    def subscribe(self, told: Callable[[Ping], None]) -> Callable[[], None]:
        return self._here.subscribe(told)

    # -- the thread

    def _listen(self) -> None:
        import redis

        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                with self._receiver.pubsub(ignore_subscribe_messages=False) as pubsub:
                    pubsub.subscribe(self._channel)
                    while not self._stopping.is_set():
                        self._take(pubsub.get_message(timeout=LISTEN_SECONDS))
                        pause = FIRST_PAUSE
            except redis.RedisError as error:
                if self._listening.is_set():
                    log.warning("no pings are heard (%s)", error)
                self._listening.clear()
                self._stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        if message["type"] == "subscribe":
            self._listening.set()
        elif message["type"] == "message":
            try:
                read = _decoder.decode(message["data"])
            except msgspec.MsgspecError as error:
                log.warning("a ping that nobody here can read: %s", error)
                return
            self._here.ping(Ping(read.jobs, stopped=read.stopped))
