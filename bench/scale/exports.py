"""The model of the exports: state machine, queue of jobs, Fargate tasks and heartbeats.

Every job and every task is simulated. A job's files are counted when it ends. One job in
`SAMPLE` gets heartbeats, because there are hundreds of millions of them in a week, and Step
Functions accepts one call in `SAMPLE`.
"""

from math import ceil

from bench.scale.heartbeats import Sender, TokenBucket
from bench.scale.quotas import HEARTBEAT_BUCKET, HEARTBEAT_REFILL
from bench.scale.service import ServiceModel, Task, Unit, World
from holdfast.exports.model import ExportJob

SAMPLE = 100
FILES = 20  # of a job
JOB_SECONDS = 3_000.0
PROGRESS_SECONDS = 30.0  # between two notes of a job whose files arrive slowly
TRANSITIONS = 3  # of an execution: to the task, to its end state, to the end
_MAX_RESTARTS = 2  # MaxAttempts of the state machine's Retry, after 10 s
_RESTART_SECONDS = 10.0
_SEND_TRIES = 3  # of an AWS SDK, for the message of an execution; AWS does not say
_STORE_FAILS_SECONDS = 8.0  # all tries of the DynamoDB client


class Job(Unit):
    """A job. `heard_at` is when Step Functions last heard of it."""

    __slots__ = ("heard_at", "is_stored", "restarts", "sampled", "stopped_at")

    def __init__(self, sent_at: float, seconds: float) -> None:
        super().__init__(sent_at, seconds)
        self.heard_at, self.stopped_at = sent_at, 0.0
        self.is_stored = False
        self.restarts = 0
        self.sampled: ExportJob | None = None


class ExportTask(Task):
    """One Fargate task of `export serve`."""

    def __init__(self, model: "ExportModel") -> None:
        super().__init__()
        self.sender = Sender(model)


