"""A process that kills itself with SIGKILL before its k-th call of a port."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.exports.errors import TokenClosed
from holdfast.exports.model import TaskToken


class Crashing:
    """Wraps ports, and kills the process before the k-th call of any of them; 0 is never."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.calls = 0

    def wrap(self, port: Any) -> Any:
        """Return the port with its calls counted."""
        return _CountedPort(port, self)

    def count_call(self) -> None:
        """Count a call, and kill the process if it is the k-th."""
        self.calls += 1
        if self.calls == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


class _CountedPort:
    def __init__(self, port: Any, crashing: Crashing) -> None:
        self._port, self._crashing = port, crashing

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._crashing.count_call()
            return call(*args, **kwargs)

        return counted


class LedgerStepFunctions:
    """Step Functions as a file that processes share, with a line for each accepted callback."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger

    def list_accepted(self, token: str) -> list[dict[str, Any]]:
        """Return the accepted callbacks of a token."""
        if not self._ledger.exists():
            return []
        lines = map(json.loads, self._ledger.read_text().splitlines())
        return [line for line in lines if line["token"] == token]

    def send_task_success(self, token: TaskToken, output: Mapping[str, Any]) -> None:
        self._accept(token, {"kind": "success", "output": dict(output)})

    def send_task_failure(self, token: TaskToken, error: str, cause: str) -> None:
        self._accept(token, {"kind": "failure", "error": error})

    def send_task_heartbeat(self, token: TaskToken) -> None:
        if self.list_accepted(token.reveal()):
            raise TokenClosed("TaskTimedOut")

    def _accept(self, token: TaskToken, callback: dict[str, Any]) -> None:
        if self.list_accepted(token.reveal()):
            raise TokenClosed("TaskTimedOut")
        with self._ledger.open("a") as ledger:
            ledger.write(json.dumps({"token": token.reveal(), **callback}) + "\n")
