"""The read-only commands `status`, `list`, `show` and `explain`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import (
    QUEUE_HELP,
    AsJson,
    Limit,
    Queue,
    make_duration_option,
    open_manager,
    split_queue_and_rest,
    to_limit,
)
from holdfast.cli.console import (
    make_console,
    print_facts,
    print_json,
    print_result,
    print_table,
)
from holdfast.cli.errors import NotFound, UsageError
from holdfast.cli.formatting import format_duration
from holdfast.cli.messages import (
    describe_message,
    format_body,
    message_to_json,
    print_descriptions,
    print_messages,
)
from holdfast.core.clock import SYSTEM_CLOCK, utc_now

if TYPE_CHECKING:
    from holdfast.core.queue.manager import MessageInfo, QueueManager, QueueStats
    from holdfast.core.queue.message import AnyMessage

STATES = ("pending", "leased", "completed", "failed")
WithBody = Annotated[bool, typer.Option("--body", help="Show the messages too.")]


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of commands that list messages."""

    limit: Limit = 100
    body: WithBody = False
    as_json: AsJson = False


def status(
    queue: Queue = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[float, make_duration_option("Time between two updates.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show how many messages are ready, leased, completed and failed."""
    with open_manager(queue) as manager:
        if watch:
            _watch(manager, max(every, 0.1), as_json)
        elif as_json:
            print_json(_stats_to_json(manager))
        else:
            print_table(("state", manager.name), _stats_to_rows(manager.stats()))


def _watch(manager: "QueueManager[AnyMessage]", every: float, as_json: bool) -> None:
    """Show the counts until Ctrl-C, which is the normal way to end this."""
    try:
        if sys.stdout.isatty() and not as_json:
            _watch_live(manager, every)
        while True:
            print_json(_stats_to_json(manager)) if as_json else print_result(
                _format_stats(manager)
            )
            SYSTEM_CLOCK.sleep(every)
    except KeyboardInterrupt:
        return


def _watch_live(manager: "QueueManager[AnyMessage]", every: float) -> None:
    from rich.live import Live

    from holdfast.cli.live_view import QueueView

    view = QueueView(manager.name)
    with Live(console=make_console(), auto_refresh=False, transient=False) as live:
        while True:
            view.record(manager.stats(), SYSTEM_CLOCK.monotonic())
            live.update(view.render(), refresh=True)
            SYSTEM_CLOCK.sleep(every)


def _stats_to_json(manager: "QueueManager[AnyMessage]") -> dict[str, Any]:
    return {
        "queue": manager.name,
        "at": utc_now().isoformat(),
        **asdict(manager.stats()),
    }


def _format_stats(manager: "QueueManager[AnyMessage]") -> str:
    counts = " ".join(f"{k}={v}" for k, v in asdict(manager.stats()).items() if v is not None)
    return f"{utc_now():%H:%M:%S} {manager.name} {counts}"


def _stats_to_rows(stats: "QueueStats") -> list[tuple[str, str]]:
    rows = [
        ("ready", f"{stats.ready:,}"),
        ("delayed", f"{stats.delayed:,}"),
        ("leased", f"{stats.leased:,}"),
        ("failed", f"{stats.failed:,}"),
    ]
    if stats.completed is not None:
        rows.insert(3, ("completed", f"{stats.completed:,}"))
    if stats.oldest_ready_seconds is not None:
        rows.append(("oldest ready", format_duration(stats.oldest_ready_seconds)))
    if stats.expired:
        rows.append(("expired leases", f"{stats.expired:,}"))
    if stats.foreign:
        rows.append(("foreign files", f"{stats.foreign:,} (see `holdfast doctor`)"))
    return rows


def list_(
    queue: Queue = None,
    state: Annotated[
        str, typer.Option(help="pending, leased, completed or failed.", metavar="STATE")
    ] = "pending",
    *,
    options: ListOptions,
) -> None:
    """List the messages in a state, oldest first."""
    from holdfast.core.queue.manager import MessageState

    if state not in STATES:
        raise UsageError(f"--state must be one of {', '.join(STATES)}; got {state!r}")
    with open_manager(queue) as manager:
        tasks = list(manager.peek(MessageState(state), to_limit(options.limit)))
    print_messages(tasks, body=options.body, as_json=options.as_json)


QueueAndId = Annotated[list[str] | None, typer.Argument(metavar="QUEUE ID", help=QUEUE_HELP)]


def show(words: QueueAndId = None, as_json: AsJson = False) -> None:
    """Show a message with its body."""
    tasks = find_messages(words)
    if as_json:
        print_json([message_to_json(task, body=True) for task in tasks])
        return
    for task in tasks:
        print_facts(islice(describe_message(task, utc_now()), 2), width=11)
        print_result(*format_body(task.body))


def explain(words: QueueAndId = None, body: WithBody = False, as_json: AsJson = False) -> None:
    """Show a message's holder, lease, past attempts and last error."""
    print_descriptions(find_messages(words), body=body, as_json=as_json)


def find_messages(words: Sequence[str] | None) -> "list[MessageInfo]":
    """Return every message with the given id. Raises NotFound if there is none."""
    queue, message_id = parse_queue_and_id(words)
    with open_manager(queue) as manager:
        tasks = manager.find(message_id)
        if not tasks:
            raise NotFound(
                f"there is no message {message_id!r} in {manager.name}: see `holdfast list`; "
                "completed messages are removed by a purge"
            )
    return tasks


def parse_queue_and_id(words: Sequence[str] | None) -> tuple[str, str]:
    """Return the queue and the id. Raises UsageError unless there is exactly one id."""
    queue, rest = split_queue_and_rest(words, min_rest=1)
    if len(rest) != 1:
        raise UsageError(
            f"one ID is needed, got {len(rest)}; write it as in `holdfast explain enrich 4f1c…`"
        )
    return queue, rest[0]
