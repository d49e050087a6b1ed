"""`holdfast work`: real processes, real signals."""

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import AnyMessage, MessageState, open_queue
from support.cli.commands import (
    OnTerminal,
    log_contains,
    real,
    require_one_line,
    start,
    wait_for_end,
)
from support.cli.work_folder import WorkFolder
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until


def has_started(place: WorkFolder, count: int) -> Callable[[], bool]:
    """Return a condition that is met when `count` handlers have started."""
    return lambda: len([e for e in place.read_effects() if e.startswith("started")]) == count


@pytest.fixture
def place(tmp_path: Path) -> Iterator[WorkFolder]:
    place = WorkFolder(tmp_path)
    yield place
    place.close()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_work_is_done_until_the_queue_is_empty(place: WorkFolder, isolation: str) -> None:
    place.push("a", "b", "c", name="you")
    ran = place.work("tasks:greet", f"--isolation={isolation}", "-c", "2", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["completed"] == 3
    assert place.read_effects() == ["Greeting you"] * 3
    assert place.queue.stats().completed == 3


def test_a_message_of_another_model_becomes_a_dead_letter_with_a_reason(
    place: WorkFolder,
) -> None:
    place.push("nameless")
    ran = place.work("tasks:greet")
    assert ran.code == 0
    assert ran.out.startswith("completed 0, retried 0, dead lettered 1")
    [letter] = place.queue.dead_letters()
    assert letter.reason is not None
    assert "name: Field required" in letter.reason


def test_attempts_are_limited_and_the_last_error_is_kept(place: WorkFolder) -> None:
    place.push("a")
    ran = place.work("tasks:fail", "--max-attempts=1", "--json")
    assert ran.json["dead_lettered"] == 1
    [message] = json.loads(real(place.folder, "explain", place.url, "a", "--json").out)
    assert "no such luck" in message["reason"]
    assert "tasks.py" in message["past"][-1]["detail"]


def test_a_failed_message_waits_by_the_backoff_of_the_option(place: WorkFolder) -> None:
    place.push("a")
    place.start("tasks:fail", "--backoff=2h,x1,max 3h")
    assert wait_until(lambda: place.queue.stats().delayed == 1)
    [message] = place.queue.find("a")
    assert message.due_at is not None
    assert 3500 < message.due_at.timestamp() - time.time() <= 7200  # with its jitter


def test_a_handler_that_returns_nonsense_is_reported(place: WorkFolder) -> None:
    place.push("a")
    assert place.work("tasks:nonsense").code == 0
    [letter] = place.queue.dead_letters()
    assert "int" in str(letter.reason)


@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        ("nosuchmodule:handle", "there is no module 'nosuchmodule'"),
        ("tasks:greeet", "did you mean greet"),
        ("tasks", "is not MODULE:NAME"),
        ("tasks:not_a_function", "tasks:not_a_function: a value of type int cannot be called"),
        ("broken:handle", "importing broken failed: ZeroDivisionError"),
        ("quits:handle", "importing quits failed: SystemExit"),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_reported_and_no_message_is_touched(
    place: WorkFolder, handler: str, complaint: str
) -> None:
    (place.folder / "broken.py").write_text("1 / 0")
    (place.folder / "quits.py").write_text("raise SystemExit(0)")
    place.push("a")
    ran = place.work(handler)
    assert ran.code == 2
    assert complaint in require_one_line(ran)
    [task] = place.queue.peek(MessageState.PENDING)
    assert task.attempts == 0


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--isolation=fiber", "thread, process or async"),
        ("--isolation=async", "is not an `async def`"),
        ("--log-format=xml", "text or json"),
        ("--lease=0", "lease_seconds"),
        ("--stall=0s", "stall_seconds"),
        ("--backoff=soon,please", "write it as 5s,x2,max 10m"),
        ("--concurrency=0", "--concurrency"),
        ("--metrics-port=99999", "--metrics-port"),
    ],
)
def test_a_setting_that_cannot_work_is_reported(
    place: WorkFolder, option: str, complaint: str
) -> None:
    ran = place.work("tasks:reject", option)
    assert ran.code == 2
    assert complaint in require_one_line(ran)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_signal_lets_running_work_finish(
    place: WorkFolder, isolation: str, number: signal.Signals
) -> None:
    place.push("a", "b", "c")
    worker = place.start("tasks:slow", f"--isolation={isolation}", "-c", "2", "--json")
    wait_until(has_started(place, 2))
    worker.send_signal(number)
    # After the second line it claims nothing more.
    assert log_contains(worker, b"draining: 2 running", b"event=worker_stopping")
    place.finish()
    code, out, _ = wait_for_end(worker)
    assert code == 0
    assert json.loads(out)["completed"] == 2
    stats = place.queue.stats()
    assert (stats.completed, stats.ready, stats.leased) == (2, 1, 0)


