"""Run the deployment for a week, or for a while at a multiple of the load, and sum it up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Protocol

from bench.scale.chats import ChatModel
from bench.scale.deployment import Deployment, read_templates, size_for
from bench.scale.engine import Histogram, Simulation, Usage
from bench.scale.exports import SAMPLE, TRANSITIONS, ExportModel
from bench.scale.faults import DAY, HOUR, Fault, Health
from bench.scale.latencies import LATENCIES, compute_call_seconds
from bench.scale.measuring import read_measurements
from bench.scale.prices import compute_costs
from bench.scale.work import WorkModel, swing

SEED = 17
PARTS = ("work", "export", "chat")
MESSAGES_PER_DAY = 1_000_000
ACTIVE_JOBS = 10_000
TURNS_PER_MINUTE = 1_000
LONG_SHARE = 0.01  # of the handlers, which take 30 to 300 s
JOB_SECONDS = 3_000.0
MESSAGE_SECONDS = 2.7  # mean, for the size of the service
TURN_SECONDS = 7.9
_PEAK = 1.6
_CHECK_SECONDS = 10.0
_REDRIVE_SECONDS = 600.0  # between two looks of an operator at the dead letters
_STAGING_SECONDS = 0.06  # of an invocation: three calls of DynamoDB and one of SQS


class Part(Protocol):
    """What the study asks of each model."""

    def stop_producing(self) -> None:
        """Let no new work begin."""

    def iter_waiting(self) -> Any:
        """Yield when each unit began that waits."""


@dataclass(slots=True)
class FaultRecord:
    """What one failure did, by the part of the deployment."""

    fault: Fault
    before: Mapping[str, float]
    recovered: dict[str, float] = field(default_factory=dict)  # seconds after the end
    peak_waiting: Counter[str] = field(default_factory=Counter)
    oldest_seconds: Counter[str] = field(default_factory=Counter)
    changes: dict[str, float] = field(default_factory=dict)


class Study:
    """One run of the whole deployment."""

    def __init__(
        self,
        *,
        load: float = 1.0,
        seed: int = SEED,
        begins_at: float = 0.0,
        deployment: Deployment | None = None,
        sample: int = SAMPLE,
        times_out_after: float | None = None,
        parts: Sequence[str] = PARTS,
        measured: Mapping[str, Any] | None = None,
    ) -> None:
        measured = measured or read_measurements()
        self.flows: dict[str, dict[str, float]] = measured["flows"]
        self.deployment = deployment or size_deployment(load)[0]
        self.simulation = Simulation(seed)
        self.simulation.now = begins_at
        self.health, self.load = Health(), load
        self.records: list[FaultRecord] = []
        calls = {name: compute_call_seconds(name, measured) for name in _SERVICES}
        start_seconds = LATENCIES["fargate.start"].seconds
        wired = (self.simulation, self.deployment, self.health)
        self.usages = {name: Usage(self.flows) for name in ("work", "export", "chat")}
        self.work = WorkModel(
            *wired,
            self.usages["work"],
            call_seconds=calls["sqs"],
            start_seconds=start_seconds,
            per_second=load * MESSAGES_PER_DAY / DAY,
            draw_seconds=self._draw_handler_seconds,
        )
        self.export = ExportModel(
            *wired,
            self.usages["export"],
            flows=self.flows,
            keeper_calls=measured["keeper_calls_per_second"],
            start_seconds=start_seconds,
            active_jobs=load * ACTIVE_JOBS,
            mean_seconds=JOB_SECONDS,
            sample=sample,
            times_out_after=times_out_after,
        )
        self.chat = ChatModel(
            *wired,
            self.usages["chat"],
            flows=self.flows,
            call_seconds=calls,
            per_second=load * TURNS_PER_MINUTE / 60,
        )
        self._parts: dict[str, Part] = {part: getattr(self, part) for part in parts}
        self._watched = 0  # failures that are not over and recovered from
        self._histograms = {part: (Histogram(), Histogram()) for part in PARTS}
        self._choose_histograms()

    def _draw_handler_seconds(self) -> float:
        random = self.simulation.random
        if random.random() < LONG_SHARE:
            return random.uniform(30.0, 300.0)
        return random.lognormvariate(-0.223, 0.7)  # a median of 0.8 s, a mean of 1.0 s

    # -- running

    def run(self, until: float, faults: Sequence[Fault] = ()) -> dict[str, Any]:
        """Run until that time with these failures, and return the figures.

        Then all work ends, without new work. Only what was counted is added to the figures.
        """
        self.start()
        for fault in faults:
            self.simulation.at(fault.begins_at, self.begin_fault, fault)
        self.simulation.run(until)
        figures = self.summarize()
        self.stop()
        final = self.summarize()
        return figures | {"final": {part: final[part] for part in self._parts}}

    def start(self) -> None:
        """Start the parts of this run."""
        if "work" in self._parts:
            self.work.start(self._compute_first_tasks())
        if "export" in self._parts:
            self.export.start()
        if "chat" in self._parts:
            self.chat.start()

    def _compute_first_tasks(self) -> int:
        rate = self.load * MESSAGES_PER_DAY / DAY * swing(self.simulation.now)
        slots = rate * MESSAGE_SECONDS * 1.3
        return max(2, ceil(slots / self.deployment.workers.concurrency))

    def stop(self) -> None:
        """Produce nothing any more, and run until all work has ended."""
        for part in self._parts.values():
            part.stop_producing()
        self.simulation.run(self.simulation.now + 12 * HOUR)

    # -- failures

    def begin_fault(self, fault: Fault) -> None:
        """Let a component fail, and watch until all parts have recovered."""
        simulation, health = self.simulation, self.health
        record = FaultRecord(fault, self.count())
        self.records.append(record)
        self._watched += 1
        self._choose_histograms()
        normal = {name: getattr(health, name) for name in fault.changes}
        for name, value in fault.changes.items():
            setattr(health, name, value)
        self.work.queue.is_down = health.sqs_errors >= 1
        if "work" in fault.kills:
            self.work.kill(fault.kills["work"])
        if "export" in fault.kills:
            self.export.kill(fault.kills["export"])
        if health.sqs_errors >= 1:
            lease = self.deployment.queue.lease_seconds
            simulation.after(lease * 5 / 6, self._lose_leases)
        simulation.at(fault.ends_at, self._end_fault, fault, normal)
        simulation.after(_CHECK_SECONDS, self._watch, record)

    def _lose_leases(self) -> None:
        if self.health.sqs_errors >= 1:
            self.export.lose_leases()

    def _end_fault(self, fault: Fault, normal: Mapping[str, Any]) -> None:
        for name, value in normal.items():
            setattr(self.health, name, value)
        self.work.queue.is_down = False
        self._redrive()
        self.chat.revive()
        self.export.revive()

    def _redrive(self) -> None:
        """Let an operator redrive dead letters, and look again until there are none.

        A message that has used up its attempts meanwhile may become a dead letter later.
        """
        if self.work.dead:
            self.work.redrive()
        if self._watched:
            self.simulation.after(_REDRIVE_SECONDS, self._redrive)

    def _watch(self, record: FaultRecord) -> None:
        """Watch the backlog until nothing that began before the end of the failure waits."""
        now, ends_at = self.simulation.now, record.fault.ends_at
        for name, part in self._parts.items():
            if name in record.recovered:
                continue
            waiting, oldest = 0, now
            for began_at in part.iter_waiting():
                waiting += 1
                oldest = min(oldest, began_at)
            record.peak_waiting[name] = max(record.peak_waiting[name], waiting)
            age = now - oldest
            record.oldest_seconds[name] = max(record.oldest_seconds[name], int(age))
            if now >= ends_at and oldest > ends_at:
                record.recovered[name] = now - ends_at
        if len(record.recovered) < len(self._parts):
            self.simulation.after(_CHECK_SECONDS, self._watch, record)
        else:
            after = self.count()
            record.changes = {name: after[name] - record.before[name] for name in after}
            self._watched -= 1
            self._choose_histograms()

    def _choose_histograms(self) -> None:
        """Count waits during a failure and the recovery from it by themselves."""
        for part, (normal, failing) in self._histograms.items():
            histogram = failing if self._watched else normal
            if part == "chat":
                self.chat.replies = histogram
            else:
                getattr(self, part).waits = histogram

    def _read_waits(self, part: str) -> dict[str, float]:
        normal, failing = self._histograms[part]
        return {
            "wait_p50": normal.read(0.5),
            "wait_p99": normal.read(0.99),
            "wait_p99_failing": failing.read(0.99),
        }

    def count(self) -> dict[str, float]:
        """Return the counts that a failure may change."""
        work, export, chat = self.work, self.export, self.chat
        return {
            "work.lost_leases": work.lost_leases,
            "work.dead": work.dead_lettered,
            "export.lost_leases": export.lost_leases,
            "export.failed_starts": export.failed_starts,
            "export.timeouts": export.timeouts,
            "export.dead": export.dead_lettered,
            "export.beats": export.heartbeats.total,
            "export.beats_refused": export.heartbeats_refused.total,
            "chat.dead": chat.dead_lettered,
            "chat.refused": chat.refused,
            "chat.sweeps_cut": chat.sweeps_cut,
            "chat.second_triggers": chat.second_triggers,
        }

    # -- the sums

    def measure_quotas(self) -> dict[str, float]:
        """Return the highest use of each quota."""
        work, export, chat = (self.usages[name] for name in ("work", "export", "chat"))
        deployment = self.deployment
        staging = self.chat.staging.peak * _STAGING_SECONDS
        channels = self.chat.channels
        return {
            "fargate.vcpu": work.peaks.get("work.tasks", 0) * deployment.workers.vcpu
            + export.peaks.get("export.tasks", 0) * deployment.exports.vcpu,
            "states.heartbeat": self._compute_heartbeat_rate(),
            "states.start": self.export.starts.peak,
            "states.transition": self.export.starts.peak * TRANSITIONS,
            "states.open": export.peaks.get("states.open", 0),
            "lambda.concurrency": self.chat.max_running + staging,
            "lambda.mapping": max(channel.max_running for channel in channels),
            "sqs.in_flight": max(
                self.work.max_in_flight,
                export.peaks.get("export.in_flight", 0),
                *(channel.max_in_flight for channel in channels),
            ),
            "dynamodb.read": self.export.reads.peak,
            "dynamodb.write": chat.writes.peak,
            "dynamodb.index_read": self.export.index_reads.peak,
            "dynamodb.index_write": self.export.index_writes.peak,
        }

    def _compute_heartbeat_rate(self) -> float:
        """Return the heartbeats per second while all tasks are in phase.

        Tasks that start together are in phase. Each beats for its jobs within half an
        interval, and the bucket holds only a few seconds of that.
        """
        active = self.usages["export"].peaks.get("states.open", 0)
        return active / (self.deployment.heartbeats.interval_seconds / 2)

    def sum_units(self, part: str) -> dict[str, float]:
        """Return what a part is charged for."""
        usage, deployment = self.usages[part], self.deployment
        totals = usage.total_calls()
        units: Counter[str] = Counter()
        units["sqs.request"] = sum(n for name, n in totals.items() if name.startswith("sqs."))
        units["dynamodb.write"] = totals["dynamodb.write"] + totals["dynamodb.index_write"]
        units["dynamodb.read"] = totals["dynamodb.read"]
        units["states.transition"] = totals["states.transition"]
        units["s3.put"] = usage.units["s3.put"]
        if part == "chat":
            seconds = sum(self.chat.billed_seconds.values())
            units["lambda.request"] = sum(self.chat.invocations.values())
            units["lambda.gb_second"] = seconds * deployment.functions.memory_gb
        service = deployment.exports if part == "export" else deployment.workers
        hours = usage.units[f"fargate.task_seconds.{part}"] / 3600
        units["fargate.vcpu_hour"] = hours * service.vcpu
        units["fargate.gb_hour"] = hours * service.memory_gb
        units["fargate.storage_gb_hour"] = hours * max(0.0, service.storage_gb - 20)
        return {name: value for name, value in units.items() if value}

    def summarize(self) -> dict[str, Any]:
        """Return everything that the page shows, as plain values."""
        work, export, chat = self.work, self.export, self.chat
        return {
            "work": {
                "sent": work.sent,
                "counted": work.counted,
                "counted_twice": work.counted_twice,
                "dead": len(work.dead),
                "lost": work.sent - work.counted - len(work.dead) - work.count_open(),
                "open": work.count_open(),
                **self._read_waits("work"),
                "repeated_seconds": work.repeated_seconds,
            },
            "export": {
                "sent": export.sent,
                "counted": export.counted,
                "counted_twice": export.counted_twice,
                "failed": export.failed_executions,
                "refused": export.failed_starts,
                "lost": export.sent - export.counted - export.failed_executions - export.active,
                "open": export.active,
                **self._read_waits("export"),
                "heartbeats": export.heartbeats.total,
                "heartbeats_refused": export.heartbeats_refused.total,
                "timeouts": export.timeouts,
                "repeated_seconds": export.repeated_seconds,
            },
            "chat": {
                "sent": chat.accepted,
                "counted": chat.answered,
                "counted_twice": chat.answered_twice,
                "refused": chat.refused,
                "lost": chat.accepted - chat.answered - len(chat.open),
                "open": len(chat.open),
                **self._read_waits("chat"),
            },
            "calls": {
                part: {
                    name: total
                    for name, total in sorted(usage.total_calls().items())
                    if name.partition(".")[2][:1].isupper() and total
                }
                for part, usage in self.usages.items()
            },
            "units": {part: self.sum_units(part) for part in self.usages},
            "costs": {part: compute_costs(self.sum_units(part)) for part in self.usages},
            "peaks": {
                name: level
                for usage in self.usages.values()
                for name, level in sorted(usage.peaks.items())
            },
            "quotas": self.measure_quotas(),
            "faults": [_summarize_record(record) for record in self.records],
            "events": self.simulation.events,
        }


_SERVICES = ("sqs", "dynamodb", "states")


def _summarize_record(record: FaultRecord) -> dict[str, Any]:
    fault = record.fault
    return {
        "name": fault.name,
        "component": fault.component,
        "at_hours": fault.begins_at / HOUR,
        "recovered": dict(record.recovered),
        "peak_waiting": dict(record.peak_waiting),
        "oldest_seconds": dict(record.oldest_seconds),
        "changes": {name: value for name, value in record.changes.items() if value},
    }


def size_deployment(load: float = 1.0) -> tuple[Deployment, list[Any]]:
    """Return the deployment for a multiple of the study's load, and what it changes."""
    needs = {
        "active_jobs": load * ACTIVE_JOBS,
        "turns_per_second": load * TURNS_PER_MINUTE / 60 * _PEAK,
        "messages_per_second": load * MESSAGES_PER_DAY / DAY * _PEAK,
        "turn_seconds": TURN_SECONDS,
        "message_seconds": MESSAGE_SECONDS,
    }
    return size_for(needs, read_templates())
