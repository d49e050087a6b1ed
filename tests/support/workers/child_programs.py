"""A program of a child process that does what its code names."""

import signal
import time
from collections.abc import Callable

from holdfast.process.child_main import ParentLink


def prepare(what: str, link: ParentLink) -> Callable[[], None]:
    """Return a function that reads commands and sends each back."""
    if what == "never ready":
        time.sleep(1000)
    if what == "cannot load":
        raise LookupError("no such module")
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def serve() -> None:
        while (frame := link.read()) is not None:
            link.send(*frame)
        if what == "lingers":
            time.sleep(1000)

    return serve
