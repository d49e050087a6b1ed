"""Looking: `status`, `list`, `show` and `explain`. None of them changes anything."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import formatting
from holdfast.cli.arguments import (
    QUEUE_HELP,
    AsJson,
    Limit,
    Queue,
    all_if_zero,
    opened,
    queue_and_rest,
)
from holdfast.cli.console import (
    print_json,
    print_result,
    print_table,
    strip_control_characters,
    terminal,
)
from holdfast.cli.durations import in_words, seconds
from holdfast.cli.errors import NotFound, UsageError
from holdfast.core.clock import SYSTEM_CLOCK, utc_now

if TYPE_CHECKING:
    from holdfast.core.queue.manager import MessageInfo, QueueManager, QueueStats
    from holdfast.core.queue.message import AnyMessage

STATES = ("pending", "leased", "completed", "failed")
WithBody = Annotated[bool, typer.Option("--body", help="Show the messages themselves too.")]


def status(
    queue: Queue = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(parser=seconds, metavar="DURATION", help="How often to look.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """How many messages are ready, held, done and dead."""
    with opened(queue) as manager:
        if watch:
            _watch(manager, max(every, 0.1), as_json)
        elif as_json:
            print_json(_stats_json(manager))
        else:
            print_table(("state", manager.name), _stats_rows(manager.stats()))


def _watch(manager: "QueueManager[AnyMessage]", every: float, as_json: bool) -> None:
    """Ctrl-C is how one leaves a view like this, so it is no failure."""
    try:
        if sys.stdout.isatty() and not as_json:
            _watch_live(manager, every)
        while True:
            print_json(_stats_json(manager)) if as_json else print_result(_stats_line(manager))
            SYSTEM_CLOCK.sleep(every)
    except KeyboardInterrupt:
        return


def _watch_live(manager: "QueueManager[AnyMessage]", every: float) -> None:
    from rich.live import Live

    from holdfast.cli.board import Board

    board = Board(manager.name)
    with Live(console=terminal(), auto_refresh=False, transient=False) as live:
        while True:
            board.note(manager.stats(), SYSTEM_CLOCK.monotonic())
            live.update(board.picture(), refresh=True)
            SYSTEM_CLOCK.sleep(every)


def _stats_json(manager: "QueueManager[AnyMessage]") -> dict[str, Any]:
    return {
        "queue": manager.name,
        "at": utc_now().isoformat(),
        **asdict(manager.stats()),
    }


def _stats_line(manager: "QueueManager[AnyMessage]") -> str:
    counts = " ".join(f"{k}={v}" for k, v in asdict(manager.stats()).items() if v is not None)
    return f"{utc_now():%H:%M:%S} {manager.name} {counts}"


def _stats_rows(stats: "QueueStats") -> list[tuple[str, str]]:
    rows = [
        ("ready", f"{stats.ready:,}"),
        ("delayed", f"{stats.delayed:,}"),
        ("leased", f"{stats.leased:,}"),
        ("failed", f"{stats.failed:,}"),
    ]
    if stats.completed is not None:
        rows.insert(3, ("completed", f"{stats.completed:,}"))
    if stats.oldest_ready_seconds is not None:
        rows.append(("oldest ready", in_words(stats.oldest_ready_seconds)))
    if stats.expired:
        rows.append(("leases run out", f"{stats.expired:,}"))
    if stats.foreign:
        rows.append(("foreign files", f"{stats.foreign:,} (see `holdfast doctor`)"))
    return rows


def list_(
    queue: Queue = None,
    state: Annotated[
        str, typer.Option(help="pending, leased, completed or failed.", metavar="STATE")
    ] = "pending",
    limit: Limit = 100,
    body: WithBody = False,
    as_json: AsJson = False,
) -> None:
    """The messages in a state, oldest first."""
    from holdfast.core.queue.manager import MessageState

    if state not in STATES:
        raise UsageError(f"--state {state!r}: it is one of {', '.join(STATES)}")
    with opened(queue) as manager:
        tasks = list(manager.peek(MessageState(state), all_if_zero(limit)))
    answer_tasks(tasks, body=body, as_json=as_json)


def answer_tasks(tasks: "Sequence[MessageInfo]", *, body: bool, as_json: bool) -> None:
    if as_json:
        print_json([formatting.as_json(task, body=body, deep=False) for task in tasks])
        return
    now = utc_now()
    rows = [
        (task.id, str(task.attempts), formatting.summary(task, now))
        + ((json.dumps(task.body, ensure_ascii=False),) if body else ())
        for task in tasks
    ]
    print_table(("id", "attempts", "about", *(("body",) if body else ())), rows)


Words = Annotated[list[str] | None, typer.Argument(metavar="QUEUE ID", help=QUEUE_HELP)]


def show(words: Words = None, as_json: AsJson = False) -> None:
    """A message with its body."""
    tasks = found(words)
    if as_json:
        print_json([formatting.as_json(task, body=True) for task in tasks])
        return
    for task in tasks:
        _answer_lines(islice(formatting.story(task, utc_now()), 2))
        print_result(_pretty(task.body))


def explain(words: Words = None, body: WithBody = False, as_json: AsJson = False) -> None:
    """Who holds a message, since and until when, past attempts, why it failed."""
    answer_stories(found(words), body=body, as_json=as_json)


def found(words: Sequence[str] | None) -> "list[MessageInfo]":
    """Every push of the id that was asked for; there is at least one."""
    queue, message_id = one_id(words)
    with opened(queue) as manager:
        tasks = manager.find(message_id)
        if not tasks:
            raise NotFound(
                f"there is no message {message_id!r} in {manager.name}: `holdfast list` shows "
                "what is there, and completed ones are gone after a purge"
            )
    return tasks


def one_id(words: Sequence[str] | None) -> tuple[str, str]:
    queue, rest = queue_and_rest(words, wanted=1)
    if len(rest) != 1:
        raise UsageError("one ID is needed, as in `holdfast explain enrich 4f1c…`")
    return queue, rest[0]


def answer_stories(tasks: "Sequence[MessageInfo]", *, body: bool, as_json: bool) -> None:
    if as_json:
        print_json([formatting.as_json(task, body=body) for task in tasks])
        return
    for number, task in enumerate(tasks):
        if number:
            print_result("")
        _answer_lines(formatting.story(task, utc_now()))
        if detail := formatting.last_detail(task):
            print_result("detail")
            print_result(
                "\n".join(
                    f"    {strip_control_characters(line)}" for line in detail.splitlines()
                )
            )
        if body:
            print_result(_pretty(task.body))


def _answer_lines(lines: Iterable[tuple[str, str]]) -> None:
    for heading, text in lines:
        print_result(f"{heading:<11} {strip_control_characters(text)}")


def _pretty(body: dict[str, Any] | None) -> str:
    if body is None:
        return "(it holds no JSON object)"
    lines = json.dumps(body, indent=2, ensure_ascii=False).splitlines()
    return "\n".join(strip_control_characters(line) for line in lines)
