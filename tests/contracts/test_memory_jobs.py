"""The job store in memory keeps the contract."""

from typing import ClassVar

import pytest

from contracts.jobs.contract import JobStoreContract
from contracts.jobs.support import OpenRepository
from holdfast.exports.sqlite_jobs import MemoryJobs


class TestMemoryJobs(JobStoreContract):
    """The contract of MemoryJobs."""

    examples: ClassVar[int] = 5

    @pytest.fixture
    def open_repository(self) -> OpenRepository:
        """Return a function that opens the same memory."""
        first = MemoryJobs()
        return lambda clock, keep_seconds=None: MemoryJobs(first, clock, keep_seconds)