def test_a_second_ctrl_c_stops_now_and_gives_the_work_back(place: WorkFolder) -> None:
    place.push("a")
    worker = place.start("tasks:hang", "--isolation=process", "--drain=1h")
    wait_until(has_started(place, 1))
    worker.send_signal(signal.SIGINT)
    assert log_contains(worker, b"draining")
    worker.send_signal(signal.SIGINT)
    code, out, err = wait_for_end(worker)
    assert code == 130
    assert "stopping now" in err
    assert "given back 1" in out
    [task] = place.queue.peek(MessageState.PENDING)
    assert task.attempts == 0


def test_a_second_ctrl_c_ends_even_a_thread_that_hangs(place: WorkFolder) -> None:
    place.push("a")
    worker = place.start("tasks:hang", "--lease=1s")
    wait_until(has_started(place, 1))
    worker.send_signal(signal.SIGINT)
    assert log_contains(worker, b"draining")
    worker.send_signal(signal.SIGINT)
    code, _, _ = wait_for_end(worker)
    assert code == 130
    wait_until(lambda: place.queue.stats().expired == 1)  # it will be redelivered


@pytest.mark.requirement("R001-006")
def test_a_killed_worker_costs_one_lease_and_no_message(place: WorkFolder) -> None:
    place.push("a", "b")
    worker = place.start("tasks:slow", "-c", "2", "--lease=1s")
    wait_until(has_started(place, 2))
    worker.kill()
    worker.wait()
    place.finish()
    wait_until(lambda: place.queue.stats().expired == 2)
    assert place.work("tasks:slow", "--json").json["completed"] == 2
    assert place.queue.stats().completed == 2


def test_a_hung_handler_is_ended_and_tried_again(place: WorkFolder) -> None:
    place.push("a")
    worker = place.start(
        "tasks:hang", "--isolation=process", "--stall=0.5", "--log-format=json"
    )
    assert log_contains(worker, b'"event": "child_killed"')
    place.finish()
    wait_until(lambda: place.queue.stats().completed == 1)


def test_each_event_is_a_line_and_no_line_holds_a_body(place: WorkFolder) -> None:
    place.push("a", password="s3cret-canary")
    ran = place.work("tasks:reject", "--log-format=json")
    events = [json.loads(line) for line in ran.err.splitlines()]
    assert [event["event"] for event in events] == [
        "worker_started",
        "claimed",
        "dead_lettered",
        "worker_stopping",
        "worker_stopped",
    ]
    assert events[2]["reason"] == "the handler rejected it"
    assert "canary" not in ran.err + ran.out


def test_without_a_terminal_the_lines_are_plain_text(place: WorkFolder) -> None:
    place.push("a", name="you")
    ran = place.work("tasks:greet")
    assert "event=completed queue=default/q message_id=a attempt=1" in ran.err
    assert "\x1b" not in ran.err
    assert ran.out.startswith("completed 1, retried 0, dead lettered 0")


def test_metrics_are_served_while_it_works(place: WorkFolder) -> None:
    place.push("a")
    worker = place.start("tasks:slow", "--metrics-port=0")
    assert worker.stderr is not None
    url = worker.stderr.readline().decode().split()[-1]
    wait_until(has_started(place, 1))

    def read_metrics() -> str:
        with urllib.request.urlopen(url, timeout=30) as page:
            return str(page.read().decode())

    assert 'holdfast_claimed_total{queue="default/q"} 1.0' in read_metrics()
    depth = 'holdfast_queue_depth{queue="default/q",state="leased"}'
    wait_until(lambda: depth in read_metrics())
    place.finish()
    worker.send_signal(signal.SIGTERM)
    assert wait_for_end(worker)[0] == 0


def test_a_worker_makes_its_queue_and_waits_for_the_first_push(place: WorkFolder) -> None:
    other = str(place.folder / "data" / "acme" / "new")
    worker = start(place.folder, "work", other, "tasks:gentle", "--isolation=async")
    try:
        folder = place.folder / "data/queues/acme/new/pending"
        wait_until(folder.is_dir)
        with open_queue(other) as queue:
            queue.push(AnyMessage(id="first"))
            wait_until(lambda: queue.stats().completed == 1)
        worker.send_signal(signal.SIGTERM)
        assert wait_for_end(worker)[0] == 0
    finally:
        worker.kill()
        worker.communicate()


def test_the_main_thread_of_an_idle_worker_sleeps(place: WorkFolder) -> None:
    worker = place.start("tasks:greet")
    status = Path(f"/proc/{worker.pid}/status")  # of the main thread

    def count_waits() -> int:
        [line] = [x for x in status.read_text().splitlines() if x.startswith("voluntary")]
        return int(line.split()[1])

    try:
        place.push("first", name="you")
        wait_until(lambda: place.queue.stats().completed == 1)
        before = count_waits()
        time.sleep(2.0)
        assert count_waits() - before < 10  # with a poll every 0.1 s, it would be 20
        worker.send_signal(signal.SIGTERM)
        assert wait_for_end(worker)[0] == 0
    finally:
        worker.kill()
        worker.communicate()


