"""The figures of a measurement, and the cost of a process."""

import resource
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CycleFigures:
    """The seconds of some cycles, and of each of their three steps."""

    cycles: int
    seconds: float
    push: float
    claim: float
    done: float
    peak_bytes: int = 0
    cpu: float = 0.0  # seconds

    @property
    def per_second(self) -> float:
        """Return the cycles per second."""
        return self.cycles / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        """Return the CPU time of a cycle in microseconds."""
        return self.cpu / self.cycles * 1e6


def memory_bytes(field: str = "VmRSS") -> int:
    """Return this process's memory now (VmRSS) or its peak (VmHWM)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def cpu_seconds() -> float:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
