"""Tasks and their app: decorating, pushing, and running with a worker in threads."""

import asyncio
import pickle
import re
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest

from holdfast import Backoff, Done, GiveBack, Holdfast, QueueManager, Reject, Retry
from holdfast.app.task import TaskMessage
from holdfast.errors import ConfigError, MalformedMessage, Unsupported
from holdfast.events import (
    Completed,
    DeadLettered,
    Events,
    MessageLeaseLost,
    ResultNotKept,
    Retried,
)
from holdfast.lease.keeper import LeaseKeeper
from holdfast.testing import ManualClock, SkippingClock
from holdfast.testing.contracts.queue.support import EventRecorder
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.settle import InFlight
from support.waiting import wait_until

app = Holdfast("memory:")


@app.task
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


class OnMemory:
    """An app on a queue in memory, whose retries are due at once."""

    def __init__(self, **settings: Any) -> None:
        self.app = Holdfast("memory:", **settings)
        self.app.queue.backoff = Backoff(first_seconds=0.001, max_seconds=0.001)
        self.events = EventRecorder()

    @property
    def queue(self) -> QueueManager[TaskMessage]:
        return self.app.queue

    def work(self, **options: Any) -> dict[str, int]:
        """Run a worker until the queue is empty, and return its counts above 0."""
        worker = self.app.make_worker(events=Events(self.events), **options)
        report = worker.run(until_empty=True)
        names = report.__match_args__
        return {name: count for name in names if (count := getattr(report, name))}


@pytest.fixture
def ground() -> OnMemory:
    return OnMemory()


# -- decorating


def test_a_direct_call_runs_the_function_as_it_is() -> None:
    assert add(1) == 2
    assert add.__name__ == "add"
    assert add.__doc__ == "Add two numbers."


def test_a_task_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(add)) is add


def test_two_tasks_of_the_same_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two functions are called 'add'"):
        app.task(name="add")(lambda: None)


def test_a_function_that_is_defined_again_replaces_its_task(ground: OnMemory) -> None:
    def define(result: int) -> Any:
        @ground.app.task
        def again() -> int:
            return result

        return again

    define(1)
    message_id = define(2).push()
    ground.work()
    assert ground.queue.load_result(message_id) == 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"isolation": "fiber"}, "isolation must be thread or process, not 'fiber'"),
        ({"isolation": "async"}, "an async def runs in both"),
        ({"stall": "soon"}, "stall: 'soon' is not a duration"),
        ({"timeout": 0}, "timeout must be above 0, not 0"),
        ({"stall": []}, "stall must be a text such as '10m', or seconds, not []"),
        ({"retries": -1}, "retries must be a whole number of 0 or more, not -1"),
        ({"retries": True}, "retries must be a whole number of 0 or more, not True"),
        ({"backoff": []}, "backoff: '[]' is not a duration"),
        ({"backoff": "-1s"}, "backoff: '-1s' is not a duration"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        Holdfast("memory:").task(**settings)


def test_a_generator_is_refused() -> None:
    def pages() -> Any:
        yield 1

    with pytest.raises(ConfigError, match="yields"):
        app.task(pages)


def test_a_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a function"):
        app.task(OnMemory)


@pytest.mark.parametrize("name", [None, "", 5])
def test_a_task_without_a_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="a task needs a name"):
        app.task(name=name)(lambda: None)


def test_an_app_without_tasks_has_no_worker() -> None:
    with pytest.raises(ConfigError, match="has no tasks"):
        Holdfast("memory:").make_worker()


def test_a_local_function_cannot_run_in_a_process(ground: OnMemory) -> None:
    @ground.app.task(isolation="process")
    def local() -> None: ...

    with pytest.raises(ConfigError, match=r"local cannot run in a process of its own"):
        ground.app.make_worker()


# -- the queue of the app


def test_an_app_without_a_queue_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_QUEUE", raising=False)
    with pytest.raises(ConfigError, match="HOLDFAST_QUEUE"):
        _ = Holdfast().queue


def test_the_environment_names_the_queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_QUEUE", f"sqlite:{tmp_path}/work.db/acme")
    other = {"HOLDFAST_QUEUE": f"sqlite:{tmp_path}/work.db/other"}
    for environment_app, name in ((Holdfast(), "acme"), (Holdfast(env=other), "other")):
        assert environment_app.queue.name == name
        environment_app.close()


def test_importing_tasks_opens_no_queue(tmp_path: Path) -> None:
    unopened = Holdfast(f"sqlite:{tmp_path}/work.db")
    unopened.task(name="task")(lambda: None)
    assert list(tmp_path.iterdir()) == []


# -- pushing


