"""Run the command line in this process for speed, or as a real process."""

import ctypes
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run

WAIT_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Ran:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the output, parsed as JSON."""
        return json.loads(self.out)


class Cli:
    """Runs `holdfast` in its own folder."""

    def __init__(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
            monkeypatch.delenv(name)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ran:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        code = run(list(arguments))
        output = self._capsys.readouterr()
        return Ran(code, output.out, output.err)


def clean_env(**more: str) -> dict[str, str]:
    """Return the environment without Holdfast's variables, plus the given ones."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    return {**env, **more}


def command(*arguments: str) -> list[str]:
    """Return a command line. -P ignores the current folder, as the console script does."""
    return [sys.executable, "-P", "-m", "holdfast.cli", *arguments]


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a real process, for signals and pipes."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("env", clean_env())
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(command(*arguments), cwd=folder, stdout=subprocess.PIPE, **options)


def read_terminal(terminal: int) -> bytes:
    """Return what is written to a terminal until its other end is closed."""
    shown = b""
    with suppress(OSError):  # Linux reports the end as an error
        while chunk := os.read(terminal, 65536):
            shown += chunk
    os.close(terminal)
    return shown


def real(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run a real process to its end."""
    finished = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=clean_env(**(env or {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAIT_TIMEOUT_SECONDS,
        check=False,
    )
    return Ran(finished.returncode, finished.stdout.decode(), finished.stderr.decode())


_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def drop_privileges() -> None:
    """Drop the capabilities that let root write anywhere. It is for preexec_fn."""
    if os.geteuid() == 0 and sys.platform == "linux":
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability)


def eventually(
    condition: Callable[[], Any],
    seconds: float = WAIT_TIMEOUT_SECONDS,
    *,
    every_seconds: float = 0.05,
) -> Any:
    """Wait until a condition is met, and return its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(every_seconds)
    raise AssertionError("the condition was not met in time")


def require_one_line(ran: Ran) -> str:
    """Return the error, which must be one line on stderr without a traceback or output."""
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") == 1, ran.err
    return ran.err
