"""The scale study in small: a day with every failure, and the rules that its model keeps."""

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from bench.scale.deployment import list_changes, read_templates
from bench.scale.engine import Meter, Simulation, Usage
from bench.scale.exports import ExportModel
from bench.scale.faults import DAY, Fault, Health, list_faults
from bench.scale.heartbeats import TokenBucket
from bench.scale.measuring import read_measurements
from bench.scale.page import PAGE, render
from bench.scale.prices import PRICES, compute_costs
from bench.scale.quotas import QUOTAS
from bench.scale.service import Unit, WorkModel, World
from bench.scale.study import PARTS, Study, run_part, run_quiet, size_deployment

from holdfast.chat.lambdas import max_batch_seconds
from holdfast.doctor.checks import CheckLevel
from holdfast.exports.settings import check_interval


@cache
def run_quick(seed: int = 17) -> dict[str, dict[str, Any]]:
    """A day with all failures at a two-hundredth of the load."""
    return {part: run_part(part, load=0.005, days=1.0, seed=seed, sample=5) for part in PARTS}


# -- the whole deployment


@pytest.mark.parametrize("part", PARTS)
def test_every_unit_of_a_day_with_all_failures_is_counted_once(part: str) -> None:
    figures = run_quick()[part]
    assert figures["counted"] > 1000
    assert figures["counted"] + figures["failed"] == figures["sent"]
    assert (figures["open"], figures["lost"], figures["counted_twice"]) == (0, 0, 0)


@pytest.mark.parametrize("part", PARTS)
def test_the_deployment_recovers_from_every_failure(part: str) -> None:
    faults = run_quick()[part]["faults"]
    assert len(faults) == len(list_faults())
    for fault in faults:
        assert fault["recovered"] < 3600, fault["name"]


def test_every_component_fails_at_least_once() -> None:
    failing = {name for fault in list_faults() for name in fault.changes}
    assert failing == {field.name for field in fields(Health)}
    assert {name for fault in list_faults() for name in fault.kills} == {"work", "export"}


def test_the_same_seed_gives_the_same_figures() -> None:
    first, again = run_quick(), run_quick.__wrapped__()
    assert first == again
    assert run_quick(seed=18)["work"]["sent"] != first["work"]["sent"]


def test_failures_leave_their_marks() -> None:
    marks = {
        fault["name"]: fault["marks"]
        for figures in run_quick().values()
        for fault in figures["faults"]
        if fault["marks"]
    }
    assert marks["the model's API is down for 30 min"]["chat.dead"] > 0
    assert marks["DynamoDB does not respond for 5 min"]["chat.refused"] > 0
    assert run_quick()["export"]["marks"]["export.lost_leases"] > 0
    assert run_quick()["work"]["marks"]["work.dead"] > 100


def test_everything_that_is_charged_has_a_price_and_every_quota_a_use() -> None:
    for figures in run_quick().values():
        assert set(figures["units"]) <= set(PRICES)
        assert sum(figures["costs"].values()) > 0
        assert set(figures["quotas"]) == set(QUOTAS)
    with pytest.raises(KeyError):
        compute_costs({"sqs.requests": 1.0})


def test_more_load_reaches_the_quota_of_heartbeats() -> None:
    below, above = (run_quiet(load=load, hours=0.02) for load in (1.0, 5.0))
    limit = QUOTAS["states.heartbeat"].limit
    assert below["states.heartbeat"] < limit < above["states.heartbeat"]


def test_the_page_has_every_section_and_failure_that_the_writer_writes() -> None:
    """Run `make scale` after a change of the study."""
    use = dict.fromkeys(QUOTAS, 1.0)
    results = {
        "week": run_quick(),
        "multiples": {"use": use, "reached": use | {"sqs.in_flight": None}},
        "sweeper": {"60": 600.0},
        "short_interval": dict.fromkeys(
            ("interval_seconds", "sent_per_second", "refused_share", "timeouts_per_hour",
             "reads_per_second"), 1.0,
        ),
    }  # fmt: skip
    written, page = render(results), PAGE.read_text()
    headings = [line for line in written.splitlines() if line.startswith("#")]
    assert [line for line in page.splitlines() if line.startswith("#")] == headings
    for fault in list_faults():
        assert f"| {fault.name} |" in written
        assert f"| {fault.name} |" in page


# -- the settings


def test_the_settings_of_the_study_are_sound() -> None:
    for deployment in (read_templates(), size_deployment()):
        check = check_interval(deployment.interval_seconds, deployment.heartbeat_seconds)
        assert check.level is CheckLevel.OK
        assert max_batch_seconds(deployment.chat) < deployment.messaging_timeout_seconds


def test_the_study_names_every_setting_that_it_changes() -> None:
    given, sized = read_templates(), size_deployment()
    differing = [
        field.name
        for field in fields(given)
        if getattr(given, field.name) != getattr(sized, field.name)
    ]
    assert len(list_changes(given, sized)) == len(differing) == 5


# -- the work queue


