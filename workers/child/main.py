"""The engine child: ``python -m workers.child.main FD``. Serves one model version over the socket FD until it ends.

It ends at once when the pipe does, so it never outlives its supervisor; signals of a terminal are the supervisor's.
"""

import contextlib
import os
import queue
import signal
import sys
import threading
import traceback

from jobs.errors import BatchyardError, ModelError
from workers.channel import Channel
from workers.child.loading import load
from workers.wire import LoadFailed, Run, Start, Started, Stop, ToChild

Work = tuple[Run, list[memoryview]] | None


def main(descriptor: int) -> int:
    """The exit status: 0 after Stop or the end of the pipe, 1 when the model could not be loaded."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN, which processes started by a handler would inherit.
        signal.signal(number, lambda number, frame: None)
    _quiet_stdout()
    os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=lambda: os.close(descriptor))  # a fork of a handler's must not hold the pipe
    channel = Channel.of_child(descriptor)
    first = channel.receive()
    if first is None or not isinstance(first[0], Start):
        return 0
    work: queue.SimpleQueue[Work] = queue.SimpleQueue()
    # Reads while a batch runs, so that the next one is here when it ends; and notices the end of the pipe.
    threading.Thread(target=_read, args=(channel, work), name="reader", daemon=True).start()
    try:
        ready = load(first[0])
    except ModelError as error:
        channel.send(LoadFailed(str(error)))
        return 1
    channel.send(ready.loaded)
    while (got := work.get()) is not None:
        run, parts = got
        done, frames = ready.session.run(run, parts, lambda stage, of=run.id: channel.send(Started(of, stage)))  # type: ignore[misc]
        channel.send(done, frames)
    ready.session.close()
    return 0


def _quiet_stdout() -> None:
    """What a handler prints goes where its errors go, line by line: to the log, never into anyone's output."""
    os.dup2(sys.stderr.fileno(), 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _read(channel: Channel[ToChild], work: "queue.SimpleQueue[Work]") -> None:
    try:
        while (received := channel.receive()) is not None:
            message, parts = received
            if isinstance(message, Stop):
                work.put(None)
            elif isinstance(message, Run):
                work.put((message, parts))
    except (OSError, BatchyardError):
        traceback.print_exc()
        _leave(2)
    _leave(0)  # whatever runs is nobody's any more


def _leave(status: int) -> None:
    """At once, whatever threads a handler has left behind."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the log may have gone with the supervisor
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        code = main(int(sys.argv[1]))
    except OSError:
        code = 0  # the supervisor is gone
    _leave(code)
