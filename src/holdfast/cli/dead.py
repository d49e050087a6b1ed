"""`holdfast dead`: list, show, redrive or drop dead letters."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import (
    QUEUE_HELP,
    AsJson,
    Queue,
    is_service,
    open_manager,
    split_queue_and_rest,
    to_limit,
)
from holdfast.cli.console import (
    confirm_drop,
    print_json,
    print_result,
    strip_control_characters,
)
from holdfast.cli.errors import NotFound, UsageError
from holdfast.cli.inspect import ListOptions, QueueAndId, WithBody, parse_queue_and_id
from holdfast.cli.messages import print_descriptions, print_messages
from holdfast.cli.progress_meter import ProgressMeter

if TYPE_CHECKING:
    from holdfast.core.queue.manager import MessageInfo, QueueManager
    from holdfast.core.queue.message import AnyMessage

Ids = Annotated[list[str] | None, typer.Argument(metavar="QUEUE ID", help=QUEUE_HELP)]


def list_(queue: Queue = None, *, options: ListOptions) -> None:
    """List dead letters with their reasons."""
    with open_manager(queue) as manager:
        letters = list(manager.dead_letters(to_limit(options.limit)))
    print_messages(letters, body=options.body, as_json=options.as_json)


def show(words: QueueAndId = None, body: WithBody = False, as_json: AsJson = False) -> None:
    """Show a dead letter with its reason, its attempts and the last traceback."""
    queue, message_id = parse_queue_and_id(words)
    with open_manager(queue) as manager:
        print_descriptions(_find_dead_letters(manager, message_id), body=body, as_json=as_json)


def _find_dead_letters(
    manager: "QueueManager[AnyMessage]", message_id: str
) -> "list[MessageInfo]":
    """Return the dead letters with an id. Raises NotFound if there is none."""
    remedy = "see `holdfast dead list`"
    if is_service(manager):
        tasks = [task for task in manager.dead_letters(to_limit(0)) if task.id == message_id]
    else:
        tasks = manager.find(message_id)
        if tasks:
            remedy = "`holdfast explain` shows its state"
    letters = [task for task in tasks if task.state.value == "failed"]
    if not letters:
        raise NotFound(f"there is no dead letter {message_id!r} in {manager.name}: {remedy}")
    return letters


def redrive(
    words: Ids = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Redrive all dead letters.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into the queue and count their attempts from 0 again."""
    queue, ids = _parse_choice(words, everything)
    with open_manager(queue) as manager:
        if everything:
            with ProgressMeter("redriving", manager.stats().failed) as meter:
                redriven = manager.redrive(on_progress=meter.advance)
            _report("redriven", redriven, [], as_json)
            return
        _apply_to_each("redriven", ids, manager.redrive, as_json)


def drop(
    words: Ids = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters permanently."""
    queue, ids = _parse_choice(words, everything=False)
    with open_manager(queue) as manager:
        if not yes:
            letters = "this dead letter" if len(ids) == 1 else f"these {len(ids)} dead letters"
            queue = strip_control_characters(manager.name)
            confirm_drop(f"Permanently drop {letters} of {queue}?")
        _apply_to_each("dropped", ids, manager.drop, as_json)


def _parse_choice(words: Sequence[str] | None, everything: bool) -> tuple[str, list[str]]:
    queue, ids = split_queue_and_rest(words, min_rest=0 if everything else 1)
    if everything and ids:
        raise UsageError("ids and --all cannot be combined; give one of them")
    if not everything and not ids:
        raise UsageError(
            "no id is given: give the ids of dead letters, which `holdfast dead list` shows"
        )
    return queue, ids


def _apply_to_each(
    verb: str, ids: list[str], action: Callable[[str], int], as_json: bool
) -> None:
    counts = {message_id: action(message_id) for message_id in ids}
    missing = [message_id for message_id, count in counts.items() if not count]
    _report(verb, sum(counts.values()), missing, as_json)


def _report(verb: str, count: int, missing: list[str], as_json: bool) -> None:
    if as_json:
        print_json({verb: count, "missing": missing})
    else:
        print_result(f"{verb} {count:,}")
    if missing:
        raise NotFound(
            f"there is no dead letter {', '.join(map(repr, missing))}: see `holdfast dead list`"
        )
