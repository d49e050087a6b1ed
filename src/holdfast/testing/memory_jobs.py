"""A job store in memory, on plain values. Other stores are compared with it."""

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.jobs.row_store import RowJobStore
from holdfast.testing.memory_rows import MemoryRows

_KEYS = {"jobs": ("job_id",), "tasks": ("job_no", "task_id")}


class JobMemory(MemoryRows):
    """The stored jobs and tasks. Several MemoryJobs may share them."""

    def __init__(self) -> None:
        super().__init__(_KEYS, {"jobs": "job_no"})


class MemoryJobs(RowJobStore):
    """A job store that lasts as long as its memory. Safe for threads."""

    def __init__(
        self,
        memory: JobMemory | None = None,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
    ) -> None:
        super().__init__(JobMemory() if memory is None else memory, clock, keep_seconds)
