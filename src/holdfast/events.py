"""Everything that Holdfast reports. Subscribe to it with `Events`.

    events = Events(print, EventLog(tracebacks=False))
    Worker(queue, handler, events=events).run()

Logs and metrics are made from these events alone. A queue that is given no events logs them
with `EventLog()`.
"""

from holdfast.conversations.events import BatchBegun as BatchBegun
from holdfast.conversations.events import BatchFailed as BatchFailed
from holdfast.conversations.events import BatchParked as BatchParked
from holdfast.conversations.events import ConversationEvent as ConversationEvent
from holdfast.conversations.events import FragmentStaged as FragmentStaged
from holdfast.conversations.events import InboundRefused as InboundRefused
from holdfast.conversations.events import LockBusy as LockBusy
from holdfast.conversations.events import LockNotRenewed as LockNotRenewed
from holdfast.conversations.events import LockTakenOver as LockTakenOver
from holdfast.conversations.events import NothingStaged as NothingStaged
from holdfast.conversations.events import ReleaseFailed as ReleaseFailed
from holdfast.conversations.events import ReplySent as ReplySent
from holdfast.conversations.events import ReplyWritten as ReplyWritten
from holdfast.conversations.events import SendInDoubt as SendInDoubt
from holdfast.conversations.events import SentNotRecorded as SentNotRecorded
from holdfast.conversations.events import SweepFinished as SweepFinished
from holdfast.conversations.events import TurnFinished as TurnFinished
from holdfast.conversations.events import WindowOpened as WindowOpened
from holdfast.conversations.events import WindowProlonged as WindowProlonged
from holdfast.core.event_log import EventLog as EventLog
from holdfast.core.events import CheckpointNotKept as CheckpointNotKept
from holdfast.core.events import ChildKilled as ChildKilled
from holdfast.core.events import Claimed as Claimed
from holdfast.core.events import Completed as Completed
from holdfast.core.events import DeadLettered as DeadLettered
from holdfast.core.events import Event as Event
from holdfast.core.events import Events as Events
from holdfast.core.events import GivenBack as GivenBack
from holdfast.core.events import LeaseAtRisk as LeaseAtRisk
from holdfast.core.events import LeaseRenewed as LeaseRenewed
from holdfast.core.events import MessageEvent as MessageEvent
from holdfast.core.events import MessageLeaseLost as MessageLeaseLost
from holdfast.core.events import NearCap as NearCap
from holdfast.core.events import OnError as OnError
from holdfast.core.events import PollFailed as PollFailed
from holdfast.core.events import QueueEvent as QueueEvent
from holdfast.core.events import QueueMeasured as QueueMeasured
from holdfast.core.events import RenewalFailed as RenewalFailed
from holdfast.core.events import ResultNotKept as ResultNotKept
from holdfast.core.events import Retried as Retried
from holdfast.core.events import SchemaTooNew as SchemaTooNew
from holdfast.core.events import TakenOver as TakenOver
from holdfast.core.events import WorkerStarted as WorkerStarted
from holdfast.core.events import WorkerStopped as WorkerStopped
from holdfast.core.events import WorkerStopping as WorkerStopping
from holdfast.jobs.events import ActiveJobs as ActiveJobs
from holdfast.jobs.events import ActiveJobsUnknown as ActiveJobsUnknown
from holdfast.jobs.events import CallbackFailed as CallbackFailed
from holdfast.jobs.events import CallbackSent as CallbackSent
from holdfast.jobs.events import HeartbeatFailed as HeartbeatFailed
from holdfast.jobs.events import HeartbeatSent as HeartbeatSent
from holdfast.jobs.events import IntervalTight as IntervalTight
from holdfast.jobs.events import JobCancelled as JobCancelled
from holdfast.jobs.events import JobEvent as JobEvent
from holdfast.jobs.events import JobFinished as JobFinished
from holdfast.jobs.events import JobNotReconciled as JobNotReconciled
from holdfast.jobs.events import JobResumed as JobResumed
from holdfast.jobs.events import JobSealed as JobSealed
from holdfast.jobs.events import JobStalled as JobStalled
from holdfast.jobs.events import JobStarted as JobStarted
from holdfast.jobs.events import OrchestratorDisabled as OrchestratorDisabled
from holdfast.jobs.events import OrchestratorStarted as OrchestratorStarted
from holdfast.jobs.events import OrchestratorStopped as OrchestratorStopped
from holdfast.jobs.events import OrchestratorStopping as OrchestratorStopping
from holdfast.jobs.events import PoolWorkerEnded as PoolWorkerEnded
from holdfast.jobs.events import PoolWorkerStarted as PoolWorkerStarted
from holdfast.jobs.events import StepFunctionsTimedOut as StepFunctionsTimedOut
from holdfast.jobs.events import TaskCompleted as TaskCompleted
from holdfast.jobs.events import TaskFailed as TaskFailed
from holdfast.jobs.events import TaskRetried as TaskRetried

__all__ = [name for name in dir() if name[0].isupper()]
