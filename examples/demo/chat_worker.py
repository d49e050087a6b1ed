"""A worker of the chat act: `python -m chat_worker [--hold]`.

With --hold the reply is never sent, because the worker waits from when the reply is stored as
prepared until it is killed.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from threading import Event
from typing import Any

from holdfast import Events, Worker
from holdfast.chat import Channel, build_chat
from holdfast.events import EventLog

HOLD = "--hold"
DRAIN_SECONDS = 5.0


def main() -> None:
    """Answer messages until a signal stops the process."""
    stopping = Event()

    def log(
        level: int, name: str, fields: Mapping[str, Any], error: BaseException | None
    ) -> None:
        print(json.dumps({"event": name, **fields}), file=sys.stderr, flush=True)
        if name == "worker_stopping":
            stopping.set()
        if name == "reply_written" and HOLD in sys.argv:
            stopping.wait()

    events = Events(EventLog(log))
    with build_chat(os.environ, events=events) as app:
        queue = app.queues[Channel.WHATSAPP]
        worker = Worker(
            queue, app.processor, drain_seconds=DRAIN_SECONDS, keeper=app.keeper, events=events
        )
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        app.keeper.start()
        worker.run()


if __name__ == "__main__":
    main()
