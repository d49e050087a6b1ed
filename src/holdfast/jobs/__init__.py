"""Jobs that fan out into tasks and count each task once. See docs/how-to/export-files.md."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.jobs.consumer import ExportJobConsumer as ExportJobConsumer
    from holdfast.jobs.dispatcher import TaskDispatcher as TaskDispatcher
    from holdfast.jobs.engine import EngineSettings as EngineSettings
    from holdfast.jobs.engine import JobEngine as JobEngine
    from holdfast.jobs.errors import AlreadySealed as AlreadySealed
    from holdfast.jobs.errors import IllegalTransition as IllegalTransition
    from holdfast.jobs.errors import InvalidJob as InvalidJob
    from holdfast.jobs.errors import JobClosed as JobClosed
    from holdfast.jobs.errors import JobExists as JobExists
    from holdfast.jobs.errors import JobNotFound as JobNotFound
    from holdfast.jobs.heartbeats.orchestrator import (
        HeartbeatOrchestrator as HeartbeatOrchestrator,
    )
    from holdfast.jobs.model import ExportJob as ExportJob
    from holdfast.jobs.model import ExportTask as ExportTask
    from holdfast.jobs.model import JobError as JobError
    from holdfast.jobs.model import JobState as JobState
    from holdfast.jobs.model import JobStatus as JobStatus
    from holdfast.jobs.model import TaskResult as TaskResult
    from holdfast.jobs.model import TaskStatus as TaskStatus
    from holdfast.jobs.model import TaskToken as TaskToken
    from holdfast.jobs.pool.pool import WorkerPool as WorkerPool
    from holdfast.jobs.pool.ports import Assignment as Assignment
    from holdfast.jobs.pool.ports import TaskHandler as TaskHandler
    from holdfast.jobs.pool.ports import TaskSource as TaskSource
    from holdfast.jobs.ports import JobStateRepository as JobStateRepository
    from holdfast.jobs.ports import StepFunctions as StepFunctions
    from holdfast.jobs.reconciler import Reconciler as Reconciler
    from holdfast.jobs.runner import JobRunner as JobRunner
    from holdfast.jobs.tracker import JobTracker as JobTracker

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "jobs.consumer": "ExportJobConsumer",
        "jobs.dispatcher": "TaskDispatcher",
        "jobs.engine": "EngineSettings JobEngine",
        "jobs.errors": "AlreadySealed IllegalTransition InvalidJob JobClosed JobExists "
        "JobNotFound",
        "jobs.heartbeats.orchestrator": "HeartbeatOrchestrator",
        "jobs.model": "ExportJob ExportTask JobError JobState JobStatus TaskResult "
        "TaskStatus TaskToken",
        "jobs.pool.pool": "WorkerPool",
        "jobs.pool.ports": "Assignment TaskHandler TaskSource",
        "jobs.ports": "JobStateRepository StepFunctions",
        "jobs.reconciler": "Reconciler",
        "jobs.runner": "JobRunner",
        "jobs.tracker": "JobTracker",
    },
)
