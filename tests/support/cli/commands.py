"""Run the command line in this process for speed, or as a real process."""

import ctypes
import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.cli.main import run
from support.waiting import WAIT_TIMEOUT_SECONDS


class Ran(NamedTuple):
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


def prepend_path(folder: Path) -> str:
    """Return a PYTHONPATH on which the modules of a folder come first."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def command(*arguments: str) -> list[str]:
    """Return a command line. -P ignores the current folder, as the console script does."""
    return [sys.executable, "-P", "-m", "holdfast.cli", *arguments]


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a real process, for signals and pipes."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("env", clean_env())
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command(*arguments), cwd=folder, **options)


class OnTerminal:
    """A real process whose stderr, or stdout, is a terminal."""

    def __init__(
        self, folder: Path, *arguments: str, stream: str = "stderr", **env: str
    ) -> None:
        self._terminal, other_end = pty.openpty()
        env = clean_env(**{"COLUMNS": "120", "TERM": "xterm", **env})
        self.process = start(folder, *arguments, env=env, **{stream: other_end})
        os.close(other_end)
        self._shown = b""

    def read(self, *words: bytes) -> bytes:
        """Return what was shown when all words were, or without words at the end.

        A word that is given twice must have been shown twice.
        """
        until = time.monotonic() + WAIT_TIMEOUT_SECONDS
        while not words or any(self._shown.count(word) < words.count(word) for word in words):
            seconds = until - time.monotonic()
            assert select.select([self._terminal], [], [], seconds)[0], self._shown
            try:
                self._shown += os.read(self._terminal, 65536)
            except OSError:  # Linux reports the end as an error
                assert not words, f"it ended before that appeared: {self._shown!r}"
                os.close(self._terminal)
                break
        return self._shown


def real(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run a real process to its end."""
    return wait_for_end(start(folder, *arguments, env=clean_env(**(env or {}))))


def wait_for_end(process: subprocess.Popen[bytes]) -> Ran:
    """Wait until a process has ended. It is killed if it does not."""
    try:
        out, err = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Ran(process.returncode, out.decode(), err.decode())


def log_contains(process: subprocess.Popen[bytes], *words: bytes) -> bool:
    """Read the log until all words have occurred, in any order.

    False if it ends before; pytest then shows the log.
    """
    assert process.stderr is not None
    missing = set(words)
    for line in iter(process.stderr.readline, b""):
        print(line.decode(), end="")
        missing -= {word for word in missing if word in line}
        if not missing:
            return True
    return False


_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def drop_privileges() -> None:
    """Drop the capabilities that let root write anywhere. It is for preexec_fn."""
    if os.geteuid() == 0 and sys.platform == "linux":
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability)


def run_unprivileged(folder: Path, *arguments: str) -> Ran:
    """Run a real process to its end that can write only where modes allow it, even as root."""
    return wait_for_end(start(folder, *arguments, preexec_fn=drop_privileges))


def require_one_line(ran: Ran) -> str:
    """Return the error, which must be one line on stderr without a traceback or output."""
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") == 1, ran.err
    return ran.err
