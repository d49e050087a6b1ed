"""Run the unit tests on every other Python from 3.12 on that this machine has.

Run by `make nightly`. Each interpreter has its own virtual environment in `.venv`, which is
kept for the next run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = [f"3.{minor}" for minor in range(12, 20)]


def main() -> int:
    """Test on each interpreter; return how many failed."""
    others = [version for version in VERSIONS if is_other(version)]
    print(f"other Pythons from 3.12 on: {', '.join(others) or 'none found'}", flush=True)
    return sum(not passes_on(version) for version in others)


def is_other(version: str) -> bool:
    """Is this Python usable and not the one that runs this program?"""
    return version != OWN and find_python(version) is not None


def is_usable(python: str | None) -> bool:
    """Does this interpreter run? pyenv also has commands for versions that are not active."""
    return python is not None and runs([python, "-c", "import venv"], quiet=True)


def find_python(version: str) -> str | None:
    """Return the path of this Python if it runs this program, is active or is in pyenv."""
    if version == OWN:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    installed = sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))
    return next(filter(is_usable, [shutil.which(f"python{version}"), *installed]), None)


def passes_on(version: str) -> bool:
    """Set up the environment of this Python if needed, then run the unit tests on it."""
    folder = ROOT / ".venv" / f"python{version}"
    python = str(folder / "bin" / "python")
    if not (folder / ".ready").exists():
        group = subprocess.check_output([sys.executable, "tools/group.py", "dev"], cwd=ROOT)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wanted = ["-c", "constraints.txt", "-e", ".[export]", *group.decode().split()]
        if not (
            runs([str(find_python(version)), "-m", "venv", str(folder)])
            and runs([*pip, *wanted])
        ):
            return False
        (folder / ".ready").touch()
    print(f"unit tests on Python {version}", flush=True)
    return runs([python, "-m", "pytest", "tests/unit", "-n", "3", "--dist", "worksteal"])


def runs(command: list[str], *, quiet: bool = False) -> bool:
    """Run a command in the repository; return whether it succeeded."""
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, cwd=ROOT, stdout=output, stderr=output).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
