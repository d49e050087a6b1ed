"""The model that job stores are compared with keeps the contract itself."""

from typing import ClassVar

import pytest

from holdfast.testing.contracts.jobs.contract import JobStoreContract
from holdfast.testing.contracts.jobs.support import OpenRepository
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs


class TestModelOfJobs(JobStoreContract):
    examples: ClassVar[int] = 5

    @pytest.fixture
    def open_repository(self) -> OpenRepository:
        memory = JobMemory()
        return lambda clock, keep_seconds=None: MemoryJobs(memory, clock, keep_seconds)
