"""`holdfast status`, `queues` and `top`: the counts, leases and workers of queues."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import AsJson, Queue, Queues, open_manager, resolve_queue
from holdfast.cli.console import (
    info,
    make_console,
    make_table,
    print_either,
    print_list,
    print_table,
    strip_control_characters,
)
from holdfast.cli.errors import ExitCode
from holdfast.cli.live_view import draw_shares, list_states
from holdfast.lease.clock import SYSTEM_CLOCK, utc_now
from holdfast.text import format_count, format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.queue.manager import Holder, MessageInfo, QueueManager, QueueStats
    from holdfast.queue.message import AnyMessage
    from holdfast.queue.watch import LiveLeases, QueueCounts, QueueWatch
    from holdfast.queues.listing import ListedQueue

Every = Annotated[float, "Time between two updates."]

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
        if watch and _can_redraw() and not as_json:
            top([resolve_queue(queue)], every)
        elif watch:
            _repeat(lambda: _print_stats(manager, as_json), every)
        elif as_json:
            _print_stats(manager, as_json)
        else:
            print_table(("state", manager.name), _list_counts(manager.stats()))


def _repeat(show: Callable[[], object], every: float) -> None:
    """Call a function from time to time until Ctrl-C, which is the normal way to end this."""
    try:
        while True:
            show()
            SYSTEM_CLOCK.sleep(max(every, 0.1))
    except KeyboardInterrupt:
        return


def _print_stats(manager: "QueueManager[AnyMessage]", as_json: bool) -> None:
    now, stats = utc_now(), asdict(manager.stats())
    counts = " ".join(f"{name}={count}" for name, count in stats.items() if count is not None)
    line = f"{now:%H:%M:%S} {manager.name} {counts}"
    print_either(as_json, {"queue": manager.name, "at": now, **stats}, line)


def _list_counts(stats: "QueueStats") -> list[tuple[str, str]]:
    counts = {state: getattr(stats, state) for state in _STATES}
    rows = [(state, f"{count:,}") for state, count in counts.items() if count is not None]
    if stats.oldest_ready_seconds is not None:
        rows.append(("oldest ready", format_duration(stats.oldest_ready_seconds)))
    if stats.expired:
        rows.append(("expired leases", f"{stats.expired:,}"))
    if stats.foreign:
        rows.append(("foreign files", f"{stats.foreign:,} (see `holdfast doctor`)"))
    return rows


# -- the live view

_BAR_WIDTH = 16
_DUMB_TERMINALS = ("dumb", "unknown")
_FIRST_WAIT_SECONDS = 10.0
_MIN_ROWS = 3  # of each queue
_LINES_BESIDE_ROWS = 10  # title, counts and headings of a queue
_STYLES = {"held": "green", "stalled": "yellow", "at risk": "yellow", "expired": "red"}
_HEADINGS = (
    "message",
    "worker",
    "attempt",
    "held for",
    "progress",
    "redelivered if it died now",
)
# In a narrow terminal the time that is left must stay readable, and ids may be long.
_WIDTHS = ((8, 36), (4, 30), (None, None), (None, None), (8, None), (12, None))


def top(queues: Queues = None, every: Every = 1.0) -> None:
    """Show the leases and workers of queues in the terminal, until Ctrl-C."""
    from holdfast.queue.watch import QueueWatch

    with ExitStack() as at_the_end:
        watches: list[QueueWatch] = []
        for url in queues or [resolve_queue()]:
            watches.append(QueueWatch(url, partial(open_manager, url)))
            at_the_end.callback(watches[-1].close)
        if _can_redraw():
            _watch(watches, every)
        else:
            _print_leases(watches)


def _can_redraw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") not in _DUMB_TERMINALS


def _watch(watches: "Sequence[QueueWatch]", every: float) -> None:
    from rich.console import Group
    from rich.live import Live

    console = make_console()

    def draw() -> None:
        # A terminal does not scroll while it is redrawn, and may be resized.
        height = console.size.height // len(watches)
        rows = max(_MIN_ROWS, height - _LINES_BESIDE_ROWS)
        views = [_render(watch, max(every, 0.1), rows) for watch in watches]
        live.update(Group(*views), refresh=True)

    with Live(console=console, auto_refresh=False, screen=True) as live:
        _repeat(draw, every)


def _print_leases(watches: "Sequence[QueueWatch]") -> None:
    """Print the leases of all queues as a table, for a pipe or a terminal that cannot redraw.

    Raises the first problem.
    """
    rows: list[Sequence[str]] = []
    for watch in watches:
        watch.get_queue()  # raises what keeps it from being read
        live = watch.live.get(_FIRST_WAIT_SECONDS)
        if live is not None:
            rows += ([watch.name, *_to_row(*lease, live.at)] for lease in _list_holders(live))
    print_table(("queue", *_HEADINGS), rows)


def _list_holders(live: "LiveLeases") -> "list[tuple[MessageInfo, Holder]]":
    return [(each, each.holder) for each in live.leases or () if each.holder is not None]


def _to_row(message: "MessageInfo", holder: "Holder", now: datetime) -> tuple[str, ...]:
    held = max(0.0, (now - holder.timestamp).total_seconds())
    return (
        message.id,
        holder.worker_id,
        str(holder.attempt),
        format_duration(held),
        _format_beat(holder, now),
        _format_left(holder, now),
    )


def _format_left(holder: "Holder", now: datetime) -> str:
    from holdfast.queue.watch import judge_lease

    left = (holder.expires_at - now).total_seconds()
    if left <= 0:
        return f"ended {format_duration(-left)} ago, waits for a worker"
    health = judge_lease(holder, now).value
    return format_duration(left) + ("" if health == "held" else f", {health}")


def _format_beat(holder: "Holder", now: datetime) -> str:
    texts = []
    if holder.progress is not None:
        is_share = 0 <= holder.progress <= 1
        texts.append(f"{holder.progress:.0%}" if is_share else f"{holder.progress:,g}")
    if holder.beat_at is not None:
        since = max(0.0, (now - holder.beat_at).total_seconds())
        texts.append(f"beat {format_duration(since)} ago")
    return ", ".join(texts) or "unknown"


def _render(watch: "QueueWatch", every: float, max_rows: int) -> "RenderableType":
    """Return what is known of a queue, as rich draws it."""
    from rich.console import Group
    from rich.text import Text

    from holdfast.queue.watch import judge_activity

    live, counts = watch.live.get(every), watch.counts.get(every)
    activity = judge_activity(live).value
    title = Text(strip_control_characters(watch.name), style="bold").append(
        f"  {activity if activity != 'unknown' else ''}", style="dim"
    )
    problem = (counts.problem if counts else "") or (live.problem if live else "")
    if problem:
        return Group(title, Text(strip_control_characters(problem), style="red"), "")
    return Group(title, *_render_counts(counts), *_render_live(live, max_rows), "")


def _render_counts(counts: "QueueCounts | None") -> "Iterator[RenderableType]":
    from rich.text import Text

    if counts is None or counts.stats is None:
        yield Text("counting…", style="dim")
        return
    yield from draw_shares(list_states(counts.stats))
    if counts.per_minute is not None:
        yield Text(f"{counts.per_minute:,.1f} completed per minute", style="dim")


def _render_live(live: "LiveLeases | None", max_rows: int) -> "Iterator[RenderableType]":
    from rich.text import Text

    from holdfast.queue.watch import is_polling, judge_lease

    if live is None or live.leases is None:
        text = "reading…" if live is None else "this kind of queue does not list its leases"
        yield Text(text, style="dim")
        return
    if live.workers is not None:
        polling = sum(is_polling(worker, live.at) for worker in live.workers)
        yield Text(f"{format_count(polling, 'worker')} seen in 30 s", style="dim")
    table = make_table()
    for heading, (min_width, max_width) in zip(_HEADINGS, _WIDTHS, strict=True):
        table.add_column(
            heading,
            no_wrap=True,
            overflow="ellipsis",
            min_width=min_width,
            max_width=max_width,
        )
    for message, holder in _list_holders(live)[:max_rows]:
        *cells, left = map(strip_control_characters, _to_row(message, holder, live.at))
        style = _STYLES[judge_lease(holder, live.at).value]
        bar = Text(f"{left} ").append(_draw_bar(holder, live.at), style=style)
        table.add_row(*map(Text, cells), bar)
    if live.leases:
        yield table
    hidden = len(live.leases) - max_rows
    if hidden > 0:
        yield Text(f"and {hidden:,} more", style="dim")


def _draw_bar(holder: "Holder", now: datetime) -> str:
    whole = holder.lease_seconds or (holder.expires_at - holder.timestamp).total_seconds()
    left = max(0.0, (holder.expires_at - now).total_seconds())
    cells = min(_BAR_WIDTH, round(_BAR_WIDTH * left / whole)) if whole > 0 else 0
    return "━" * cells + "╌" * (_BAR_WIDTH - cells)
