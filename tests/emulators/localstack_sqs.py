"""LocalStack's SQS, with a clock that the test moves.

LocalStack is installed in a separate environment, because its dependencies would change ours.
This file runs there as a script and moves the time that LocalStack reads. Each line of its
standard input is a number of seconds, and it writes one byte when the clock has moved.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PYTHON = Path(sys.prefix) / "localstack" / "bin" / "python"
_PORT = 4566
_SETTINGS = {
    "DISABLE_EVENTS": "1",
    "SERVICES": "sqs",
    "SKIP_SSL_CERT_DOWNLOAD": "1",
    "SQS_ENDPOINT_STRATEGY": "path",
}

Advance = Callable[[float], None]


def explain_unavailable() -> str:
    """Return why LocalStack cannot run here, or an empty text."""
    if not _PYTHON.exists():
        return f"LocalStack is not installed: `make nightly` puts it at {_PYTHON.parents[1]}"
    return ""


@contextmanager
def run_server(log: Path) -> Iterator[tuple[str, Advance]]:
    """Yield the server's address, and a function that moves its clock and applies
    what is due.
    """
    from emulators.isolated_server import run_isolated

    read_end, write_end = os.pipe()
    command = [str(_PYTHON), __file__, str(write_end)]
    options = {"stdin": subprocess.PIPE, "env": os.environ | _SETTINGS, "pass_fds": [write_end]}
    with (
        log.open("wb") as errors,
        run_isolated(command, _PORT, stderr=errors, **options) as server,
    ):
        os.close(write_end)

        def advance(seconds: float) -> None:
            assert server.process.stdin is not None
            server.process.stdin.write(f"{seconds}\n")
            server.process.stdin.flush()
            assert os.read(read_end, 1), f"LocalStack has ended; see {log}"

        yield server.url, advance
    os.close(read_end)


# -- the script

_real_time = time.time
_offset_seconds = 0.0


def _apply_advances(lines: Iterator[str], write_end: int) -> None:
    global _offset_seconds
    for line in lines:
        # Imported now, because the main thread imports the same modules while it starts.
        from localstack.services.sqs.provider import QueueUpdateWorker

        _offset_seconds += float(line)
        QueueUpdateWorker().do_update_all_queues()
        os.write(write_end, b".")


if __name__ == "__main__":
    time.time = lambda: _real_time() + _offset_seconds
    lines = iter(sys.stdin.readline, "")
    threading.Thread(
        target=_apply_advances, args=(lines, int(sys.argv[1])), daemon=True
    ).start()
    from localstack.runtime.main import main

    main()
