"""Run a part of the deployment with failures, or for a while at a multiple of the load."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from bench.scale.chats import TURN_SECONDS, ChatModel
from bench.scale.deployment import Deployment, read_templates, size_for
from bench.scale.engine import Histogram, Simulation, Usage
from bench.scale.exports import SAMPLE, TRANSITIONS, ExportModel
from bench.scale.faults import DAY, HOUR, MODEL_OUTAGE, Fault, Health, list_faults
from bench.scale.measuring import read_measurements
from bench.scale.prices import PRICES, compute_costs
from bench.scale.quotas import QUOTAS
from bench.scale.service import MESSAGE_SECONDS, Part, ServiceModel, WorkModel, World

SEED = 17
PARTS = ("work", "export", "chat")
MESSAGES_PER_DAY = 1_000_000
ACTIVE_JOBS = 10_000
TURNS_PER_MINUTE = 1_000
MULTIPLES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
_PEAK = 1.6
_CHECK_SECONDS = 10.0
_REDRIVE_SECONDS = 600.0  # between two looks of an operator at the dead letters
_STAGING_SECONDS = 0.06  # of an invocation: three calls of DynamoDB and one of SQS


def size_deployment(load: float = 1.0) -> Deployment:
    """Return the deployment for a multiple of the study's load."""
    return size_for(
        read_templates(),
        active_jobs=load * ACTIVE_JOBS,
        invocations=load * TURNS_PER_MINUTE / 60 * _PEAK * TURN_SECONDS,
        slots=load * MESSAGES_PER_DAY / DAY * _PEAK * MESSAGE_SECONDS,
    )


@dataclass(slots=True)
class FaultRecord:
    """What one failure did to the part."""

    fault: Fault
    before: Counter[str]
    recovered: float | None = None  # seconds after its end
    peak_waiting: int = 0
    marks: dict[str, int] = field(default_factory=dict)


class Study:
    """One run of one part of the deployment. The parts do not share anything."""

    def __init__(
        self,
        name: str,
        *,
        load: float = 1.0,
        seed: int = SEED,
        begins_at: float = 0.0,
        deployment: Deployment | None = None,
        sample: int = SAMPLE,
    ) -> None:
        self.name, self.health = name, Health()
        self.deployment = deployment or size_deployment(load)
        self.simulation = Simulation(seed, begins_at)
        self.usage = Usage(read_measurements()["flows"])
        self.records: list[FaultRecord] = []
        world = World(self.simulation, self.deployment, self.health, self.usage)
        makers: Mapping[str, Callable[[], Part]] = {
            "work": lambda: WorkModel(world, load * MESSAGES_PER_DAY / DAY),
            "export": lambda: ExportModel(world, load * ACTIVE_JOBS, sample=sample),
            "chat": lambda: ChatModel(world, load * TURNS_PER_MINUTE / 60),
        }
        self.part = makers[name]()
        self._watched = 0  # failures that are not over and recovered from
        self._waits = (self.part.waits, Histogram())  # without and with failures

    def run(self, until: float, faults: Sequence[Fault] = ()) -> dict[str, Any]:
        """Run until that time with these failures, and return the figures.

        Then all work ends, without new work. Only what was counted is added to the figures.
        """
        self.part.start()
        for fault in faults:
            self.simulation.at(fault.begins_at, self.begin_fault, fault)
        self.simulation.run(until)
        figures = self.summarize()
        self.part.is_producing = False
        self.simulation.run(until + 12 * HOUR)
        return figures | self.count_units()

    # -- failures

    def begin_fault(self, fault: Fault) -> None:
        """Let a component fail, and watch until the part has recovered."""
        record = FaultRecord(fault, Counter(self.usage.marks))
        self.records.append(record)
        self._watch_more(1)
        normal = {name: getattr(self.health, name) for name in fault.changes}
        self._set_health(fault.changes)
        if isinstance(self.part, ServiceModel):
            self.part.kill(fault.kills.get(self.name, 0.0))
        if self.health.sqs_errors >= 1:
            self.part.begin_outage()
        self.simulation.at(fault.ends_at, self._end_fault, normal)
        self.simulation.after(_CHECK_SECONDS, self._watch, record)

    def _set_health(self, changes: Mapping[str, Any]) -> None:
        for name, value in changes.items():
            setattr(self.health, name, value)

    def _end_fault(self, normal: Mapping[str, Any]) -> None:
        self._set_health(normal)
        self._redrive()
        self.part.recover()

    def _redrive(self) -> None:
        """Let an operator redrive dead letters, and look again until there are none.

        A message that has used up its attempts meanwhile may become a dead letter later.
        """
        if isinstance(self.part, WorkModel) and self._watched:
            self.part.redrive()
            self.simulation.after(_REDRIVE_SECONDS, self._redrive)

    def _watch(self, record: FaultRecord) -> None:
        """Watch the backlog until nothing that began before the end of the failure waits."""
        now, ends_at = self.simulation.now, record.fault.ends_at
        waiting = list(self.part.iter_waiting())
        oldest = min(waiting, default=now)
        record.peak_waiting = max(record.peak_waiting, len(waiting))
        if now >= ends_at and oldest > ends_at:
            record.recovered = now - ends_at
            record.marks = dict(self.usage.marks - record.before)
            self._watch_more(-1)
        else:
            self.simulation.after(_CHECK_SECONDS, self._watch, record)

    def _watch_more(self, number: int) -> None:
        """Count waits during a failure and the recovery from it by themselves."""
        self._watched += number
        self.part.waits = self._waits[self._watched > 0]

    # -- the sums

    def count_units(self) -> dict[str, Any]:
        """Return what became of all messages, jobs or turns."""
        part, failed = self.part, getattr(self.part, "failed", 0)
        return {
            "sent": part.sent,
            "counted": part.counted,
            "counted_twice": part.counted_twice,
            "failed": failed,
            "open": part.count_open(),
            "lost": part.sent - part.counted - failed - part.count_open(),
        }

    def measure_quotas(self) -> dict[str, float]:
        """Return the highest use of each quota."""
        use = {name: self.usage.read_peak(name) for name in QUOTAS}
        use["states.transition"] = use["states.start"] * TRANSITIONS
        # Tasks that start together are in phase. Each beats for its jobs in the first half of
        # the interval, and the bucket holds only a few seconds of that.
        use["states.heartbeat"] = use["states.open"] / (self.deployment.interval_seconds / 2)
        if self.name == "chat":
            use["lambda.concurrency"] += self.usage.read_peak("staging") * _STAGING_SECONDS
        return use

    def summarize(self) -> dict[str, Any]:
        """Return everything that the page shows, as plain values."""
        totals, (normal, failing) = self.usage.total(), self._waits
        totals["sqs.request"] = sum(n for call, n in totals.items() if call.startswith("sqs."))
        totals["dynamodb.write"] += totals["dynamodb.index_write"]
        units = {name: totals[name] for name in PRICES if totals[name]}
        calls = sum(n for name, n in totals.items() if name.partition(".")[2][:1].isupper())
        return {
            **self.count_units(),
            "wait_p50": normal.read(0.5),
            "wait_p99": normal.read(0.99),
            "wait_p99_failing": failing.read(0.99),
            "calls": calls,
            "units": units,
            "costs": compute_costs(units),
            "marks": dict(self.usage.marks),
            "quotas": self.measure_quotas(),
            "faults": [
                {
                    "name": record.fault.name,
                    "recovered": record.recovered,
                    "peak_waiting": record.peak_waiting,
                    "marks": record.marks,
                }
                for record in self.records
            ],
            "events": self.simulation.events,
        }


