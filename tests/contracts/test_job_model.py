"""The model that job stores are compared with keeps the contract itself."""

from typing import ClassVar

import pytest
from job_promises.kit import OpenRepository
from job_promises.model import ModelJobs, World
from job_repository_contract import JobRepositoryContract


class TestModelOfJobs(JobRepositoryContract):
    examples: ClassVar[int] = 5

    @pytest.fixture
    def open_repository(self) -> OpenRepository:
        world = World()
        return lambda clock, keep_seconds=None: ModelJobs(world, clock, keep_seconds)
