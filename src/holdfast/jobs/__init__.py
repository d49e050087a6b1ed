"""Jobs that fan out into tasks and count each task once. See docs/how-to/export-files.md."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.jobs.consumer import (
        ExportJobConsumer,
    )
    from holdfast.jobs.dispatcher import (
        TaskDispatcher,
    )
    from holdfast.jobs.engine import (
        EngineSettings,
        JobEngine,
    )
    from holdfast.jobs.errors import (
        AlreadySealed,
        IllegalTransition,
        InvalidJob,
        JobClosed,
        JobExists,
        JobNotFound,
    )
    from holdfast.jobs.heartbeats.orchestrator import (
        HeartbeatOrchestrator,
    )
    from holdfast.jobs.model import (
        ExportJob,
        ExportTask,
        JobError,
        JobState,
        JobStatus,
        TaskResult,
        TaskStatus,
        TaskToken,
    )
    from holdfast.jobs.pool.pool import (
        WorkerPool,
    )
    from holdfast.jobs.pool.ports import (
        Assignment,
        TaskHandler,
        TaskSource,
    )
    from holdfast.jobs.ports import (
        JobStateRepository,
        StepFunctions,
    )
    from holdfast.jobs.reconciler import (
        Reconciler,
    )
    from holdfast.jobs.runner import (
        JobRunner,
    )
    from holdfast.jobs.tracker import (
        JobTracker,
    )

_HOMES = {
    "jobs.consumer": ["ExportJobConsumer"],
    "jobs.dispatcher": ["TaskDispatcher"],
    "jobs.engine": ["EngineSettings", "JobEngine"],
    "jobs.errors": [
        "AlreadySealed",
        "IllegalTransition",
        "InvalidJob",
        "JobClosed",
        "JobExists",
        "JobNotFound",
    ],
    "jobs.heartbeats.orchestrator": ["HeartbeatOrchestrator"],
    "jobs.model": [
        "ExportJob",
        "ExportTask",
        "JobError",
        "JobState",
        "JobStatus",
        "TaskResult",
        "TaskStatus",
        "TaskToken",
    ],
    "jobs.pool.pool": ["WorkerPool"],
    "jobs.pool.ports": ["Assignment", "TaskHandler", "TaskSource"],
    "jobs.ports": ["JobStateRepository", "StepFunctions"],
    "jobs.reconciler": ["Reconciler"],
    "jobs.runner": ["JobRunner"],
    "jobs.tracker": ["JobTracker"],
}

__all__ = [  # made by __getattr__ below
    "AlreadySealed",
    "Assignment",
    "EngineSettings",
    "ExportJob",
    "ExportJobConsumer",
    "ExportTask",
    "HeartbeatOrchestrator",
    "IllegalTransition",
    "InvalidJob",
    "JobClosed",
    "JobEngine",
    "JobError",
    "JobExists",
    "JobNotFound",
    "JobRunner",
    "JobState",
    "JobStateRepository",
    "JobStatus",
    "JobTracker",
    "Reconciler",
    "StepFunctions",
    "TaskDispatcher",
    "TaskHandler",
    "TaskResult",
    "TaskSource",
    "TaskStatus",
    "TaskToken",
    "WorkerPool",
]

__getattr__ = lazy_exports(__name__, _HOMES)
