"""Keeping a queue in order: `purge` and `doctor`."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson, Queue, default_queue, opened
from holdfast.cli.console import print_json, print_result, strip_control_characters
from holdfast.cli.durations import seconds
from holdfast.cli.errors import ExitCode

if TYPE_CHECKING:
    from holdfast.core.checks import CheckResult

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
    print_json({"purged": purged}) if as_json else print_result(f"purged {purged:,}")


def doctor(queue: Queue = None, as_json: AsJson = False) -> None:
    """Look for what will hurt: in the queue's folder, or in an SQS queue's settings."""
    from holdfast.bootstrap import examine

    answer_findings(examine(default_queue(queue)), as_json)


def answer_findings(findings: "Iterable[CheckResult]", as_json: bool) -> None:
    """Shown, or as JSON; the command ends with 1 when one is a failure."""
    found = list(findings) if as_json else list(_shown(findings))
    if as_json:
        print_json([{**asdict(one), "level": one.level.value} for one in found])
    if any(one.level.value == "fail" for one in found):
        raise typer.Exit(ExitCode.NO)


def _shown(findings: "Iterable[CheckResult]") -> "Iterable[CheckResult]":
    """Each as it is made: the probes take a moment."""
    for one in findings:
        sign, colour = _SIGNS[one.level.value]
        typer.secho(f"{sign} {one.level.value:<5}", fg=colour, nl=False)
        print_result(f"{one.check:<14} {strip_control_characters(one.found)}")
        if one.remedy:
            print_result(f"{'':<22} → {strip_control_characters(one.remedy)}")
        yield one
