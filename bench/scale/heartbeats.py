"""Heartbeats of the exports: the package's own schedule, and the quota of Step Functions."""

from math import inf
from random import Random
from typing import TYPE_CHECKING

from holdfast.exports.heartbeat_schedule import Heartbeat, HeartbeatSchedule
from holdfast.exports.model import ExportJob

if TYPE_CHECKING:
    from bench.scale.exports import ExportModel


class TokenBucket:
    """The quota of an API: a bucket that is refilled every second."""

    def __init__(self, capacity: float, refill: float) -> None:
        self._capacity, self._refill = capacity, refill
        self._tokens, self._at = capacity, 0.0

    def take(self, now: float, share: float) -> bool:
        """Take a token if there is one. `share` is how much of the refill comes now."""
        refilled = self._tokens + (now - self._at) * self._refill * share
        self._tokens, self._at = min(self._capacity, refilled), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class SampledSchedule(HeartbeatSchedule):
    """The package's schedule, for one job in `sample`."""

    def __init__(self, interval_seconds: float, sample: int, random: Random) -> None:
        super().__init__(interval_seconds, lambda: None, random)
        self._sample = sample

    def _compute_spread(self, new_jobs: int) -> float:
        return super()._compute_spread(new_jobs * self._sample)


class Sender:
    """The heartbeats of one task, with the package's own schedule.

    It beats for the jobs of its task, and for those that no task works on. A job that runs
    makes progress between any two listings, so the others are those that stopped before the
    last one.
    """

    def __init__(self, model: "ExportModel") -> None:
        self._model, self._simulation = model, model.simulation
        self._interval = model.deployment.interval_seconds
        self._schedule = SampledSchedule(self._interval, model.sample, model.random)
        self._due_at = inf
        self._listed_at = model.simulation.now - self._interval / 2
        self.is_alive = True
        self._list()

    def receive(self, job: ExportJob) -> None:
        """Beat for a job of this task, at once and until it is forgotten."""
        self._schedule.receive(job, self._simulation.now)
        self._wake()

    def forget(self, job_id: str) -> None:
        """Beat no more for a job that has left this task."""
        self._schedule.forget(job_id, self._simulation.now)

    def _list(self) -> None:
        """List the active jobs, as twice in each interval."""
        if not self.is_alive:
            return
        model, now = self._model, self._simulation.now
        self._simulation.after(self._interval / 2, self._list)
        model.count_listing()
        if model.health.dynamodb_errors < 1:
            jobs = model.list_unmoved(self._listed_at)
            self._schedule.apply_listing(jobs, (), asked_at=now, now=now)
            self._listed_at = now
        self._wake()

    def _wake(self) -> None:
        due_at = self._schedule.await_next()
        if due_at < self._due_at:
            self._due_at = due_at
            self._simulation.at(due_at, self._send_due, due_at)

    def _send_due(self, due_at: float) -> None:
        if due_at != self._due_at or not self.is_alive:
            return
        self._due_at = inf
        for heartbeat in self._schedule.take_due(self._simulation.now):
            self._send(heartbeat)
        self._wake()

    def _send(self, heartbeat: Heartbeat) -> None:
        now, is_wanted = self._simulation.now, heartbeat.wanted
        failed = is_wanted and not self._model.accept_heartbeat(heartbeat.key)
        self._schedule.reschedule(
            heartbeat,
            now,
            sent_at=now if is_wanted else None,
            failed=failed,
            refused=failed and not self._model.health.states_errors,
        )
