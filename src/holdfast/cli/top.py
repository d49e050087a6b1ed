"""`holdfast top`: the live view of queues in a terminal, for use over ssh."""

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.arguments import make_duration_option, open_manager, resolve_queue
from holdfast.cli.console import make_console, print_table, strip_control_characters
from holdfast.cli.live_view import draw_shares, list_states
from holdfast.cli.web import Queues
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.queue.watch import (
    LeaseHealth,
    LiveLeases,
    QueueCounts,
    QueueWatch,
    is_polling,
    judge_activity,
    judge_lease,
)
from holdfast.text import format_count, format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.queue.manager import Holder, MessageInfo

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
_STYLES = {
    LeaseHealth.HELD: "green",
    LeaseHealth.STALLED: "yellow",
    LeaseHealth.AT_RISK: "yellow",
    LeaseHealth.EXPIRED: "red",
}
_BAR_WIDTH = 16
_DUMB_TERMINALS = ("dumb", "unknown")
_FIRST_WAIT_SECONDS = 10.0
_MIN_ROWS = 3  # of each queue
_LINES_BESIDE_ROWS = 10  # title, counts and headings of a queue


def top(
    queues: Queues = None,
    every: Annotated[float, make_duration_option("Time between two updates.")] = 1.0,
) -> None:
    """Show the leases and workers of queues in the terminal, until Ctrl-C."""
    watches = [
        QueueWatch(url, partial(open_manager, url)) for url in queues or [resolve_queue()]
    ]
    try:
        if sys.stdout.isatty() and os.environ.get("TERM") not in _DUMB_TERMINALS:
            _watch(watches, max(every, 0.1))
        else:
            _print_once(watches)
    except KeyboardInterrupt:  # the normal way to end this
        return
    finally:
        for watch in watches:
            watch.close()


def _watch(watches: Sequence[QueueWatch], every: float) -> None:
    from rich.console import Group
    from rich.live import Live

    console = make_console()
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            # A terminal does not scroll while it is redrawn, and may be resized.
            height = console.size.height // len(watches)
            rows = max(_MIN_ROWS, height - _LINES_BESIDE_ROWS)
            views = [_render(watch, every, rows) for watch in watches]
            live.update(Group(*views), refresh=True)
            SYSTEM_CLOCK.sleep(every)


def _print_once(watches: Sequence[QueueWatch]) -> None:
    """Print the leases of all queues as a table, for a pipe or a terminal that cannot redraw.

    Raises the first problem.
    """
    rows = []
    for watch in watches:
        watch.get_queue()  # raises what keeps it from being read
        live = watch.live.get(_FIRST_WAIT_SECONDS)
        for message, holder in _list_holders(live):
            assert live is not None
            rows.append((watch.name, *_to_row(message, holder, live.at)))
    print_table(("queue", *_HEADINGS), rows)


def _list_holders(live: LiveLeases | None) -> "Iterator[tuple[MessageInfo, Holder]]":
    for message in (live.leases if live else None) or ():
        if message.holder is not None:
            yield message, message.holder


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
    left = (holder.expires_at - now).total_seconds()
    if left <= 0:
        return f"ended {format_duration(-left)} ago, waits for a worker"
    health = judge_lease(holder, now)
    note = "" if health is LeaseHealth.HELD else f", {health.value}"
    return format_duration(left) + note


def _format_beat(holder: "Holder", now: datetime) -> str:
    texts = []
    if holder.progress is not None:
        is_share = 0 <= holder.progress <= 1
        texts.append(f"{holder.progress:.0%}" if is_share else f"{holder.progress:,g}")
    if holder.beat_at is not None:
        since = max(0.0, (now - holder.beat_at).total_seconds())
        texts.append(f"beat {format_duration(since)} ago")
    return ", ".join(texts) or "unknown"


# -- for a terminal


def _render(watch: QueueWatch, every: float, max_rows: int) -> "RenderableType":
    """Return what is known of a queue, as rich draws it."""
    from rich.console import Group
    from rich.text import Text

    live, counts = watch.live.get(every), watch.counts.get(every)
    activity = judge_activity(live).value
    title = Text(strip_control_characters(watch.name), style="bold").append(
        f"  {activity if activity != 'unknown' else ''}", style="dim"
    )
    problem = (counts.problem if counts else "") or (live.problem if live else "")
    if problem:
        return Group(title, Text(strip_control_characters(problem), style="red"), "")
    return Group(title, *_render_counts(counts), *_render_live(live, max_rows), "")


def _render_counts(counts: QueueCounts | None) -> "Iterator[RenderableType]":
    from rich.text import Text

    if counts is None or counts.stats is None:
        yield Text("counting…", style="dim")
        return
    yield from draw_shares(list_states(counts.stats))
    if counts.per_minute is not None:
        yield Text(f"{counts.per_minute:,.1f} completed per minute", style="dim")


def _render_live(live: LiveLeases | None, max_rows: int) -> "Iterator[RenderableType]":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if live is None or live.leases is None:
        text = "reading…" if live is None else "this kind of queue does not list its leases"
        yield Text(text, style="dim")
        return
    if live.workers is not None:
        polling = sum(is_polling(worker, live.at) for worker in live.workers)
        yield Text(f"{format_count(polling, 'worker')} seen in 30 s", style="dim")
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading, (min_width, max_width) in zip(_HEADINGS, _WIDTHS, strict=True):
        table.add_column(
            heading,
            no_wrap=True,
            overflow="ellipsis",
            min_width=min_width,
            max_width=max_width,
        )
    for message, holder in list(_list_holders(live))[:max_rows]:
        *cells, left = map(strip_control_characters, _to_row(message, holder, live.at))
        style = _STYLES[judge_lease(holder, live.at)]
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
