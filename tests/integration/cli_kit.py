"""Running the command line: in this process for speed, as a real one where that matters."""

import ctypes
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """`holdfast` in a folder of its own."""

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
        said = self._capsys.readouterr()
        return Ran(code, said.out, said.err)


def clean_env(**more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    return {**env, **more}


def command(*arguments: str) -> list[str]:
    """-P: like the console script, which does not find what lies in the current folder."""
    return [sys.executable, "-P", "-m", "holdfast.cli", *arguments]


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """A real process, for signals and pipes."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("env", clean_env())
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(command(*arguments), cwd=folder, stdout=subprocess.PIPE, **options)


def real(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """A real process, run to its end."""
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=clean_env(**(env or {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def without_privileges() -> None:
    """For preexec_fn: root writes anywhere, unless it gives that up before it starts."""
    if os.geteuid() == 0 and sys.platform == "linux":
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability)


def eventually(what: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait for a condition; however slow the machine is, it is met in the end."""
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        if answer := what():
            return answer
        time.sleep(0.05)
    raise AssertionError("it never came true")


def one_line(ran: Ran) -> str:
    """What an error must be: one line on stderr, no traceback, nothing on stdout."""
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") == 1, ran.err
    return ran.err