def make_work(tasks: int = 2) -> WorkModel:
    given = read_templates()
    service = replace(given.workers, min_tasks=tasks, max_tasks=max(tasks, 10))
    deployment = replace(given, workers=service)
    model = WorkModel(
        World(Simulation(1), deployment, Health(handler_errors=0.0), Usage({})), 0.0
    )
    model.start_service()
    return model


def test_a_killed_workers_message_comes_back_after_one_lease() -> None:
    model = make_work()
    unit = Unit(0.0, 300.0)
    model.send(unit)
    model.simulation.run(100.0)
    model.kill(1.0)
    model.simulation.run(139.0)
    assert (list(model.hidden), unit.attempts) == ([unit], 1)
    model.simulation.run(200.0)
    assert unit.attempts == 2
    model.simulation.run(310.0)
    assert model.counted == 0  # when the killed worker would have ended
    model.simulation.run(600.0)
    assert (model.counted, model.counted_twice) == (1, 0)


def test_work_that_ends_while_sqs_is_down_is_not_counted_by_its_stale_worker() -> None:
    model = make_work()
    for seconds in (5.0, 50.0, 200.0):
        model.send(Unit(0.0, seconds))
    model.simulation.run(1.0)
    model.health.sqs_errors = 1.0
    model.begin_outage()
    model.simulation.run(301.0)
    assert (model.counted, model.usage.marks["work.lost_leases"]) == (0, 3)
    model.health.sqs_errors = 0.0
    model.recover()
    model.simulation.run(900.0)
    assert (model.counted, model.counted_twice) == (3, 0)


def test_a_message_that_always_fails_is_dead_lettered_and_redriven() -> None:
    model = make_work()
    model.health.handler_errors = 1.0
    model.send(Unit(0.0, 1.0))
    model.simulation.run(60.0)
    assert (model.usage.marks["work.dead"], len(model.dead)) == (1, 1)
    model.health.handler_errors = 0.0
    model.redrive()
    model.simulation.run(120.0)
    assert (model.counted, len(model.dead)) == (1, 0)


def test_a_long_handler_is_renewed_and_idle_workers_poll_every_twenty_seconds() -> None:
    model = make_work()
    model.send(Unit(0.0, 200.0))
    model.simulation.run(200.5)
    assert model.usage.counts["sqs.ChangeMessageVisibilityBatch"] == 200 / 20
    assert model.usage.counts["sqs.ReceiveMessage"] == pytest.approx(2 * 200 / 20, abs=2)
    assert model.counted == 1


def test_the_service_grows_by_the_backlog_and_shrinks_later() -> None:
    model = make_work(tasks=1)
    slots = model.service.concurrency
    for _ in range(800 + slots):
        model.send(Unit(0.0, 250.0))
    model.simulation.run(240.0)
    assert model.desired == 8
    for unit in model.visible:
        unit.seconds = 1.0
    model.simulation.run(240.0 + 10 * 60)
    assert model.desired == 8
    model.simulation.run(240.0 + 30 * 60)
    assert model.desired == 1


# -- exports


@pytest.mark.parametrize("kills_a_task", [False, True])
def test_a_burst_of_long_exports_gets_its_heartbeats_with_the_defaults(
    kills_a_task: bool,
) -> None:
    """A hundred executions start at once, and no task is added in time for them.

    No heartbeat is sent for a job that waits in the queue, so all of them need a slot within
    HeartbeatSeconds. Every job is beaten for here, not a sample (JB-19).
    """
    given = read_templates()
    usage = Usage(read_measurements()["flows"])
    world = World(Simulation(1), given, Health(tasks_start=False), usage)
    model = ExportModel(world, 100, mean_seconds=given.timeout_seconds / 2, sample=1)
    model.start()
    model.is_producing = False
    model.simulation.run(300.0)
    if kills_a_task:
        model.kill(1 / len(model.tasks))
    model.simulation.run(900.0)
    assert (model.sent, usage.marks["export.timeouts"], model.failed) == (100, 0, 0)
    assert model.active > 50
    assert usage.marks["export.beats"] > 50 * 900 / given.interval_seconds


def test_without_step_functions_executions_time_out_and_are_retried() -> None:
    study = Study("export", load=0.02, sample=2)
    study.run(DAY / 8, [Fault("down", 1800.0, 900.0, {"states_errors": 1.0})])
    assert study.records[0].marks["export.timeouts"] > 0
    assert study.part.counted == study.part.sent


# -- other rules


def test_a_token_bucket_accepts_its_size_and_then_its_refill() -> None:
    bucket = TokenBucket(30, 5)
    assert sum(bucket.take(0.0, 1.0) for _ in range(100)) == 30
    assert sum(bucket.take(2.0, 1.0) for _ in range(100)) == 10
    assert sum(bucket.take(4.0, 0.2) for _ in range(100)) == 2


def test_a_meter_finds_the_busiest_second() -> None:
    meter = Meter(1.0)
    for now in (0.1, 1.0, 1.5, 1.9, 2.0):
        meter.add(now, 1.0)
    assert meter.peak == 3
