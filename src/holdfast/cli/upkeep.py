"""Keeping a queue in order: `purge` and `doctor`."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson, Queue, default_queue, opened
from holdfast.cli.console import answer, answer_json, clean, is_terminal, terminal
from holdfast.cli.durations import seconds
from holdfast.cli.failures import ExitCode

if TYPE_CHECKING:
    from holdfast.bootstrap import Finding

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def purge(
    queue: Queue = None,
    *,
    older_than: Annotated[
        float,
        typer.Option(parser=seconds, metavar="DURATION", help="Completed longer ago than that."),
    ],
    as_json: AsJson = False,
) -> None:
    """Remove completed messages, and what killed processes left behind."""
    with opened(queue) as manager:
        purged = manager.purge(older_than)
    answer_json({"purged": purged}) if as_json else answer(f"purged {purged:,}")
