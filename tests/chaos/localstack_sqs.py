"""LocalStack's SQS, with a clock that the test moves.

LocalStack lives in an environment of its own, because its dependencies would change ours. As a
script, this file runs there: it moves what LocalStack takes for the time. Each line of its
standard input says by how many seconds; each byte of its answer that it did.
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


def why_not() -> str:
    """Return why it cannot run here, or nothing."""
    if not _PYTHON.exists():
        return f"LocalStack is not installed: `make chaos` puts it at {_PYTHON.parents[1]}"
    return ""


@contextmanager
def serving(log: Path) -> Iterator[tuple[str, Advance]]:
    """Yield its address, and what moves its clock and has it see to what is due by then."""
    from chaos.walled import walled

    answers, theirs = os.pipe()
    command = [str(_PYTHON), __file__, str(theirs)]
    options = {"stdin": subprocess.PIPE, "env": os.environ | _SETTINGS, "pass_fds": [theirs]}
    with log.open("wb") as errors, walled(command, _PORT, stderr=errors, **options) as server:
        os.close(theirs)

        def advance(seconds: float) -> None:
            assert server.process.stdin is not None
            server.process.stdin.write(f"{seconds}\n")
            server.process.stdin.flush()
            assert os.read(answers, 1), f"LocalStack has ended; see {log}"

        yield server.url, advance
    os.close(answers)


# -- the script

_real_time = time.time
_ahead = 0.0


def _obey(orders: Iterator[str], answers: int) -> None:
    global _ahead
    from localstack.services.sqs.provider import QueueUpdateWorker

    for line in orders:
        _ahead += float(line)
        QueueUpdateWorker().do_update_all_queues()
        os.write(answers, b".")


if __name__ == "__main__":
    time.time = lambda: _real_time() + _ahead
    orders = iter(sys.stdin.readline, "")
    threading.Thread(target=_obey, args=(orders, int(sys.argv[1])), daemon=True).start()
    from localstack.runtime.main import main

    main()
