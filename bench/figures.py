"""What one measurement yields, and how a process sees its own cost."""

import resource
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CycleFigures:
    """Seconds spent in so many cycles, and in each third of them."""

    cycles: int
    seconds: float
    push: float
    claim: float
    done: float
    peak_bytes: int

    @property
    def per_second(self) -> float:
        return self.cycles / self.seconds

    @property
    def microseconds(self) -> float:
        return self.seconds / self.cycles * 1e6


def memory_bytes(field: str = "VmRSS") -> int:
    """This process's memory now (VmRSS) or at its highest (VmHWM)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
