"""`holdfast top`: a live view of the leases and workers of queues."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.arguments import Every, Queues, open_manager, resolve_queue
from holdfast.cli.console import (
    draw_table,
    format_rows,
    make_console,
    print_table,
    strip_control_characters,
)
from holdfast.cli.live_view import LiveView, can_redraw, repeat
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
_FIRST_WAIT_SECONDS = 10.0
_MIN_ROWS = 3  # of each queue
_LINES_BESIDE_ROWS = 10  # title, counts and headings of a queue


def top(queues: Queues = None, every: Every = 1.0) -> None:
    """Show the leases and workers of queues in the terminal, until Ctrl-C."""
    with ExitStack() as at_the_end:
        watches: list[QueueWatch] = []
        for url in queues or [resolve_queue()]:
            watches.append(QueueWatch(url, partial(open_manager, url)))
            at_the_end.callback(watches[-1].close)
        if can_redraw():
            _watch(watches, every)
        else:
            _print_leases(watches)


def _watch(watches: Sequence[QueueWatch], every: float) -> None:
    console = make_console()

    def render(hint: str) -> Group:
        # A terminal does not scroll while it is redrawn, and may be resized.
        height = console.size.height // len(watches)
        rows = max(_MIN_ROWS, height - _LINES_BESIDE_ROWS)
        return Group(*(_render(watch.view(max(every, 0.1)), rows) for watch in watches))

    with LiveView(render, screen=True) as view:
        repeat(view.draw, every)


def _print_leases(watches: Sequence[QueueWatch]) -> None:
    """Print the leases of all queues as a table, for a pipe or a terminal that cannot redraw.

    Raises the first problem.
    """
    rows: list[list[str]] = []
    for watch in watches:
        watch.get_queue()  # raises what keeps it from being read
        if (live := watch.live.get(_FIRST_WAIT_SECONDS)) is not None:
            leases = format_rows(live.leases or (), LEASE_FIELDS, live.at)
            rows += ([watch.name, *cells] for cells in leases)
    print_table(("queue", *(field.name for field in LEASE_FIELDS)), rows)


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
