"""The store in memory, with which other stores are compared, passes the contract itself."""

from typing import ClassVar

import pytest

from holdfast.testing.contracts.jobs.contract import JobStoreContract
from holdfast.testing.contracts.jobs.support import OpenRepository
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs


class TestModelOfJobs(JobStoreContract):
    """The contract of MemoryJobs."""

    examples: ClassVar[int] = 5

    @pytest.fixture
    def open_repository(self) -> OpenRepository:
        """Return a function that opens the same memory."""
        memory = JobMemory()
        return lambda clock, keep_seconds=None: MemoryJobs(memory, clock, keep_seconds)
