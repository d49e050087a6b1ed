"""Measure the CPU time of commands, imports and an idle worker (user and system, in ms).

python tools/cpu_times.py           medians of 10 runs, and a worker that is idle for 20 s

CPU time is longer on a loaded machine, because processes evict each other's caches. So the
start of Python itself is printed too, as a scale. As for a user, each program has run once
before, so that its modules are compiled: in a folder of its own, because an environment may
forbid to write bytecode, and then every start would compile Holdfast but not boto3.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 10
IDLE_SECONDS = 20.0
START_SECONDS = 3.0  # until a worker has imported everything
HANDLER = "def handle(message):\n    pass\n"


def measure(folder: str, *arguments: str) -> float:
    """Return the median CPU time of running Python with these arguments, in ms."""
    run_once(folder, arguments)  # compiles the modules
    return statistics.median(run_once(folder, arguments) for _ in range(RUNS))


def run_once(folder: str, arguments: tuple[str, ...]) -> float:
    env = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, env=env
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1000


def measure_idle_worker(folder: str) -> float:
    """Return the CPU time of a worker on an empty queue, in ms per second."""
    Path(folder, "tasks.py").write_text(HANDLER)
    command = ["-m", "holdfast.cli", "work", "idle", "tasks:handle"]
    worker = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(START_SECONDS)
        before = read_cpu_ms(worker.pid)
        time.sleep(IDLE_SECONDS)
        return (read_cpu_ms(worker.pid) - before) / IDLE_SECONDS
    finally:
        worker.terminate()
        worker.wait()


def read_cpu_ms(pid: int) -> float:
    """Return the CPU time of all threads of a process. Linux counts it in nanoseconds."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


def main() -> None:
    """Print each figure as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="holdfast-cpu-") as folder:
        run_once(folder, ("-m", "holdfast.cli", "push", "small", "{}", "{}", "{}"))
        figures = {
            "python -c pass": ("-c", "pass"),
            "holdfast --help": ("-m", "holdfast.cli", "--help"),
            "holdfast status QUEUE": ("-m", "holdfast.cli", "status", "small"),
            "import boto3": ("-c", "import boto3"),
            "import holdfast.aws.lambdas.batch": ("-c", "import holdfast.aws.lambdas.batch"),
        }
        for name, arguments in figures.items():
            print(f"{name:<32} {measure(folder, *arguments):6.0f} ms", flush=True)
        idle = measure_idle_worker(folder)
        print(f"{'idle worker':<32} {idle:6.2f} ms per second")


if __name__ == "__main__":
    main()
