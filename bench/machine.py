"""Describe the machine that the figures were measured on."""

import os
import platform
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("dirq", "persist-queue", "litequeue", "huey", "task-queue", "pydantic")


def describe(folder: Path, arena: str) -> dict[str, str]:
    """Return the facts of this machine."""
    return {
        "Cores": f"{len(os.sched_getaffinity(0))} ({_processor()})",
        "Memory": f"{_memory_bytes() / 1024**3:.0f} GiB",
        "Kernel": f"{platform.system()} {platform.release()}",
        "Filesystem": f"{filesystem(folder)}; {arena}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "Packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "Load before": f"{os.getloadavg()[0]:.2f}",
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def filesystem(folder: Path) -> str:
    """Return the type of the filesystem of `folder`."""
    answer = subprocess.run(
        ["df", "--output=fstype", str(folder)], capture_output=True, text=True, check=False
    )
    return answer.stdout.split()[-1] if answer.stdout else sys.platform