def test_a_closed_log_does_not_stop_the_work(place: WorkFolder) -> None:
    place.push(*(f"t{n}" for n in range(50)), name="you")
    worker = place.start("tasks:greet", "--until-empty")
    assert worker.stderr is not None
    worker.stderr.readline()
    worker.stderr.close()
    assert worker.wait(WAIT_TIMEOUT_SECONDS) == 0
    assert place.queue.stats().completed == 50


# -- the end of a run


def test_until_empty_says_that_other_workers_still_hold_messages(place: WorkFolder) -> None:
    place.push("held", "free", name="x")
    [held] = place.queue.poll()
    ran = place.work("tasks:greet")
    assert ran.code == 0
    assert ran.out.startswith("completed 1")
    assert "1 message still held by other workers; --until-done waits for them" in ran.err
    place.queue.ack(held)
    assert "still held" not in place.work("tasks:greet").err


def test_until_done_waits_for_the_messages_of_other_workers(place: WorkFolder) -> None:
    place.push("held", name="x")
    [held] = place.queue.poll()
    worker = place.start("tasks:greet", "--until-done")
    assert log_contains(worker, b"event=worker_started")
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(2.0)
    place.queue.nack(held, delay_seconds=0.0)
    code, out, _ = wait_for_end(worker)
    assert (code, out.startswith("completed 1")) == (0, True)


@pytest.mark.parametrize(
    ("isolation", "text"),
    [
        ("thread", b"1 running in threads come back when their leases run out"),
        ("process", b"giving back 1 running"),
    ],
)
def test_the_second_signal_says_what_happens_to_running_work(
    place: WorkFolder, isolation: str, text: bytes
) -> None:
    place.push("a")
    worker = place.start("tasks:hang", f"--isolation={isolation}")
    wait_until(has_started(place, 1))
    worker.send_signal(signal.SIGTERM)
    assert log_contains(worker, b"draining: 1 running")
    worker.send_signal(signal.SIGTERM)
    assert log_contains(worker, b"stopping now: " + text)
    code, out, _ = wait_for_end(worker)
    assert code == 128 + signal.SIGTERM
    [message] = place.queue.find("a")
    if isolation == "process":
        assert "given back 1" in out
        assert (message.state.value, message.attempts) == ("pending", 0)
    else:
        assert message.state.value == "leased"  # it is redelivered when its lease ends


def test_a_terminal_shows_warnings_as_plain_lines_and_what_ctrl_c_does_next(
    place: WorkFolder,
) -> None:
    place.push("a", "b")
    terminal = OnTerminal(place.folder, "work", place.url, "tasks:fail", "--drain=1s")
    wait_until(lambda: all(place.queue.find(name)[0].past for name in ("a", "b")))
    time.sleep(0.3)  # two drawings of the live line
    terminal.process.send_signal(signal.SIGINT)
    shown = terminal.read()
    assert terminal.process.wait(WAIT_TIMEOUT_SECONDS) == 0
    assert b"retried a: ValueError" in shown
    assert b"event=" not in shown
    before, _, after = shown.partition(b"draining:")
    assert b"Ctrl-C drains" in before
    assert b"Ctrl-C drains" not in after


def read_failure(place: WorkFolder, *options: str) -> dict[str, str]:
    """Run a handler that fails once, and return the line of its dead letter."""
    place.push("a")
    ran = place.work("tasks:fail", "--max-attempts=1", "--log-format=json", *options)
    lines = map(json.loads, ran.err.splitlines())
    [failure] = [line for line in lines if line["event"] == "dead_lettered"]
    return dict(failure)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_json_lines_have_the_traceback(place: WorkFolder, isolation: str) -> None:
    failure = read_failure(place, f"--isolation={isolation}")
    assert "in fail" in failure["traceback"]
    assert "ValueError: no such luck" in failure["traceback"]


def test_the_command_that_is_named_explains_the_failure(place: WorkFolder) -> None:
    program, *words = read_failure(place)["explain"].split()
    assert program == "holdfast"
    assert "no such luck" in real(place.folder, *words).out


def test_tracebacks_can_be_turned_off(place: WorkFolder) -> None:
    failure = read_failure(place, "--no-tracebacks", "--isolation=process")
    assert "traceback" not in failure
    assert "no such luck" not in str(failure)
    assert "ValueError" in failure["reason"]


def test_a_terminal_shows_the_traceback_and_the_command(place: WorkFolder) -> None:
    """And does not break the command into lines that cannot be copied."""
    place.push("a")
    words = ("work", place.url, "tasks:fail", "--max-attempts=1", "--until-empty")
    terminal = OnTerminal(place.folder, *words, COLUMNS="40")
    shown = terminal.read().decode().replace("\r\n", "\n")
    assert terminal.process.wait(WAIT_TIMEOUT_SECONDS) == 0
    tasks = place.folder / "tasks.py"
    expected = rf"""dead lettered a: failed once, last: ValueError \(attempt 1\)
    Traceback \(most recent call last\):
      File "{re.escape(str(tasks))}", line \d+, in fail
        raise ValueError\("no such luck"\)
    ValueError: no such luck
  holdfast explain {re.escape(place.url)} a
"""
    assert re.search(expected, shown), shown
