"""`holdfast top`: a live view of the leases and workers of queues."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.arguments import Every, Queues, open_manager, resolve_queue
from holdfast.cli.console import (
    UsageError,
    draw_table,
    make_console,
    strip_control_characters,
)
from holdfast.cli.live_view import LiveView, repeat
from holdfast.queue.columns import LEASE_FIELDS
from holdfast.queue.info import QueueStats
from holdfast.queue.watch import LiveLeases, QueueView, QueueWatch, is_polling
from holdfast.text import format_count

_SHARES_WIDTH = 60
_SHADES = {
    "completed": "green",
    "leased": "yellow",
    "ready": "blue",
    "delayed": "cyan",
    "failed": "red",
}
_MIN_ROWS = 3  # of each queue
_LINES_BESIDE_ROWS = 10  # title, counts and headings of a queue


def top(queues: Queues = None, every: Every = 1.0) -> None:
    """Show the leases and workers of queues in the terminal, until Ctrl-C."""
    if not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        raise UsageError(
            "top needs a terminal that it can redraw; use `holdfast list --state leased`"
        )
    console = make_console()
    with ExitStack() as at_the_end:
        watches = [
            QueueWatch(url, partial(open_manager, url)) for url in queues or [resolve_queue()]
        ]
        for watch in watches:
            at_the_end.callback(watch.close)

        def render(hint: str) -> Group:
            # A terminal does not scroll while it is redrawn, and may be resized.
            height = console.size.height // len(watches)
            rows = max(_MIN_ROWS, height - _LINES_BESIDE_ROWS)
            return Group(*(_render(watch.view(max(every, 0.1)), rows) for watch in watches))

        repeat(at_the_end.enter_context(LiveView(render, screen=True)).draw, every)


def _render(view: QueueView, max_rows: int) -> RenderableType:
    """Return what is known of a queue, as rich draws it."""
    activity = view.activity.value
    title = Text(strip_control_characters(view.name), style="bold").append(
        f"  {activity if activity != 'unknown' else ''}", style="dim"
    )
    if view.problem:
        return Group(title, Text(strip_control_characters(view.problem), style="red"), "")
    return Group(title, *_render_counts(view), *_render_live(view.live, max_rows), "")


def _render_counts(view: QueueView) -> Iterator[RenderableType]:
    if view.counts is None or view.counts.stats is None:
        yield Text("counting…", style="dim")
        return
    yield from _draw_shares(view.counts.stats)
    if view.counts.per_minute is not None:
        yield Text(f"{view.counts.per_minute:,.1f} completed per minute", style="dim")


def _render_live(live: LiveLeases | None, max_rows: int) -> Iterator[RenderableType]:
    if live is None or live.leases is None:
        text = "reading…" if live is None else "this kind of queue does not list its leases"
        yield Text(text, style="dim")
        return
    if live.workers is not None:
        polling = sum(is_polling(worker, live.at) for worker in live.workers)
        yield Text(f"{format_count(polling, 'worker')} seen in 30 s", style="dim")
    if live.leases:
        yield draw_table(live.leases[:max_rows], LEASE_FIELDS, live.at)
    hidden = len(live.leases) - max_rows
    if hidden > 0:
        yield Text(f"and {hidden:,} more", style="dim")


def _draw_shares(stats: QueueStats) -> list[Text]:
    """Return a bar with the share of each state that the queue counts, and a legend."""
    bar, legend = Text(), Text()
    counts = {state: getattr(stats, state) for state in _SHADES}
    total = sum(count or 0 for count in counts.values())
    for state, count in counts.items():
        if count is not None:
            legend.append(f"{state} ", style=_SHADES[state]).append(f"{count:,}   ")
            cells = -(-count * _SHARES_WIDTH // max(1, total))  # at least one
            bar.append("━" * cells, style=_SHADES[state])
    return [bar if total else Text("━" * _SHARES_WIDTH, style="dim"), legend]
