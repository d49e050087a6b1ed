"""`holdfast status` and `queues`: how many messages queues have, by their state."""

from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import AsJson, Queue, open_manager
from holdfast.cli.console import (
    ExitCode,
    info,
    print_json,
    print_list,
    print_table,
    strip_control_characters,
)
from holdfast.lease.clock import utc_now
from holdfast.listing import Cell, Field
from holdfast.queue.info import QueueStats
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
    fields: list[Field[ListedQueue]] = [Field("queue", lambda queue, now: queue.url)]
    fields += [Field(state, partial(_get_count, state)) for state in _STATES]
    print_list(as_json, listed, _queue_to_json, fields)
    bad = [queue for queue in listed if queue.problem]
    for queue in bad:
        # cleaned as a whole, so that a newline in a name does not make a second line
        info(strip_control_characters(f"holdfast: {queue.url}: {queue.problem}"))
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def _queue_to_json(queue: "ListedQueue") -> dict[str, Any]:
    counts = asdict(queue.stats) if queue.stats else {}
    return {"queue": queue.url, **counts, "problem": queue.problem}


def _get_count(state: str, queue: "ListedQueue", now: datetime) -> Cell:
    count = getattr(queue.stats, state, None)
    return "" if count is None else count


def status(queue: Queue = None, as_json: AsJson = False) -> None:
    """Show how many messages are ready, leased, completed and failed."""
    with open_manager(queue) as manager:
        name, stats = manager.name, manager.stats()
    if as_json:
        print_json({"queue": name, "at": utc_now(), **asdict(stats)})
    else:
        print_table(("state", name), _list_counts(stats))


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
