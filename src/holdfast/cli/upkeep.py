"""Keeping a queue in order: `purge` and `doctor`."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson, Queue, default_queue, opened
from holdfast.cli.console import answer, answer_json, clean
from holdfast.cli.durations import seconds
from holdfast.cli.failures import ExitCode

if TYPE_CHECKING:
    from holdfast.core.findings import Finding

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def purge(
    queue: Queue = None,
    *,
    older_than: Annotated[
        float,
        typer.Option(
            parser=seconds, metavar="DURATION", help="Completed longer ago than that."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Remove completed messages, and what killed processes left behind."""
    with opened(queue) as manager:
        purged = manager.purge(older_than)
    answer_json({"purged": purged}) if as_json else answer(f"purged {purged:,}")


def doctor(queue: Queue = None, as_json: AsJson = False) -> None:
    """Look for what will hurt: in the queue's folder, or in an SQS queue's settings."""
    from holdfast.bootstrap import examine

    answer_findings(examine(default_queue(queue)), as_json)


def answer_findings(findings: "Iterable[Finding]", as_json: bool) -> None:
    """Shown, or as JSON; the command ends with 1 when one is a failure."""
    found = list(findings) if as_json else list(_shown(findings))
    if as_json:
        answer_json([{**asdict(one), "level": one.level.value} for one in found])
    if any(one.level.value == "fail" for one in found):
        raise typer.Exit(ExitCode.NO)


def _shown(findings: "Iterable[Finding]") -> "Iterable[Finding]":
    """Each as it is made: the probes take a moment."""
    for one in findings:
        sign, colour = _SIGNS[one.level.value]
        typer.secho(f"{sign} {one.level.value:<5}", fg=colour, nl=False)
        answer(f"{one.check:<14} {clean(one.found)}")
        if one.way_out:
            answer(f"{'':<22} → {clean(one.way_out)}")
        yield one
