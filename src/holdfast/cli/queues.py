"""`holdfast queues`: list the queues of a place with their counts."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import info, print_list, strip_control_characters
from holdfast.cli.errors import ExitCode

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
    print_list(as_json, listed, _to_json, ("queue", *_STATES), _to_row)
    bad = [queue for queue in listed if queue.problem]
    for queue in bad:
        # cleaned as a whole, so that a newline in a name does not make a second line
        info(strip_control_characters(f"holdfast: {queue.url}: {queue.problem}"))
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def _to_json(queue: "ListedQueue") -> dict[str, Any]:
    counts = asdict(queue.stats) if queue.stats else {}
    return {"queue": queue.url, **counts, "problem": queue.problem}


def _to_row(queue: "ListedQueue") -> list[str]:
    counts = [getattr(queue.stats, state, None) for state in _STATES]
    return [queue.url, *("" if count is None else f"{count:,}" for count in counts)]
