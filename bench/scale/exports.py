"""The model of the exports: state machine, queue of jobs, Fargate tasks and heartbeats.

Every job and every task is simulated. A job's files are counted when it ends. Two things are
aggregated, because there are hundreds of millions of them in a week:

    renewals     each task's keeper is replaced by the calls that a real keeper with as many
                 leases made in measuring.py
    heartbeats   one job in `SAMPLE` is beaten for, by the package's own HeartbeatSchedule, and
                 Step Functions accepts one call in `SAMPLE`
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from math import ceil

from bench.scale.deployment import Deployment
from bench.scale.engine import Histogram, Meter, Simulation, Usage
from bench.scale.faults import Health
from bench.scale.heartbeats import Sender, TokenBucket
from bench.scale.quotas import HEARTBEAT_BUCKET, HEARTBEAT_REFILL
from bench.scale.scaling import Scaler
from holdfast.exports.heartbeat_schedule import Heartbeat
from holdfast.exports.model import ExportJob, JobError, JobStatus, TaskToken
from holdfast.exports.settings import RETRY_GRACE_SECONDS
from holdfast.exports.transitions import (
    attach_token,
    give_up_closed,
    give_up_job,
    note_token_closed,
    settle_job,
)

SAMPLE = 100
FILES = 20  # of a job
PROGRESS_SECONDS = 30.0  # between two notes of a job whose files arrive slowly
TRANSITIONS = 3  # of an execution: to the task, to its end state, to the end
_CHECK_SECONDS = 10.0
_MAX_RESTARTS = 2  # MaxAttempts of the state machine's Retry, after 10 s
_RESTART_SECONDS = 10.0
_SEND_TRIES = 3  # of an AWS SDK, for the message of an execution; AWS does not say
_STORE_FAILS_SECONDS = 8.0
_TOKEN_ERROR = JobError("TaskTimedOut", "Step Functions does not wait for this job any more")


class Job:
    """A job. `left_seconds` is the work that is not counted yet."""

    __slots__ = (
        "began_at", "counted", "heard_at", "host", "is_waited_for", "left_seconds", "number",
        "receives",
        "restarts", "runs", "sampled", "sent_at", "stopped_at", "stored",
    )  # fmt: skip

    def __init__(self, number: int, sent_at: float, seconds: float) -> None:
        self.number, self.sent_at, self.left_seconds = number, sent_at, seconds
        self.receives = self.restarts = self.runs = 0
        self.host: Host | None = None
        self.began_at = self.stopped_at = 0.0
        self.heard_at = sent_at  # when Step Functions heard of it
        self.counted = self.stored = False
        self.is_waited_for = True  # an execution waits for its current token
        self.sampled: ExportJob | None = None


class Host:
    """One Fargate task of `export serve`."""

    __slots__ = ("alive", "jobs", "sender")

    def __init__(self, model: "ExportModel") -> None:
        self.alive = True
        self.jobs: dict[Job, None] = {}  # in order, so that a run can be repeated
        self.sender = Sender(model, self)

    def take(self, job: Job) -> None:
        """Begin to work on a job."""
        job.host = self
        self.jobs[job] = None
        if job.sampled is not None:
            self.sender.receive(job.sampled)

    def drop(self, job: Job) -> None:
        """Work no more on a job."""
        self.jobs.pop(job, None)
        if job.sampled is not None:
            self.sender.forget(job.sampled.job_id)


class ExportModel:
    """All exports."""

    def __init__(
        self,
        simulation: Simulation,
        deployment: Deployment,
        health: Health,
        usage: Usage,
        *,
        flows: Mapping[str, Mapping[str, float]],
        keeper_calls: Mapping[str, float],
        start_seconds: float,
        active_jobs: float,
        mean_seconds: float,
        sample: int = SAMPLE,
        times_out_after: float | None = None,
    ) -> None:
        """Create the model.

        With `times_out_after`, the execution of a job times out so many seconds after its
        state was entered, whatever heartbeats it gets, and is retried with a new token.
        """
        self.simulation, self.deployment, self.health = simulation, deployment, health
        self.usage, self._random, self._flows = usage, simulation.random, flows
        self._keeper = sorted((int(leases), calls) for leases, calls in keeper_calls.items())
        self._start_seconds = start_seconds
        self._active_jobs, self._mean_seconds = active_jobs, mean_seconds
        self._per_second = active_jobs / mean_seconds
        self.sample, self._times_out_after = sample, times_out_after
        self._bucket = TokenBucket(HEARTBEAT_BUCKET / sample, HEARTBEAT_REFILL / sample)
        self._is_producing = True
        self._numbers = 0
        self._starting = 0
        self._scaler = Scaler(deployment.exports)
        self.hosts: list[Host] = []
        self._visible: deque[Job] = deque()
        self._hidden: set[Job] = set()
        self._sampled: dict[str, Job] = {}
        self._in_flight = 0
        self.active = 0
        self.sent = self.counted = self.counted_twice = 0
        self.failed_starts = 0  # executions whose SendMessage failed
        self.failed_executions = 0  # that timed out too often
        self.timeouts = self.lost_leases = self.dead_lettered = 0
        self.retried = self.found_closed = self.failed_for_token = 0
        self.repeated_seconds = 0.0
        self.waits = Histogram()
        self.heartbeats, self.heartbeats_refused = Meter(60.0), Meter(60.0)
        self.starts = Meter()
        self.reads = Meter(60.0)  # of the jobs' table, in a minute
        self.index_reads, self.index_writes = Meter(60.0), Meter(60.0)

    # -- the state machine

    def start(self) -> None:
        """Start the service with as many active jobs as it has on average."""
        service = self.deployment.exports
        self._scaler.desired = service.min_tasks
        for _ in range(service.min_tasks):
            self._add_host()
        for _ in range(int(self._active_jobs)):
            # A job that is met at some moment is longer than the mean, and half done.
            job = self._make_job(0.125)
            job.left_seconds *= self._random.random()
            self._arrive(job)
        self.simulation.after(self._random.expovariate(self._per_second), self._produce)
        self.simulation.after(_CHECK_SECONDS, self._check)
        self.simulation.after(60.0, self._scale)

    def stop_producing(self) -> None:
        """Start no more executions."""
        self._is_producing = False

    def _make_job(self, mu: float = -0.125) -> Job:
        self._numbers += 1
        seconds = min(
            self._random.lognormvariate(mu, 0.5) * self._mean_seconds,
            0.8 * self.deployment.heartbeats.timeout_seconds,
        )
        job = Job(self._numbers, self.simulation.now, seconds)
        if job.number % self.sample == 0:
            name = f"job-{job.number}"
            job.sampled = ExportJob.create(name, "export", "user", task_token=name)
            self._sampled[name] = job
        return job

    def _produce(self) -> None:
        if not self._is_producing:
            return
        now, calls = self.simulation.now, self.usage.calls
        self.starts.add(now)
        calls["states.StartExecution"].total += 1
        calls["states.transition"].total += TRANSITIONS
        self._send()
        self.simulation.at(now + self._random.expovariate(self._per_second), self._produce)

    def _send(self, failed: int = 0) -> None:
        """Send the message of a new execution, which is retried as the state machine says."""
        delays = self.deployment.heartbeats.send_retry_seconds
        if self._random.random() >= self.health.sqs_errors**_SEND_TRIES:
            self._arrive(self._make_job())
        elif failed < len(delays):
            self.simulation.after(delays[failed], self._send, failed + 1)
        else:
            self.failed_starts += 1

    def _arrive(self, job: Job) -> None:
        self.sent += 1
        self.active += 1
        self.usage.note_level("states.open", self.active)
        self.usage.calls["sqs.SendMessage"].add(self.simulation.now)
        self._show(job)

    def _restart(self, job: Job) -> None:
        """Send the job's message again, after its execution timed out."""
        job.receives = 0
        job.sent_at = job.heard_at = self.simulation.now
        self.usage.calls["sqs.SendMessage"].add(self.simulation.now)
        self._hidden.discard(job)
        self._show(job)

    # -- the queue

    def _show(self, job: Job) -> None:
        self._visible.append(job)
        self.usage.note_level("export.backlog", len(self._visible))
        self._deliver()

    def _deliver(self) -> None:
        if self.health.sqs_errors >= 1:
            return
        while self._visible and (host := self._find_host()) is not None:
            self._begin(self._visible.popleft(), host)

    def _find_host(self) -> Host | None:
        """Return a task with a free slot; its long poll gets the message."""
        hosts, slots = self.hosts, self.deployment.exports.concurrency
        if not hosts:
            return None
        first = self._random.randrange(len(hosts))
        for number in range(len(hosts)):
            host = hosts[(first + number) % len(hosts)]
            if len(host.jobs) < slots:
                return host
        return None

    def _hide(self, job: Job, seconds: float) -> None:
        job.host, job.stopped_at = None, self.simulation.now
        self._hidden.add(job)
        self.simulation.after(seconds, self._come_back, job, job.receives)

    def _come_back(self, job: Job, receives: int) -> None:
        if job in self._hidden and job.receives == receives:
            self._hidden.discard(job)
            self._in_flight -= 1
            self._show(job)

    # -- working on a job

    def _begin(self, job: Job, host: Host) -> None:
        now, calls = self.simulation.now, self.usage.calls
        job.receives += 1
        job.runs += 1
        self._in_flight += 1
        self.usage.note_level("export.in_flight", self._in_flight)
        calls["sqs.ReceiveMessage"].add(now)
        if job.receives > self.deployment.queue.max_attempts:
            self._dead_letter(job)
            return
        if job.runs == 1:
            self.waits.add(now - job.sent_at)
        job.began_at = now
        host.take(job)
        if self.health.dynamodb_errors >= 1 and not job.stored:
            self.simulation.after(_STORE_FAILS_SECONDS, self._fail_attempt, job, job.runs)
            return
        if job.sampled is not None and not job.stored and self._times_out_after is not None:
            token = job.sampled.task_token
            self.simulation.after(self._times_out_after, self._close_token, job, token)
        job.stored = True
        self.simulation.after(job.left_seconds, self._finish, job, job.runs)

    def _fail_attempt(self, job: Job, runs: int) -> None:
        if job.host is None or job.runs != runs:
            return
        job.host.drop(job)
        self.usage.calls["sqs.ChangeMessageVisibilityBatch"].add(self.simulation.now)
        if job.receives >= self.deployment.queue.max_attempts:
            self._dead_letter(job)
        else:
            backoff = self.deployment.queue.backoff
            self._hide(job, ceil(backoff.delay(job.receives, self._random)))
        self._deliver()

    def _dead_letter(self, job: Job) -> None:
        """Dead-letter the message. Its execution times out, and sends another one."""
        job.host, job.stopped_at = None, self.simulation.now
        self._in_flight -= 1
        self.dead_lettered += 1
        self._time_out(job, max(0.0, self._compute_timeout_at(job) - self.simulation.now))

    def _compute_timeout_at(self, job: Job) -> float:
        return job.heard_at + self.deployment.heartbeats.heartbeat_seconds

    def _time_out(self, job: Job, seconds: float) -> None:
        self.timeouts += 1
        job.restarts += 1
        if job.restarts > _MAX_RESTARTS:
            self.failed_executions += 1
            self._close(job)
            return
        self._hidden.add(job)
        self.simulation.after(seconds + _RESTART_SECONDS, self._restart, job)

    def _finish(self, job: Job, runs: int) -> None:
        host = job.host
        if host is None or job.runs != runs:
            return
        if self.health.dynamodb_errors >= 1 or self.health.states_errors >= 1:
            # The last results wait in memory, or the outcome in the job's row.
            self.simulation.after(5.0, self._finish, job, runs)
            return
        now = self.simulation.now
        self.usage.add_flow("job", now)
        self.usage.add_flow("job_file", now, FILES)
        self.index_writes.add(now, self._flows["job"]["dynamodb.index_write"])
        self.reads.add(now, FILES * self._flows["job_file"]["dynamodb.read"])
        self.usage.units["s3.put"] += FILES
        self.usage.calls["sqs.DeleteMessageBatch"].add(now)
        self.counted_twice += job.counted
        self.counted += not job.counted
        job.counted = True
        if job.sampled is not None and not job.is_waited_for:
            # The outcome meets a closed token, so the job fails until another one comes.
            failed = give_up_job(job.sampled, now, _TOKEN_ERROR)
            settled = settle_job(failed, now, JobStatus.FAILED, _TOKEN_ERROR, None)
            assert isinstance(settled, ExportJob)
            job.sampled = settled
        host.drop(job)
        job.host = None
        self._in_flight -= 1
        self._close(job)
        self._deliver()

    def _close(self, job: Job) -> None:
        self.active -= 1
        self._hidden.discard(job)
        if job.sampled is not None:
            self._sampled.pop(job.sampled.job_id, None)

    def _interrupt(self, job: Job) -> None:
        """Take a job from its host. What is counted stays; about half a file is done again."""
        done = self.simulation.now - job.began_at
        file_seconds = self._mean_seconds / FILES
        job.left_seconds = max(1.0, job.left_seconds - done + file_seconds / 2)
        self.repeated_seconds += min(done, file_seconds / 2)
        self._hide(job, self.deployment.queue.lease_seconds * self._random.uniform(2 / 3, 1))

    def lose_leases(self) -> None:
        """Let every lease run out, because SQS did not respond for as long as a lease."""
        for host in self.hosts:
            for job in list(host.jobs):
                self.lost_leases += 1
                host.drop(job)
                self._interrupt(job)

    def revive(self) -> None:
        """Let the tasks poll again after an outage."""
        self._deliver()

    # -- the service

    def _add_host(self) -> None:
        self.hosts.append(Host(self))
        self._deliver()

    def count_listing(self) -> None:
        """Count the calls that list all active jobs."""
        now, hundreds = self.simulation.now, self.active / 100
        flow = self._flows["list_100_jobs"]
        rows = flow["dynamodb.read"] - 1.5  # the index takes the rest
        self.usage.calls["dynamodb.BatchGetItem"].add(now, ceil(hundreds))
        self.usage.calls["dynamodb.Query"].add(now, flow["dynamodb.Query"])
        self.usage.calls["dynamodb.read"].add(now, hundreds * flow["dynamodb.read"])
        self.reads.add(now, hundreds * rows)
        self.index_reads.add(now, hundreds * 1.5)

    def kill(self, share: float) -> None:
        """Kill this share of the tasks."""
        for host in self.hosts[: ceil(share * len(self.hosts))]:
            host.alive = False
            for job in host.jobs:
                self._interrupt(job)
        self.hosts = [host for host in self.hosts if host.alive]

    def _check(self) -> None:
        now, running = self.simulation.now, len(self.hosts)
        if self.health.tasks_start:
            for _ in range(self._scaler.desired - running - self._starting):
                self._starting += 1
                self.simulation.after(self._start_seconds, self._finish_start)
        idle = [host for host in self.hosts if not host.jobs]
        for host in idle[: max(0, running - self._scaler.desired)]:
            host.alive = False
            self.hosts.remove(host)
        renewals = sum(self._compute_keeper_calls(len(host.jobs)) for host in self.hosts)
        polls = sum(len(host.jobs) < self.deployment.exports.concurrency for host in self.hosts)
        self.usage.calls["sqs.ChangeMessageVisibilityBatch"].add(now, renewals * _CHECK_SECONDS)
        progress = (
            sum(len(host.jobs) for host in self.hosts) * _CHECK_SECONDS / PROGRESS_SECONDS
        )
        self.usage.calls["dynamodb.UpdateItem"].add(now, progress)
        self.usage.calls["dynamodb.write"].add(now, progress)
        empty = polls * _CHECK_SECONDS / self.deployment.poll_seconds
        self.usage.calls["sqs.ReceiveMessage"].add(now, empty)
        self.usage.units["fargate.task_seconds.export"] += _CHECK_SECONDS * running
        self.usage.note_level("export.tasks", running)
        self._check_tokens(now)
        if self._is_producing or self.active:
            self.simulation.after(_CHECK_SECONDS, self._check)

    def _finish_start(self) -> None:
        self._starting -= 1
        self._add_host()

    def _scale(self) -> None:
        self._scaler.note(len(self._visible), len(self.hosts), self.simulation.now)
        if self._is_producing or self.active:
            self.simulation.after(60.0, self._scale)

    def _compute_keeper_calls(self, leases: int) -> float:
        """Return the renewal calls per second of a keeper with so many leases."""
        if not leases:
            return 0.0
        number = bisect_left(self._keeper, (leases, 0.0))
        high = self._keeper[min(number, len(self._keeper) - 1)]
        low = self._keeper[max(0, number - 1)]
        if high[0] == low[0]:
            return high[1]
        return low[1] + (high[1] - low[1]) * (leases - low[0]) / (high[0] - low[0])

    # -- heartbeats

    def list_unmoved(self, since: float) -> list[ExportJob]:
        """Return the stored jobs that made no progress since then."""
        return [
            job.sampled
            for job in self._sampled.values()
            if job.host is None and job.stored and job.stopped_at <= since and job.sampled
        ]

    def find_closed(self, heartbeat: Heartbeat) -> bool:
        """Return whether Step Functions does not wait for the token of this heartbeat."""
        job = self._sampled.get(heartbeat.key)
        if job is None or job.sampled is None:
            return False
        is_current = job.sampled.task_token == heartbeat.job.task_token
        is_closed = not (is_current and job.is_waited_for)
        if is_current and is_closed and heartbeat.refused_token is None:
            self.found_closed += self.sample
        return is_closed

    def note_closed(self, heartbeat: Heartbeat) -> None:
        """Note in the job's row that two heartbeats found its token closed."""
        job, token = self._sampled.get(heartbeat.key), heartbeat.job.task_token
        if job is not None and job.sampled is not None and token is not None:
            now = self.simulation.now
            job.sampled = note_token_closed(job.sampled, now, token, _TOKEN_ERROR)

    def _close_token(self, job: Job, token: TaskToken) -> None:
        """Let the execution time out. Its Retry sends another token."""
        if job.counted or job.sampled is None or job.sampled.task_token != token:
            return
        self.timeouts += self.sample
        self.retried += self.sample
        job.is_waited_for = False
        self.simulation.after(_RESTART_SECONDS, self._take_over, job)

    def _take_over(self, job: Job) -> None:
        """Receive the message of the retried execution when a task has a free slot."""
        if self.health.sqs_errors >= 1 or self._find_host() is None:
            self.simulation.after(1.0, self._take_over, job)
            return
        assert job.sampled is not None
        name = f"{job.sampled.job_id} {job.sampled.token_generation + 1}"
        taken = attach_token(job.sampled, self.simulation.now, TaskToken(name))
        if not isinstance(taken, ExportJob):
            self.failed_for_token += self.sample
            return
        job.sampled, job.is_waited_for = taken, True
        job.heard_at = self.simulation.now
        if job.host is not None:
            job.host.sender.receive(taken)

    def accept_heartbeat(self, name: str) -> bool:
        """Return whether Step Functions accepts a heartbeat."""
        now, health = self.simulation.now, self.health
        self.heartbeats.add(now, self.sample)
        accepted = self._bucket.take(now, health.states_capacity)
        if accepted and health.states_errors:
            accepted = self._random.random() >= health.states_errors
        if not accepted:
            self.heartbeats_refused.add(now, self.sample)
        elif (job := self._sampled.get(name)) is not None:
            job.heard_at = now
        return accepted

    def _check_tokens(self, now: float) -> None:
        """Time out the executions that Step Functions has not heard of for too long.

        The execution is then retried with a new token, which the stored job takes over. If
        that comes too late, the job fails. A job that no task has received yet is in no
        listing, so no heartbeat is sent for it. Its second message is not simulated, only
        how often its execution may be retried.
        """
        for job in self._sampled.values():
            if not job.stored or job.sampled is None or job.sampled.task_token is None:
                continue
            if job.is_waited_for and now > self._compute_timeout_at(job):
                self._close_token(job, job.sampled.task_token)
            before = job.sampled
            job.sampled = give_up_closed(before, now, RETRY_GRACE_SECONDS)
            if job.sampled is not before:
                self.failed_for_token += self.sample
        late = [
            job
            for job in self._visible
            if not job.stored and now > self._compute_timeout_at(job)
        ]
        for job in late:
            self.timeouts += 1
            job.restarts += 1
            job.heard_at = now + _RESTART_SECONDS
            if job.restarts > _MAX_RESTARTS:
                self.failed_executions += 1
                self._visible.remove(job)
                self._close(job)

    # -- for the report

    def iter_waiting(self) -> Iterator[float]:
        """Yield when each job was sent that waits."""
        return (job.sent_at for job in chain(self._visible, self._hidden))
