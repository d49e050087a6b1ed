"""Runs of the study: the week, the busiest time at multiples of the load, and variants."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from time import process_time
from typing import Any

from bench.scale.deployment import read_templates
from bench.scale.exports import SAMPLE
from bench.scale.faults import DAY, HOUR, list_faults
from bench.scale.quotas import QUOTAS
from bench.scale.study import JOB_SECONDS, PARTS, SEED, Study, size_deployment


def run_part(part: str, *, load: float, days: float, seed: int, sample: int) -> dict[str, Any]:
    """Run one part for the week with all failures. The parts do not share anything."""
    began = process_time()
    study = Study(load=load, seed=seed, sample=sample, parts=(part,))
    figures = study.run(days * DAY, list_faults(days * DAY))
    return figures | {"cpu_seconds": process_time() - began}


def run_week(
    *,
    load: float = 1.0,
    days: float = 7.0,
    seed: int = SEED,
    sample: int = SAMPLE,
    processes: int = 1,
) -> dict[str, Any]:
    """Run the week with all failures, and return its figures."""
    run = partial(run_part, load=load, days=days, seed=seed, sample=sample)
    if processes == 1:
        figures = [run(part) for part in PARTS]
    else:
        with ProcessPoolExecutor(processes) as pool:
            figures = list(pool.map(run, PARTS))
    return {"load": load, "days": days, "seed": seed, **merge_parts(figures)}


def run_quiet(*, load: float, hours: float = 1.0, seed: int = SEED) -> dict[str, Any]:
    """Run at the busiest time of the day without failures, and return the figures."""
    sample = max(1, int(SAMPLE * load))
    figures = []
    for part in PARTS:
        begins_at = 12 * HOUR - hours * HOUR / 2
        study = Study(load=load, seed=seed, begins_at=begins_at, sample=sample, parts=(part,))
        study.start()
        study.simulation.run(12 * HOUR + hours * HOUR / 2)
        final = {part: study.summarize()[part]}
        figures.append(study.summarize() | {"final": final, "cpu_seconds": 0.0})
    return merge_parts(figures)


def merge_parts(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of the whole deployment from those of its parts."""
    quotas = {
        name: (sum if name == "fargate.vcpu" else max)(item["quotas"][name] for item in figures)
        for name in QUOTAS
    }
    merged: dict[str, Any] = {
        part: item[part] for part, item in zip(PARTS, figures, strict=True)
    }
    for field_ in ("calls", "units", "costs", "final"):
        pairs = zip(PARTS, figures, strict=True)
        merged[field_] = {part: item[field_][part] for part, item in pairs}
    peaks = {name: level for item in figures for name, level in item["peaks"].items()}
    return merged | {
        "quotas": quotas,
        "peaks": peaks,
        "faults": [
            _merge_records(records) for records in zip(*_get_faults(figures), strict=True)
        ],
        "events": sum(item["events"] for item in figures),
        "cpu_seconds": round(sum(item["cpu_seconds"] for item in figures), 1),
    }


def _get_faults(figures: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    return [item["faults"] for item in figures]


def _merge_records(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged = dict(records[0])
    for field_ in ("recovered", "peak_waiting", "oldest_seconds", "changes"):
        merged[field_] = {name: n for record in records for name, n in record[field_].items()}
    return merged


MULTIPLES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)


def find_multiples(
    multiples: Sequence[float] = MULTIPLES,
    hours: float = 0.5,
    progress: Callable[[str], object] = lambda text: None,
) -> dict[str, Any]:
    """Return for each quota its use at each multiple, and the first multiple above it."""
    use: dict[str, dict[str, float]] = {name: {} for name in QUOTAS}
    for multiple in multiples:
        progress(f"load × {multiple:g}")
        for name, used in run_quiet(load=multiple, hours=hours)["quotas"].items():
            use[name][f"{multiple:g}"] = used
    reached = {
        name: next((m for m in multiples if use[name][f"{m:g}"] >= QUOTAS[name].limit), None)
        for name in QUOTAS
    }
    return {"use": use, "reached": reached}


# -- what other settings would do


def run_sweeper_variants(timeouts: Sequence[float]) -> dict[str, float]:
    """Return the recovery from the model's outage for timeouts of the sweeping function."""
    [outage] = [fault for fault in list_faults() if "is down for 30 min" in fault.name]
    begins_at = 9 * HOUR
    fault = replace(outage, begins_at=begins_at)
    recovered = {}
    for seconds in timeouts:
        sized = size_deployment()[0]
        functions = replace(sized.functions, sweeping_timeout_seconds=seconds)
        study = Study(
            deployment=replace(sized, functions=functions),
            begins_at=begins_at - HOUR / 4,
            parts=("chat",),
        )
        study.start()
        study.simulation.at(begins_at, study.begin_fault, fault)
        while not study.records or "chat" not in study.records[0].recovered:
            study.simulation.run(study.simulation.now + 60.0)
        recovered[f"{seconds:g}"] = study.records[0].recovered["chat"]
    return recovered


def run_short_interval(hours: float = 0.2) -> dict[str, float]:
    """Return what follows if heartbeats are sent at the templates' interval."""
    sized = size_deployment()[0]
    study = Study(
        deployment=replace(sized, heartbeats=read_templates().heartbeats), parts=("export",)
    )
    study.start()
    warm_up = 600.0  # the first heartbeats come all at once
    study.simulation.run(warm_up)
    before = study.count()
    study.simulation.run(warm_up + hours * HOUR)
    counts = {name: number - before[name] for name, number in study.count().items()}
    return {
        "interval_seconds": read_templates().heartbeats.interval_seconds,
        "sent_per_second": counts["export.beats"] / hours / HOUR,
        "refused_share": counts["export.beats_refused"] / counts["export.beats"],
        "timeouts_per_hour": counts["export.timeouts"] / hours,
        "reads_per_second": study.export.reads.peak,
    }


def run_retried_executions(hours: float = 2.0) -> dict[str, float]:
    """Return what becomes of jobs whose executions time out in the middle and are retried.

    Every job is simulated, with the heartbeats of the templates. A message with a new token
    comes as long after the timeout as their Retry says. A heartbeat in between finds the old
    token closed.
    """
    seconds = JOB_SECONDS / 2
    sized = size_deployment(0.05)[0]
    study = Study(
        load=0.05,
        deployment=replace(sized, heartbeats=read_templates().heartbeats),
        parts=("export",),
        sample=1,
        times_out_after=seconds,
    )
    study.start()
    study.simulation.run(hours * HOUR)
    study.stop()
    export = study.export
    return {
        "times_out_after": seconds,
        "jobs": export.sent,
        "completed": export.counted,
        "retried": export.retried,
        "found_closed": export.found_closed,
        "failed": export.failed_for_token + export.failed_executions,
    }
