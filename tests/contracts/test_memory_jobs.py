"""The model that job stores are compared with keeps the contract itself."""

from typing import ClassVar

import pytest
from job_promises.kit import OpenRepository
from job_repository_contract import JobRepositoryContract

from holdfast.testing.memory_jobs import JobMemory, MemoryJobs


class TestModelOfJobs(JobRepositoryContract):
    examples: ClassVar[int] = 5

    @pytest.fixture
    def open_repository(self) -> OpenRepository:
        memory = JobMemory()
        return lambda clock, keep_seconds=None: MemoryJobs(memory, clock, keep_seconds)