def test_a_push_stores_the_name_and_the_given_arguments(ground: OnMemory) -> None:
    ground.app.task(add.__wrapped__)
    task = ground.app.tasks["add"]
    assert task.push(1, id="acme-42") == "acme-42"
    [message] = ground.queue.poll()
    assert (message.task, message.arguments, message.id) == ("add", {"a": 1}, "acme-42")


def test_a_refused_push_stores_nothing(ground: OnMemory) -> None:
    task = ground.app.task(add.__wrapped__)
    with pytest.raises(MalformedMessage, match="add: a: "):
        task.push("x")
    with pytest.raises(ConfigError, match="delay: 'soon' is not a duration"):
        task.push(1, delay="soon")
    assert ground.queue.poll() == []


@pytest.mark.parametrize("delay", ["10m", 600, timedelta(minutes=10)])
def test_a_delay_delays(delay: Any) -> None:
    clock = ManualClock()
    delayed = Holdfast("memory:", clock=clock)
    delayed.task(add.__wrapped__).push(1, delay=delay)
    clock.advance(599)
    assert delayed.queue.poll() == []
    clock.advance(1)
    assert len(delayed.queue.poll()) == 1


def test_a_second_push_of_an_id_does_nothing_with_dedupe() -> None:
    deduping = OnMemory(dedupe=True)
    task = deduping.app.task(add.__wrapped__)
    for _ in range(2):
        task.push(1, id="tick-1")
    assert deduping.work() == {"completed": 1}


def test_an_id_that_is_pushed_twice_runs_twice_without_dedupe(ground: OnMemory) -> None:
    task = ground.app.task(add.__wrapped__)
    for number in range(2):
        task.push(number, id="acme-42")
    assert ground.work() == {"completed": 2}
    assert task.result("acme-42") == 2


@pytest.mark.parametrize("bad", ["", 5, "x" * 513])
def test_a_wrong_id_is_refused_in_one_line(ground: OnMemory, bad: Any) -> None:
    task = ground.app.task(add.__wrapped__)
    with pytest.raises(MalformedMessage, match=r"^id must be text of 1 to 512 characters, not"):
        task.push(1, id=bad)


def test_a_delay_may_be_a_timedelta(ground: OnMemory) -> None:
    ground.app.task(add.__wrapped__).push(1, delay=timedelta(hours=1))
    assert ground.queue.stats().delayed == 1


def test_a_coroutine_pushes_without_blocking_its_loop(ground: OnMemory) -> None:
    task = ground.app.task(add.__wrapped__)
    assert asyncio.run(task.apush(1, id="a")) == "a"
    assert ground.work() == {"completed": 1}


# -- running


def test_several_tasks_share_a_queue(ground: OnMemory) -> None:
    calls = []

    @ground.app.task
    def first(x: int) -> None:
        calls.append(("first", x))

    @ground.app.task
    async def second(y: str, ctx: Any) -> None:
        await asyncio.sleep(0)
        calls.append(("second", y, ctx.attempt))

    first.push(1)
    second.push("b")
    assert ground.work() == {"completed": 2}
    assert sorted(calls) == [("first", 1), ("second", "b", 1)]


@pytest.mark.parametrize("value", [42, "text", {"a": [1]}, 0, False])
def test_a_returned_value_is_kept(ground: OnMemory, value: Any) -> None:
    task = ground.app.task(name="task")(lambda: value)
    message_id = task.push()
    assert task.result(message_id) is None
    assert ground.work() == {"completed": 1}
    assert task.result(message_id) == value


@pytest.mark.parametrize(
    "value",
    [object(), "x" * 70_000, [1e16] * 12_000],
    ids=["opaque", "too large", "too large with our own encoder"],
)
def test_a_value_that_cannot_be_kept_is_reported_once_and_the_work_is_done(
    value: Any,
) -> None:
    ground = OnMemory(clock=SkippingClock())  # so that a lost lease takes no minute
    task = ground.app.task(name="task")(lambda: value)
    ids = [task.push() for _ in range(3)]
    assert ground.work() == {"completed": 3}
    [reported] = ground.events.select(ResultNotKept)
    assert reported.task == "task"
    assert [task.result(message_id) for message_id in ids] == [None] * 3


def test_a_value_is_ignored_with_one_warning_if_the_queue_keeps_none(tmp_path: Path) -> None:
    files = OnMemory.__new__(OnMemory)
    files.app, files.events = Holdfast(tmp_path / "work" / "q"), EventRecorder()
    task = files.app.task(name="task")(lambda: 42)
    message_id, *_ = (task.push() for _ in range(3))
    assert files.work() == {"completed": 3}
    [reported] = files.events.select(ResultNotKept)
    assert reported.reason == "this kind of queue keeps no results"
    with pytest.raises(Unsupported, match="results"):
        task.result(message_id)


