"""The scale study in small: a day with every failure, and the rules that its model keeps."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from bench.scale.deployment import read_templates
from bench.scale.engine import Meter, Simulation, Usage
from bench.scale.exports import ExportModel
from bench.scale.faults import DAY, Fault, Health, list_faults
from bench.scale.heartbeats import TokenBucket
from bench.scale.measuring import read_measurements
from bench.scale.prices import PRICES, compute_costs
from bench.scale.quotas import QUOTAS
from bench.scale.runs import run_quiet, run_retried_executions, run_week
from bench.scale.scaling import Scaler
from bench.scale.study import Study, size_deployment
from bench.scale.work import Message, WorkModel

from holdfast.chat.lambdas import max_batch_seconds
from holdfast.doctor.checks import CheckLevel
from holdfast.exports.settings import check_interval

PARTS = ("work", "export", "chat")


@cache
def run_quick(seed: int = 17) -> dict[str, Any]:
    """A day with all failures at a two-hundredth of the load."""
    return run_week(load=0.005, days=1.0, seed=seed, sample=5)


# -- the whole deployment


def test_every_unit_of_a_day_with_all_failures_is_counted_once() -> None:
    for part in PARTS:
        final = run_quick()["final"][part]
        assert final["counted"] > 1000, part
        ended = final["counted"] + final.get("dead", 0) + final.get("failed", 0)
        assert (final["open"], final["lost"], ended) == (0, 0, final["sent"]), part
        assert final["counted_twice"] == 0, part


def test_the_deployment_recovers_from_every_failure() -> None:
    faults = run_quick()["faults"]
    assert len(faults) == len(list_faults())
    for fault in faults:
        assert set(fault["recovered"]) == set(PARTS), fault["name"]
        assert max(fault["recovered"].values()) < 3600, fault["name"]


def test_every_component_fails_at_least_once() -> None:
    failing = {name for fault in list_faults() for name in fault.changes}
    assert failing == set(Health.__dataclass_fields__)
    assert {name for fault in list_faults() for name in fault.kills} == {"work", "export"}


def test_the_same_seed_gives_the_same_figures() -> None:
    first, again = run_quick(), run_week(load=0.005, days=1.0, seed=17, sample=5)
    assert {**first, "cpu_seconds": 0} == {**again, "cpu_seconds": 0}
    assert run_quick(seed=18)["work"]["sent"] != first["work"]["sent"]


def test_failures_leave_their_marks() -> None:
    marks = {fault["name"]: fault["changes"] for fault in run_quick()["faults"]}
    assert marks["SQS does not respond for 5 min"]["export.lost_leases"] > 0
    assert marks["the model's API is down for 30 min"]["chat.dead"] > 0
    assert marks["DynamoDB does not respond for 5 min"]["chat.refused"] > 0
    poisoned = next(name for name in marks if name.startswith("a deployment fails"))
    assert marks[poisoned]["work.dead"] > 100


def test_everything_that_is_charged_has_a_price_and_every_quota_a_use() -> None:
    week = run_quick()
    for part in PARTS:
        assert set(week["units"][part]) <= set(PRICES)
        assert sum(week["costs"][part].values()) > 0
    assert set(week["quotas"]) == set(QUOTAS)


def test_a_unit_without_a_price_is_an_error() -> None:
    with pytest.raises(KeyError):
        compute_costs({"sqs.requests": 1.0})


def test_more_load_reaches_the_quota_of_heartbeats() -> None:
    below, above = (run_quiet(load=load, hours=0.02)["quotas"] for load in (1.0, 5.0))
    limit = QUOTAS["states.heartbeat"].limit
    assert below["states.heartbeat"] < limit < above["states.heartbeat"]


# -- the settings


def test_the_settings_of_the_study_are_sound() -> None:
    for deployment in (read_templates(), size_deployment()[0]):
        heartbeats = deployment.heartbeats
        check = check_interval(heartbeats.interval_seconds, heartbeats.heartbeat_seconds)
        assert check.level is CheckLevel.OK
        assert max_batch_seconds(deployment.chat) < (
            deployment.functions.messaging_timeout_seconds
        )


def test_the_study_names_every_setting_that_it_changes() -> None:
    given, (sized, changes) = read_templates(), size_deployment()
    differing = sum(
        getattr(getattr(given, part), name) != getattr(getattr(sized, part), name)
        for part in ("workers", "exports", "functions", "heartbeats")
        for name in getattr(given, part).__dataclass_fields__
    )
    # Two rows for the smallest and the largest number of tasks, and one for each channel.
    assert len(changes) + 2 - 2 == differing


# -- the work queue


def make_work(**health: float) -> tuple[Simulation, WorkModel]:
    given = read_templates()
    service = replace(given.workers, min_tasks=2, max_tasks=2)
    simulation = Simulation(1)
    model = WorkModel(
        simulation,
        replace(given, workers=service),
        Health(handler_errors=0.0, **health),  # type: ignore[arg-type]
        Usage(),
        call_seconds=0.02,
        start_seconds=60.0,
        per_second=0.0,
        draw_seconds=lambda: 0.0,
    )
    model.start(2)
    return simulation, model


def test_a_killed_workers_message_comes_back_after_one_lease() -> None:
    simulation, model = make_work()
    model.send(Message(0.0, 300.0))
    simulation.run(100.0)
    [holder] = [worker for worker in model.workers if worker.held]
    model.workers.remove(holder)
    holder.kill()
    [message] = model.queue.hidden
    assert 40.0 <= message.visible_at - simulation.now <= 60.0
    simulation.run(200.0)
    assert message.receives == 2
    simulation.run(600.0)
    assert (model.counted, model.counted_twice) == (1, 0)


def test_work_that_ends_while_sqs_is_down_is_not_counted_by_its_stale_worker() -> None:
    simulation, model = make_work()
    for seconds in (5.0, 50.0, 200.0):
        model.send(Message(0.0, seconds))
    simulation.run(1.0)
    model.health.sqs_errors, model.queue.is_down = 1.0, True
    simulation.run(301.0)
    assert (model.counted, model.lost_leases) == (0, 3)
    model.health.sqs_errors, model.queue.is_down = 0.0, False
    simulation.run(900.0)
    assert (model.counted, model.counted_twice) == (3, 0)


def test_a_message_that_always_fails_is_dead_lettered_and_redriven() -> None:
    simulation, model = make_work()
    model.send(Message(0.0, 1.0, fails=5))
    simulation.run(60.0)
    assert (model.dead_lettered, len(model.dead)) == (1, 1)
    model.dead[0].fails = 0
    model.redrive()
    simulation.run(120.0)
    assert (model.counted, len(model.dead)) == (1, 0)


def test_a_long_handler_is_renewed_by_the_real_keeper() -> None:
    simulation, model = make_work()
    model.send(Message(0.0, 200.0))
    simulation.run(300.0)
    # Every third of a lease of 60 s.
    assert model.renewals.total == pytest.approx(200 / 20, abs=1)
    assert (model.counted, model.lost_leases) == (1, 0)


def test_idle_workers_poll_once_in_twenty_seconds() -> None:
    simulation, model = make_work()
    simulation.run(200.0)
    assert model.receives.total == pytest.approx(2 * 200 / 20, abs=2)


def test_the_service_grows_by_the_backlog_and_shrinks_later() -> None:
    service = replace(read_templates().workers, min_tasks=1, max_tasks=10)
    scaler = Scaler(service)
    for minute in range(3):
        scaler.note(800, 2, 60.0 * minute)
    assert scaler.desired == 8
    for minute in range(3, 17):
        scaler.note(0, 8, 60.0 * minute)
    assert scaler.desired == 8
    scaler.note(0, 8, 60.0 * 17)
    assert scaler.desired == 1


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
    measured = read_measurements()
    simulation = Simulation(1)
    model = ExportModel(
        simulation,
        given,
        Health(),
        Usage(measured["flows"]),
        flows=measured["flows"],
        keeper_calls=measured["keeper_calls_per_second"],
        start_seconds=given.heartbeats.timeout_seconds,
        active_jobs=100,
        mean_seconds=given.heartbeats.timeout_seconds / 2,
        sample=1,
    )
    model.start()
    model.stop_producing()
    simulation.run(300.0)
    if kills_a_task:
        model.kill(1 / len(model.hosts))
    simulation.run(900.0)
    assert (model.sent, model.timeouts, model.failed_executions) == (100, 0, 0)
    assert model.active > 50
    assert model.heartbeats.total > 50 * 900 / given.heartbeats.interval_seconds


# -- other rules


def test_a_token_bucket_accepts_its_size_and_then_its_refill() -> None:
    bucket = TokenBucket(30, 5)
    assert sum(bucket.take(0.0, 1.0) for _ in range(100)) == 30
    assert sum(bucket.take(2.0, 1.0) for _ in range(100)) == 10
    assert sum(bucket.take(4.0, 0.2) for _ in range(100)) == 2


def test_a_meter_finds_the_busiest_second() -> None:
    meter = Meter()
    for now in (0.1, 1.0, 1.5, 1.9, 2.0):
        meter.add(now)
    assert (meter.total, meter.peak) == (5, 3)


def test_without_step_functions_executions_time_out_and_are_retried() -> None:
    study = Study(load=0.02, sample=2)
    fault = Fault("down", "Step Functions", 1800.0, 900.0, {"states_errors": 1.0})
    study.run(DAY / 8, [fault])
    counts: Counter[str] = Counter(study.records[0].changes)
    assert counts["export.timeouts"] > 0
    assert study.export.counted == study.export.sent


def test_no_job_fails_because_its_execution_was_retried() -> None:
    figures = run_retried_executions(hours=0.5)
    assert figures["found_closed"] > 0  # heartbeats came before the new token
    assert figures["retried"] > figures["found_closed"]
    assert figures["failed"] == 0
    assert figures["completed"] == figures["jobs"]
