"""`holdfast status` and `queues`: how many messages queues have, by their state."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import AsJson, Every, Queue, open_manager, resolve_queue
from holdfast.cli.console import (
    ExitCode,
    info,
    print_either,
    print_list,
    print_table,
    strip_control_characters,
)
from holdfast.cli.live_view import can_redraw, repeat
from holdfast.lease.clock import utc_now
from holdfast.queue.info import QueueStats
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage
from holdfast.text import format_duration

if TYPE_CHECKING:
    from holdfast.queues.listing import ListedQueue

_STATES = ("ready", "delayed", "leased", "completed", "failed")


def queues(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="A data folder (by default that of HOLDFAST_DATA_DIR), a database "
            "(sqlite:work.db), or an AWS account (sqs:, or sqs:PREFIX).",
            show_default=False,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the queues of a data folder, a database or an AWS account."""
    from holdfast.queues.listing import list_queues

    listed = list(list_queues(place))
    columns: dict[str, Callable[[ListedQueue], str]] = {"queue": lambda queue: queue.url}
    columns |= {state: partial(_format_state_count, state) for state in _STATES}
    print_list(as_json, listed, _queue_to_json, columns)
    bad = [queue for queue in listed if queue.problem]
    for queue in bad:
        # cleaned as a whole, so that a newline in a name does not make a second line
        info(strip_control_characters(f"holdfast: {queue.url}: {queue.problem}"))
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def _queue_to_json(queue: "ListedQueue") -> dict[str, Any]:
    counts = asdict(queue.stats) if queue.stats else {}
    return {"queue": queue.url, **counts, "problem": queue.problem}


def _format_state_count(state: str, queue: "ListedQueue") -> str:
    count = getattr(queue.stats, state, None)
    return "" if count is None else f"{count:,}"


def status(
    queue: Queue = None,
    watch: Annotated[bool, "Repeat until Ctrl-C."] = False,
    every: Every = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show how many messages are ready, leased, completed and failed."""
    with open_manager(queue) as manager:
        if watch and can_redraw() and not as_json:
            from holdfast.cli.top import top

            top([resolve_queue(queue)], every)
        elif watch:
            repeat(lambda: _print_stats(manager, as_json), every)
        elif as_json:
            _print_stats(manager, as_json)
        else:
            print_table(("state", manager.name), _list_counts(manager.stats()))


def _print_stats(manager: QueueManager[AnyMessage], as_json: bool) -> None:
    now, stats = utc_now(), asdict(manager.stats())
    counts = " ".join(f"{name}={count}" for name, count in stats.items() if count is not None)
    line = f"{now:%H:%M:%S} {manager.name} {counts}"
    print_either(as_json, {"queue": manager.name, "at": now, **stats}, line)


def _list_counts(stats: QueueStats) -> list[tuple[str, str]]:
    counts = {state: getattr(stats, state) for state in _STATES}
    rows = [(state, f"{count:,}") for state, count in counts.items() if count is not None]
    if stats.oldest_ready_seconds is not None:
        rows.append(("oldest ready", format_duration(stats.oldest_ready_seconds)))
    if stats.expired:
        rows.append(("expired leases", f"{stats.expired:,}"))
    if stats.foreign:
        rows.append(("foreign files", f"{stats.foreign:,} (see `holdfast doctor`)"))
    return rows