@pytest.mark.parametrize(
    ("outcome", "report"),
    [
        (Done(), {"completed": 1}),
        (Done(result=7), {"completed": 1}),
        (Reject("no use"), {"dead_lettered": 1}),
    ],
)
def test_an_outcome_means_what_it_means(
    ground: OnMemory, outcome: Any, report: dict[str, int]
) -> None:
    task = ground.app.task(name="task")(lambda: outcome)
    message_id = task.push()
    assert ground.work() == report
    assert task.result(message_id) == getattr(outcome, "result", None)


def test_a_task_may_ask_for_a_retry_or_be_given_back(ground: OnMemory) -> None:
    outcomes: list[Any] = [Retry(after_seconds=0), GiveBack(), None]
    task = ground.app.task(name="task")(lambda: outcomes.pop(0))
    task.push()
    assert ground.work() == {"completed": 1, "retried": 1, "given_back": 1}


def test_each_task_has_its_own_retries(ground: OnMemory) -> None:
    attempts = []

    def fail(name: str, ctx: Any) -> None:
        attempts.append((name, ctx.attempt))
        raise ValueError("no such luck")

    for name, retries in (("never", 0), ("often", 7), ("default", None)):
        ground.app.task(name=name, retries=retries)(fail).push(name)
    assert ground.work()["dead_lettered"] == 3
    counts = {name: sum(tried == name for tried, _ in attempts) for name, _ in attempts}
    assert counts == {"never": 1, "often": 8, "default": 5}
    reasons = sorted(str(letter.reason) for letter in ground.queue.dead_letters())
    assert reasons == [
        "failed 5 times, last: ValueError: no such luck",
        "failed 8 times, last: ValueError: no such luck",
        "failed once, last: ValueError: no such luck",
    ]


def test_a_task_whose_worker_died_in_its_last_attempt_is_not_run_again() -> None:
    clock = ManualClock()
    crashed = Holdfast("memory:", clock=clock)
    calls = []
    crashed.task(name="once", retries=0)(lambda: calls.append(1)).push()
    assert len(crashed.queue.poll()) == 1
    clock.advance(61)
    worker = crashed.make_worker()
    thread = Thread(target=worker.run, kwargs={"until_empty": True})
    thread.start()
    while thread.is_alive():
        clock.advance(0.1)
        thread.join(0.01)
    assert calls == []
    [letter] = crashed.queue.dead_letters()
    assert letter.reason == "failed once, last: its worker died or froze"


def test_two_workers_of_a_queue_agree_about_retries(ground: OnMemory) -> None:
    attempts = []

    def fail(ctx: Any) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("no such luck")

    ground.app.task(name="often", retries=7)(fail)
    ground.app.task(name="default")(fail).push()
    ground.app.make_worker()
    assert ground.work()["dead_lettered"] == 1
    assert attempts == [1, 2, 3, 4, 5]


def test_errors_of_tasks_are_passed_on() -> None:
    errors: list[BaseException] = []
    reporting = OnMemory(max_attempts=1, on_error=lambda error, event: errors.append(error))

    def fail() -> None:
        raise ValueError("no such luck")

    reporting.app.task(fail).push()
    assert reporting.work() == {"dead_lettered": 1}
    assert [str(error) for error in errors] == ["no such luck"]


def test_each_task_has_its_own_backoff(ground: OnMemory) -> None:
    def fail() -> None:
        raise ValueError

    ground.app.task(name="slow", retries=1, backoff="100ms")(fail).push()
    ground.app.task(name="default", retries=1)(fail).push()
    ground.work()
    delays = [event.delay_seconds for event in ground.events.select(Retried)]
    assert None in delays
    assert any(delay is not None and 0.05 <= delay <= 0.1 for delay in delays)


@pytest.mark.parametrize("limit", ["stall", "timeout"])
def test_each_task_has_its_own_limits(ground: OnMemory, limit: str) -> None:
    def hang(ctx: Any) -> None:
        ctx.lost.wait(60)

    ground.app.task(name="patient")(lambda: finish.wait(60) and None).push(id="patient")
    ground.app.task(name="limited", **{limit: "100ms"})(hang).push(id="limited")
    finish, worker = (
        Event(),
        ground.app.make_worker(concurrency=2, events=Events(ground.events)),
    )
    thread = Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: ground.events.select(MessageLeaseLost))
        sleep(0.3)  # three times the limit that the patient task does not have
    finally:
        finish.set()
        worker.stop()
        thread.join()
    [lost] = ground.events.select(MessageLeaseLost)
    assert lost.message_id == "limited"
    assert ("stalled" if limit == "stall" else "timed out") in lost.reason
    [completed] = ground.events.select(Completed)
    assert completed.message_id == "patient"