# -- the runs of the study


def run_part(
    name: str, *, load: float = 1.0, days: float = 7.0, seed: int = SEED, sample: int = SAMPLE
) -> dict[str, Any]:
    """Run one part for the week with all failures."""
    study = Study(name, load=load, seed=seed, sample=sample)
    return study.run(days * DAY, list_faults(days * DAY))


def run_week() -> dict[str, Any]:
    """Run the week with all failures, and return the figures of each part."""
    with ProcessPoolExecutor(len(PARTS)) as pool:
        return dict(zip(PARTS, pool.map(run_part, PARTS), strict=True))


def merge_quotas(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the use of each quota by the whole deployment."""
    return {
        name: (sum if name == "fargate.vcpu" else max)(
            p["quotas"][name] for p in parts.values()
        )
        for name in QUOTAS
    }


def run_quiet(load: float, hours: float = 0.25) -> dict[str, float]:
    """Run at the busiest time without failures, and return the use of each quota."""
    parts = {}
    for name in PARTS:
        sample = max(1, int(SAMPLE * load))
        begins_at = (12 - hours / 2) * HOUR
        study = Study(name, load=load, begins_at=begins_at, sample=sample)
        study.part.start()
        study.simulation.run((12 + hours / 2) * HOUR)
        parts[name] = study.summarize()
    return merge_quotas(parts)


def find_multiples() -> dict[str, Any]:
    """Return for each quota its use at the load, and the first multiple above it."""
    with ProcessPoolExecutor(2) as pool:
        use = dict(zip(MULTIPLES, pool.map(run_quiet, MULTIPLES), strict=True))
    return {
        "use": use[1.0],
        "reached": {
            name: next((m for m in MULTIPLES if use[m][name] >= QUOTAS[name].limit), None)
            for name in QUOTAS
        },
    }


def run_sweeper_variant(timeout_seconds: float) -> float:
    """Return the recovery from the model's outage with a timeout of the sweeping function."""
    [outage] = [fault for fault in list_faults() if fault.name == MODEL_OUTAGE]
    deployment = replace(size_deployment(), sweeping_timeout_seconds=timeout_seconds)
    study = Study("chat", deployment=deployment, begins_at=8.75 * HOUR)
    study.part.start()
    study.simulation.at(9 * HOUR, study.begin_fault, replace(outage, begins_at=9 * HOUR))
    while not study.records or study.records[0].recovered is None:
        study.simulation.run(study.simulation.now + 60.0)
    return study.records[0].recovered


def run_short_interval(hours: float = 0.2) -> dict[str, float]:
    """Return what follows if heartbeats are sent at the templates' interval."""
    given = read_templates()
    heartbeats = {
        name: getattr(given, name) for name in ("interval_seconds", "heartbeat_seconds")
    }
    study = Study("export", deployment=replace(size_deployment(), **heartbeats))
    study.part.start()
    study.simulation.run(600.0)  # the first heartbeats come all at once
    before = Counter(study.usage.marks)
    study.simulation.run(600.0 + hours * HOUR)
    marks = study.usage.marks - before
    return {
        "interval_seconds": given.interval_seconds,
        "sent_per_second": marks["export.beats"] / hours / HOUR,
        "refused_share": marks["export.beats_refused"] / marks["export.beats"],
        "timeouts_per_hour": marks["export.timeouts"] / hours,
        "reads_per_second": study.usage.read_peak("dynamodb.read"),
    }


def run_all(tell: Callable[[str], object]) -> dict[str, Any]:
    """Run all parts of the study and return their results."""
    results: dict[str, Any] = {
        "sweeper": {seconds: run_sweeper_variant(seconds) for seconds in (60.0, 290.0)},
        "short_interval": run_short_interval(),
    }
    tell("ran the variants")
    results["multiples"] = find_multiples()
    tell("ran the multiples of the load")
    return results | {"week": run_week()}
