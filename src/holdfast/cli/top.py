"""`holdfast top`: a live view of the leases and workers of queues."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.arguments import Every, Queues, open_manager, resolve_queue
from holdfast.cli.console import make_console, make_table, print_table, strip_control_characters
from holdfast.cli.live_view import LiveView, can_redraw, repeat
from holdfast.queue.info import Holder, QueueStats
from holdfast.queue.watch import (
    LiveLeases,
    QueueCounts,
    QueueWatch,
    is_polling,
    judge_activity,
    judge_lease,
)
from holdfast.text import format_age, format_count, format_duration

_BAR_WIDTH = 16
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
_STYLES = {"held": "green", "stalled": "yellow", "at risk": "yellow", "expired": "red"}


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
        return Group(*(_render(watch, max(every, 0.1), rows) for watch in watches))

    with LiveView(render, screen=True) as view:
        repeat(view.draw, every)


def _print_leases(watches: Sequence[QueueWatch]) -> None:
    """Print the leases of all queues as a table, for a pipe or a terminal that cannot redraw.

    Raises the first problem.
    """
    rows: list[Sequence[str]] = []
    for watch in watches:
        watch.get_queue()  # raises what keeps it from being read
        if (live := watch.live.get(_FIRST_WAIT_SECONDS)) is not None:
            rows += ([watch.name, *cells] for _, cells in _list_leases(live))
    print_table(("queue", *_COLUMNS), rows)


def _list_leases(live: LiveLeases) -> list[tuple[Holder, list[str]]]:
    """Return the holder of each lease, and its cells."""
    held = [(each, each.holder) for each in live.leases or () if each.holder is not None]
    cells = [to_cell for to_cell, _, _ in _COLUMNS.values()]
    return [(holder, [to_cell(m, holder, live.at) for to_cell in cells]) for m, holder in held]


def _format_left(holder: Holder, now: datetime) -> str:
    left = (holder.expires_at - now).total_seconds()
    if left <= 0:
        return f"ended {format_duration(-left)} ago, waits for a worker"
    health = judge_lease(holder, now).value
    return format_duration(left) + ("" if health == "held" else f", {health}")


def _format_since(then: datetime, now: datetime) -> str:
    return format_age(then.timestamp(), now.timestamp())


def _format_beat(holder: Holder, now: datetime) -> str:
    texts = []
    if holder.progress is not None:
        is_share = 0 <= holder.progress <= 1
        texts.append(f"{holder.progress:.0%}" if is_share else f"{holder.progress:,g}")
    if holder.beat_at is not None:
        texts.append(f"beat {_format_since(holder.beat_at, now)} ago")
    return ", ".join(texts) or "unknown"


# The cells of a lease, and their smallest and largest width. In a narrow terminal the time that
# is left must stay readable, and ids may be long.
_COLUMNS: dict[str, tuple[Callable[..., str], int | None, int | None]] = {
    "message": (lambda message, holder, now: message.id, 8, 36),
    "worker": (lambda message, holder, now: holder.worker_id, 4, 30),
    "attempt": (lambda message, holder, now: str(holder.attempt), None, None),
    "held for": (
        lambda message, holder, now: _format_since(holder.timestamp, now),
        None,
        None,
    ),
    "progress": (lambda message, holder, now: _format_beat(holder, now), 8, None),
    "redelivered if it died now": (
        lambda message, holder, now: _format_left(holder, now),
        12,
        None,
    ),
}


def _render(watch: QueueWatch, every: float, max_rows: int) -> RenderableType:
    """Return what is known of a queue, as rich draws it."""
    live, counts = watch.live.get(every), watch.counts.get(every)
    activity = judge_activity(live).value
    title = Text(strip_control_characters(watch.name), style="bold").append(
        f"  {activity if activity != 'unknown' else ''}", style="dim"
    )
    problem = (counts.problem if counts else "") or (live.problem if live else "")
    if problem:
        return Group(title, Text(strip_control_characters(problem), style="red"), "")
    return Group(title, *_render_counts(counts), *_render_live(live, max_rows), "")


def _render_counts(counts: QueueCounts | None) -> Iterator[RenderableType]:
    if counts is None or counts.stats is None:
        yield Text("counting…", style="dim")
        return
    yield from _draw_shares(counts.stats)
    if counts.per_minute is not None:
        yield Text(f"{counts.per_minute:,.1f} completed per minute", style="dim")


def _render_live(live: LiveLeases | None, max_rows: int) -> Iterator[RenderableType]:
    if live is None or live.leases is None:
        text = "reading…" if live is None else "this kind of queue does not list its leases"
        yield Text(text, style="dim")
        return
    if live.workers is not None:
        polling = sum(is_polling(worker, live.at) for worker in live.workers)
        yield Text(f"{format_count(polling, 'worker')} seen in 30 s", style="dim")
    table = make_table()
    for heading, (_, smallest, largest) in _COLUMNS.items():
        table.add_column(
            heading, no_wrap=True, overflow="ellipsis", min_width=smallest, max_width=largest
        )
    for holder, cells in _list_leases(live)[:max_rows]:
        style = _STYLES[judge_lease(holder, live.at).value]
        *others, left = map(Text, map(strip_control_characters, cells))
        table.add_row(*others, left.append(f" {_draw_bar(holder, live.at)}", style=style))
    if live.leases:
        yield table
    hidden = len(live.leases) - max_rows
    if hidden > 0:
        yield Text(f"and {hidden:,} more", style="dim")


def _draw_bar(holder: Holder, now: datetime) -> str:
    whole = holder.lease_seconds or (holder.expires_at - holder.timestamp).total_seconds()
    left = max(0.0, (holder.expires_at - now).total_seconds())
    cells = min(_BAR_WIDTH, round(_BAR_WIDTH * left / whole)) if whole > 0 else 0
    return "━" * cells + "╌" * (_BAR_WIDTH - cells)


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