def test_an_app_with_a_task_of_one_attempt_claims_nothing_ahead(ground: OnMemory) -> None:
    """A crash would cost a message its only attempt, although its task was not started."""
    ground.app.task(name="patient")(lambda: None)
    assert ground.app.make_worker().prefetch > 0
    assert ground.app.make_worker(prefetch=3).prefetch == 3
    ground.app.task(name="once", retries=0)(lambda: None)
    assert ground.app.make_worker(prefetch=3).prefetch == 0


def test_a_task_that_would_start_after_the_drain_time_is_given_back(ground: OnMemory) -> None:
    calls = []
    ground.app.task(name="late")(lambda: calls.append(1)).push()
    in_flight = InFlight(ground.queue, Events(), ground.queue.clock)
    fetcher = Fetcher(LeaseKeeper(ground.queue.clock), in_flight)
    runner: Any = ground.app.make_worker()._make_runner(fetcher, in_flight)
    claimed = fetcher.fetch()
    in_flight.give_up.set()
    runner._handle(runner._make_executor(), claimed)
    assert in_flight.make_report().given_back == 1
    assert calls == []


# -- messages that this app cannot run


def test_a_message_of_an_unknown_task_waits_and_is_not_lost(ground: OnMemory) -> None:
    ground.app.task(name="known")(lambda: None)
    ground.queue.push(TaskMessage(id="a", task="renamed"))
    worker = ground.app.make_worker(events=Events(ground.events))
    thread = Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: ground.events.select(Retried))
    finally:
        worker.stop()
        thread.join()
    [retried] = ground.events.select(Retried)
    assert retried.delay_seconds == 30
    assert "there is no task 'renamed', only known" in retried.reason
    assert ground.queue.stats().delayed == 1


def test_a_message_of_an_unknown_task_is_a_dead_letter_in_the_end() -> None:
    last = OnMemory(max_attempts=1)
    last.app.task(name="known")(lambda: None)
    last.queue.push(TaskMessage(id="a", task="renamed"))
    assert last.work() == {"dead_lettered": 1}
    [letter] = last.queue.dead_letters()
    assert "@app.task(name='renamed')" in str(letter.reason)
    renamed = last.app.task(name="renamed")(lambda: 1)
    last.queue.redrive()
    assert last.work() == {"completed": 1}
    assert renamed.result("a") == 1


def test_arguments_that_no_longer_fit_are_a_dead_letter_with_the_parameter() -> None:
    last = OnMemory(max_attempts=1)
    last.app.task(add.__wrapped__)
    last.queue.push(TaskMessage(task="add", arguments={"a": "canary"}))
    assert last.work() == {"dead_lettered": 1}
    [letter] = last.queue.dead_letters()
    assert "add: a: Input should be a valid integer" in str(letter.reason)
    assert "canary" not in str(letter.reason)


# -- in tests of applications


def test_pushed_tasks_run_at_once_in_tests() -> None:
    with app.testing() as pushed:
        message_id = add.push(1, "2", delay="10m", id="a")
        assert add.result(message_id) == 3
        assert asyncio.run(add.apush(5)) == pushed[1].id
    assert (pushed[0].task, pushed[0].arguments) == ("add", {"a": 1, "b": 2})
    assert (pushed[0].delay_seconds, pushed[0].outcome) == (600, Done(result=3))
    assert app.queue.stats().ready == 0


def test_pushed_tasks_are_collected_in_tests() -> None:
    with app.testing(run=False) as pushed:
        add.push(1)
    assert [(push.task, push.outcome) for push in pushed] == [("add", None)]


def test_an_error_of_a_task_reaches_the_test(ground: OnMemory) -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    task = ground.app.task(fail)
    with ground.app.testing(), pytest.raises(ValueError, match="no such luck"):
        task.push()


def test_a_task_may_push_others_in_tests(ground: OnMemory) -> None:
    @ground.app.task
    async def inner(ctx: Any) -> int:
        ctx.beat(checkpoint=1)
        return 7

    @ground.app.task
    def outer() -> str:
        return inner.push(id="inner")

    async def test() -> Any:
        outer.push()
        return inner.result("inner")

    with ground.app.testing() as pushed:
        assert asyncio.run(test()) == 7
    assert [push.task for push in pushed] == ["outer", "inner"]


def test_the_name_of_an_unknown_task_cannot_flood_the_log() -> None:
    last = OnMemory(max_attempts=1)
    last.app.task(name="known")(lambda: None)
    last.queue.push(TaskMessage(id="a", task="x" * 10_000))
    assert last.work() == {"dead_lettered": 1}
    [dead_lettered] = last.events.select(DeadLettered)
    assert len(dead_lettered.reason) < 400
