"""The engine child: ``python -m workers.child.main FD``. Serves one model version over the socket FD until it ends.

It ends at once when the pipe does, so it never outlives its supervisor; signals of a terminal are the supervisor's.
"""

import os
import queue
import signal
import sys
import threading

from jobs.errors import BatchyardError
from workers.channel import Channel
from workers.child.loading import load
from workers.wire import LoadFailed, Run, Start, Started, Stop, ToChild

Work = tuple[Run, list[memoryview]] | None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout = sys.stderr  # what a handler prints goes to the log, line by line
    channel = Channel.of_child(int(sys.argv[1]))
    first = channel.receive()
    if first is None or not isinstance(first[0], Start):
        return
    work: queue.SimpleQueue[Work] = queue.SimpleQueue()
    # Reads while a batch runs, so that the next one is here when it ends; and notices the end of the pipe.
    threading.Thread(target=_read, args=(channel, work), name="reader", daemon=True).start()
    try:
        ready = load(first[0])
    except BatchyardError as error:
        channel.send(LoadFailed(str(error)))
        return
    except Exception as error:
        channel.send(LoadFailed(f"{first[0].model}: {type(error).__name__}: {error}"))
        return
    channel.send(ready.loaded)
    while (got := work.get()) is not None:
        run, parts = got
        done, frames = ready.session.run(run, parts, lambda stage, run=run: channel.send(Started(run.id, stage)))  # type: ignore[misc]
        channel.send(done, frames)


def _read(channel: Channel[ToChild], work: "queue.SimpleQueue[Work]") -> None:
    while True:
        received = channel.receive()
        if received is None:
            os._exit(0)
        message, parts = received
        if isinstance(message, Stop):
            work.put(None)
        elif isinstance(message, Run):
            work.put((message, parts))


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # the supervisor is gone