class ExportModel(ServiceModel[Job]):
    """All exports."""

    renewals_per_call = 10  # a task holds many jobs

    def __init__(
        self,
        world: World,
        active_jobs: float,
        *,
        mean_seconds: float = JOB_SECONDS,
        sample: int = SAMPLE,
    ) -> None:
        super().__init__(world, world.deployment.exports, "export")
        self._active_jobs, self._mean_seconds = active_jobs, mean_seconds
        self._per_second = active_jobs / mean_seconds
        self.sample = sample
        self._bucket = TokenBucket(HEARTBEAT_BUCKET / sample, HEARTBEAT_REFILL / sample)
        self._sampled: dict[str, Job] = {}
        self._numbers = 0
        self.active = self.failed = 0

    # -- the state machine

    def start(self) -> None:
        """Start the service with as many active jobs as it has on average."""
        self.start_service()
        for _ in range(int(self._active_jobs)):
            # A job that is met at some moment is longer than the mean, and half done.
            job = self._make_job(0.125)
            job.seconds *= self.random.random()
            self._arrive(job)
        self.simulation.after(self.random.expovariate(self._per_second), self._produce)
        self.simulation.after(10.0, self._check_tokens)

    def _make_job(self, mu: float = -0.125) -> Job:
        seconds = self.random.lognormvariate(mu, 0.5) * self._mean_seconds
        seconds = min(seconds, 0.8 * self.deployment.timeout_seconds)
        job = Job(self.simulation.now, seconds)
        self._numbers += 1
        if self._numbers % self.sample == 0:
            name = f"job-{self._numbers}"
            job.sampled = ExportJob.create(name, "export", "user", task_token=name)
            self._sampled[name] = job
        return job

    def _produce(self) -> None:
        if not self.is_producing:
            return
        self.usage.meter("states.start", self.simulation.now, 1.0, window_seconds=1.0)
        self.usage.counts["states.StartExecution"] += 1
        self.usage.counts["states.transition"] += TRANSITIONS
        self._send_first()
        self.simulation.after(self.random.expovariate(self._per_second), self._produce)

    def _send_first(self, failed: int = 0) -> None:
        """Send the message of a new execution, which is retried as the state machine says."""
        delays = self.deployment.send_retry_seconds
        if self.random.random() >= self.health.sqs_errors**_SEND_TRIES:
            self._arrive(self._make_job())
        elif failed < len(delays):
            self.simulation.after(delays[failed], self._send_first, failed + 1)
        else:
            self.usage.marks["export.failed_starts"] += 1

    def _arrive(self, job: Job) -> None:
        self.sent += 1
        self.active += 1
        self.usage.note_level("states.open", self.active)
        self.send(job)

    def _time_out(self, job: Job, number: int = 1) -> bool:
        """Let the execution time out. Returns whether it is retried."""
        self.usage.marks["export.timeouts"] += number
        job.restarts += 1
        job.heard_at = self.simulation.now + _RESTART_SECONDS
        return job.restarts <= _MAX_RESTARTS

    def _check_tokens(self) -> None:
        """Time out the executions that Step Functions has not heard of for too long.

        A stored job takes over the token of the retried execution, whose message is not
        simulated. A job that waits for its first task gets no heartbeats.
        """
        before = self.simulation.now - self.deployment.heartbeat_seconds
        for job in self._sampled.values():
            if job.is_stored and job.heard_at < before:
                self._time_out(job, self.sample)
        late = [job for job in self.visible if job.heard_at < before]
        for job in late:
            if not job.is_stored and not self._time_out(job):
                self.visible.remove(job)
                self._give_up(job)
        if self.is_producing or self.active:
            self.simulation.after(10.0, self._check_tokens)

    def _give_up(self, job: Job) -> None:
        self.failed += 1
        self._close(job)

    def _close(self, job: Job) -> None:
        self.active -= 1
        if job.sampled is not None:
            del self._sampled[job.sampled.job_id]

    # -- working on a job

    def take(self, unit: Job, task: Task) -> None:
        """Let a task work on a job, and beat for it."""
        super().take(unit, task)
        assert isinstance(task, ExportTask)
        if unit.sampled is not None:
            task.sender.receive(unit.sampled)

    def release(self, unit: Job) -> None:
        """Take a job from its task, which beats for it no more."""
        assert isinstance(unit.task, ExportTask)
        unit.stopped_at = self.simulation.now
        if unit.sampled is not None:
            unit.task.sender.forget(unit.sampled.job_id)
        super().release(unit)

    def compute_seconds(self, unit: Job) -> float:
        """Return how long the job takes, or how long the store tries to store it."""
        unit.is_stored = unit.is_stored or self.health.dynamodb_errors < 1
        return unit.seconds if unit.is_stored else _STORE_FAILS_SECONDS

    def can_settle(self, unit: Job) -> bool:
        """Return whether the last results and the outcome can be stored and sent.

        Otherwise they wait in memory and in the job's row.
        """
        stores = self.health.dynamodb_errors < 1 and self.health.states_errors < 1
        return super().can_settle(unit) and (stores or not unit.is_stored)

    def finish(self, unit: Job) -> bool:
        """Count the files of a job, unless it could not be stored."""
        if not unit.is_stored:
            return False
        now, usage = self.simulation.now, self.usage
        usage.add_flow("job", now)
        usage.add_flow("job_file", now, FILES)
        usage.meter("dynamodb.index_write", now, usage.flows["job"]["dynamodb.index_write"])
        usage.meter("dynamodb.read", now, FILES * usage.flows["job_file"]["dynamodb.read"])
        usage.counts["s3.put"] += FILES
        self._close(unit)
        return True

    def note_interrupted(self, unit: Job) -> None:
        """Keep what is counted; about half a file is done again."""
        done = self.simulation.now - unit.began_at
        half_file = self._mean_seconds / FILES / 2
        unit.seconds = max(1.0, unit.seconds - done + half_file)

    def dead_letter(self, unit: Job) -> None:
        """Dead-letter the message. Its execution times out, and sends another one."""
        self.usage.marks["export.dead"] += 1
        times_out_at = unit.heard_at + self.deployment.heartbeat_seconds
        if not self._time_out(unit):
            self._give_up(unit)
            return
        unit.attempts = 0
        self.usage.counts["sqs.SendMessage"] += 1
        left = max(0.0, times_out_at - self.simulation.now)
        self.hide(unit, left + _RESTART_SECONDS)
        unit.heard_at = self.simulation.now + left + _RESTART_SECONDS

    # -- the service

    def add_task(self) -> None:
        """Add a task."""
        self.tasks.append(ExportTask(self))
        self.deliver()

    def remove_task(self, task: Task) -> None:
        """Let a task send no more heartbeats."""
        assert isinstance(task, ExportTask)
        task.sender.is_alive = False

    def count_running(self, seconds: float) -> None:
        """Count what the tasks cost, and the progress that they note."""
        super().count_running(seconds)
        notes = sum(len(task.held) for task in self.tasks) * seconds / PROGRESS_SECONDS
        self.usage.counts["dynamodb.UpdateItem"] += notes
        self.usage.counts["dynamodb.write"] += notes

    def count_listing(self) -> None:
        """Count the calls that list all active jobs."""
        now, hundreds = self.simulation.now, self.active / 100
        flow, counts = self.usage.flows["list_100_jobs"], self.usage.counts
        counts["dynamodb.BatchGetItem"] += ceil(hundreds)
        counts["dynamodb.Query"] += flow["dynamodb.Query"]
        counts["dynamodb.read"] += hundreds * flow["dynamodb.read"]
        of_index = 1.5  # of these units
        rows = flow["dynamodb.read"] - of_index
        self.usage.meter("dynamodb.read", now, hundreds * rows)
        self.usage.meter("dynamodb.index_read", now, hundreds * of_index)

    # -- heartbeats

    def list_unmoved(self, since: float) -> list[ExportJob]:
        """Return the stored jobs that made no progress since then."""
        return [
            job.sampled
            for job in self._sampled.values()
            if job.task is None and job.is_stored and job.stopped_at <= since and job.sampled
        ]

    def accept_heartbeat(self, name: str) -> bool:
        """Return whether Step Functions accepts a heartbeat."""
        now, health = self.simulation.now, self.health
        self.usage.counts["states.SendTaskHeartbeat"] += self.sample
        self.usage.marks["export.beats"] += self.sample
        accepted = self._bucket.take(now, health.states_capacity)
        if accepted and health.states_errors:
            accepted = self.random.random() >= health.states_errors
        if not accepted:
            self.usage.marks["export.beats_refused"] += self.sample
        elif (job := self._sampled.get(name)) is not None:
            job.heard_at = now
        return accepted
