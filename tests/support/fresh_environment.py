"""A virtual environment with nothing but the built wheel and what it depends on."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.paths import ROOT

_UV = Path(sys.executable).with_name("uv")
_MAX_RUN_SECONDS = 120.0


class FreshEnvironment:
    """An empty environment of one Python, an empty folder, and a shell in both.

    `pip install ./holdfast` installs the wheel instead of a clone, with the versions of
    constraints.txt. uv does it, because three environments take pip a minute of processor
    time and uv two seconds.
    """

    def __init__(self, folder: Path, python: str, env: Mapping[str, str]) -> None:
        commands, self.folder = folder / "env" / "bin", folder / "work"
        self.wheel, self.python = _build_wheel(folder), commands / "python"
        subprocess.run([_UV, "venv", "--quiet", "-p", python, folder / "env"], check=True)
        (commands / "pip").write_text(f'#!/bin/sh\nexec {_UV} pip "$@"\n')
        (commands / "pip").chmod(0o755)
        self.env = {
            **{name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")},
            **env,
            "PATH": f"{commands}{os.pathsep}{os.defpath}",
            "VIRTUAL_ENV": str(folder / "env"),
            "UV_CONSTRAINT": str(ROOT / "constraints.txt"),
        }
        self.folder.mkdir()

    def run(self, commands: str) -> str:
        """Run shell commands and return their output. What they export remains exported.

        Raises AssertionError with the output if a command fails, and TimeoutExpired if one
        does not end.
        """
        session = self.folder.with_name("session.sh")
        script = f"touch {session}; . {session}\n{commands}\nexport -p > {session}"
        ran = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_MAX_RUN_SECONDS,
        )
        assert ran.returncode == 0, f"exit code {ran.returncode} of:\n{commands}\n{ran.stdout}"
        return ran.stdout


def _build_wheel(folder: Path) -> Path:
    """Build the wheel of this repository in the folder and return its path."""
    build = [sys.executable, "-m", "hatchling", "build", "--target=wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel
