# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.exports.consumer import ExportJobConsumer as ExportJobConsumer
from holdfast.exports.dispatcher import TaskDispatcher as TaskDispatcher
from holdfast.exports.engine import EngineSettings as EngineSettings
from holdfast.exports.engine import JobEngine as JobEngine
from holdfast.exports.errors import AlreadySealed as AlreadySealed
from holdfast.exports.errors import IllegalTransition as IllegalTransition
from holdfast.exports.errors import InvalidJob as InvalidJob
from holdfast.exports.errors import JobClosed as JobClosed
from holdfast.exports.errors import JobExists as JobExists
from holdfast.exports.errors import JobNotFound as JobNotFound
from holdfast.exports.model import ExportJob as ExportJob
from holdfast.exports.model import ExportTask as ExportTask
from holdfast.exports.model import JobError as JobError
from holdfast.exports.model import JobState as JobState
from holdfast.exports.model import JobStatus as JobStatus
from holdfast.exports.model import TaskResult as TaskResult
from holdfast.exports.model import TaskStatus as TaskStatus
from holdfast.exports.model import TaskToken as TaskToken
from holdfast.exports.orchestrator import (
    HeartbeatOrchestrator as HeartbeatOrchestrator,
)
from holdfast.exports.pool.pool import WorkerPool as WorkerPool
from holdfast.exports.pool.worker import Assignment as Assignment
from holdfast.exports.pool.worker import TaskHandler as TaskHandler
from holdfast.exports.pool.worker import TaskSource as TaskSource
from holdfast.exports.ports import JobStateRepository as JobStateRepository
from holdfast.exports.ports import StepFunctions as StepFunctions
from holdfast.exports.reconciler import Reconciler as Reconciler
from holdfast.exports.runner import JobRunner as JobRunner
from holdfast.exports.tracker import JobTracker as JobTracker
