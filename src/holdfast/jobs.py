"""Jobs that fan out into tasks and count each task once. See docs/how-to/export-files.md."""

from holdfast._lazy import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "exports.consumer": "ExportJobConsumer",
        "exports.dispatcher": "TaskDispatcher",
        "exports.engine": "EngineSettings JobEngine",
        "exports.errors": "AlreadySealed IllegalTransition InvalidJob JobClosed JobExists "
        "JobNotFound",
        "exports.orchestrator": "HeartbeatOrchestrator",
        "exports.model": "ExportJob ExportTask JobError JobState JobStatus TaskResult "
        "TaskStatus TaskToken",
        "exports.pool.pool": "WorkerPool",
        "exports.pool.worker": "Assignment TaskHandler TaskSource",
        "exports.ports": "JobStateRepository StepFunctions",
        "exports.reconciler": "Reconciler",
        "exports.runner": "JobRunner",
        "exports.tracker": "JobTracker",
    },
)
