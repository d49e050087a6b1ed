"""`holdfast dead`: look at dead letters, send them round again, or drop them."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import (
    QUEUE_HELP,
    AsJson,
    Limit,
    Queue,
    all_if_zero,
    is_service,
    opened,
    queue_and_rest,
)
from holdfast.cli.console import info, print_json, print_result, strip_control_characters
from holdfast.cli.errors import NotFound, UsageError
from holdfast.cli.inspect import WithBody, Words, answer_stories, answer_tasks, one_id
from holdfast.cli.progress import Meter

if TYPE_CHECKING:
    from holdfast.core.queue.manager import MessageInfo, QueueManager
    from holdfast.core.queue.message import AnyMessage

app = typer.Typer(no_args_is_help=True, help="Dead letters: list, show, redrive, drop.")

Ids = Annotated[list[str] | None, typer.Argument(metavar="QUEUE ID", help=QUEUE_HELP)]


@app.command("list")
def list_(
    queue: Queue = None, limit: Limit = 100, body: WithBody = False, as_json: AsJson = False
) -> None:
    """Dead letters, each with its reason."""
    with opened(queue) as manager:
        letters = list(manager.dead_letters(all_if_zero(limit)))
    answer_tasks(letters, body=body, as_json=as_json)


@app.command()
def show(words: Words = None, body: WithBody = False, as_json: AsJson = False) -> None:
    """One dead letter: what it died of, its attempts, the last traceback."""
    queue, message_id = one_id(words)
    with opened(queue) as manager:
        answer_stories(_letters(manager, message_id), body=body, as_json=as_json)


def _letters(manager: "QueueManager[AnyMessage]", message_id: str) -> "list[MessageInfo]":
    """The dead letters of one id; there is at least one."""
    remedy = "`holdfast dead list` shows them"
    if is_service(manager):
        tasks = [task for task in manager.dead_letters(all_if_zero(0)) if task.id == message_id]
    else:
        tasks = manager.find(message_id)
        if tasks:
            remedy = "`holdfast explain` tells where it is"
    letters = [task for task in tasks if task.state.value == "failed"]
    if not letters:
        raise NotFound(f"there is no dead letter {message_id!r} in {manager.name}: {remedy}")
    return letters


@app.command()
def redrive(
    words: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back in the queue, their attempts counted from 0 again."""
    queue, ids = _chosen(words, everything)
    with opened(queue) as manager:
        if everything:
            with Meter("redriving", manager.stats().failed) as meter:
                redriven = manager.redrive(on_progress=meter.advance)
            _report("redriven", redriven, [], as_json)
            return
        _each("redriven", ids, manager.redrive, as_json)


@app.command()
def drop(
    words: Ids = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters for good."""
    queue, ids = _chosen(words, everything=False)
    with opened(queue) as manager:
        if not yes:
            _ask(len(ids), manager.name)
        _each("dropped", ids, manager.drop, as_json)


def _chosen(words: Sequence[str] | None, everything: bool) -> tuple[str, list[str]]:
    queue, ids = queue_and_rest(words, wanted=0 if everything else 1)
    if everything and ids:
        raise UsageError("give either ids or --all, not both")
    if not everything and not ids:
        raise UsageError("which ones? Give their ids; `holdfast dead list` shows them")
    return queue, ids


def _ask(count: int, queue: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("dropping is for good: add --yes to do it without being asked")
    what = "this dead letter" if count == 1 else f"these {count} dead letters"
    if not typer.confirm(
        f"Drop {what} of {strip_control_characters(queue)} for good?", err=True
    ):
        info("nothing was dropped")
        raise typer.Exit(1)


def _each(verb: str, ids: list[str], act: Callable[[str], int], as_json: bool) -> None:
    done = {message_id: act(message_id) for message_id in ids}
    missing = [message_id for message_id, count in done.items() if not count]
    _report(verb, sum(done.values()), missing, as_json)


def _report(verb: str, count: int, missing: list[str], as_json: bool) -> None:
    if as_json:
        print_json({verb: count, "missing": missing})
    else:
        print_result(f"{verb} {count:,}")
    if missing:
        raise NotFound(
            f"no dead letter {', '.join(map(repr, missing))}: `holdfast dead list` shows them"
        )
