"""The maintenance commands `cancel`, `purge`, `dead redrive` and `dead drop`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast.cli.arguments import (
    AsJson,
    Queue,
    QueueAndId,
    Yes,
    make_duration_option,
    open_manager,
    split_queue_and_rest,
)
from holdfast.cli.console import (
    confirm,
    print_either,
    strip_control_characters,
)
from holdfast.cli.errors import NotFound, UsageError
from holdfast.cli.ids import complete_message_ids
from holdfast.text import format_count


@dataclass(frozen=True, slots=True)
class _IdKind:
    """What the ids of a command name, the command that shows them, and their states."""

    thing: str
    shown_by: str
    states: tuple[str, ...]


_DEAD_LETTER = _IdKind("dead letter", "holdfast dead list", ("failed",))
_LIVE_MESSAGE = _IdKind("waiting or leased message", "holdfast list", ("pending", "leased"))


def cancel(words: QueueAndId = None, as_json: AsJson = False) -> None:
    """Make waiting or running messages dead letters, and tell their handlers."""
    queue, ids = _parse_ids(words, _LIVE_MESSAGE)
    with open_manager(queue) as manager:
        ids = complete_message_ids(manager, ids, _LIVE_MESSAGE.states)
        _apply_to_each("cancelled", ids, manager.cancel, _LIVE_MESSAGE, as_json)


def purge(
    queue: Queue = None,
    *,
    older_than: Annotated[
        float,
        make_duration_option("Remove messages completed longer ago than this."),
    ],
    as_json: AsJson = False,
) -> None:
    """Remove completed messages, and files that killed processes left behind."""
    with open_manager(queue) as manager:
        purged = manager.purge(older_than)
    print_either(as_json, {"purged": purged}, f"purged {purged:,}")


# -- dead letters


def redrive(
    words: QueueAndId = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Redrive all dead letters.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into the queue and count their attempts from 0 again."""
    from holdfast.cli.live_view import ProgressMeter

    queue, ids = _parse_choice(words, everything)
    with open_manager(queue) as manager:
        if everything:
            with ProgressMeter("redriving", manager.stats().failed) as meter:
                redriven = manager.redrive(on_progress=meter.advance)
            _print_count("redriven", redriven, [], as_json)
            return
        ids = complete_message_ids(manager, ids, _DEAD_LETTER.states)
        _apply_to_each("redriven", ids, manager.redrive, _DEAD_LETTER, as_json)


def drop(words: QueueAndId = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove dead letters permanently."""
    queue, ids = _parse_ids(words, _DEAD_LETTER)
    with open_manager(queue) as manager:
        ids = complete_message_ids(manager, ids, _DEAD_LETTER.states)
        if not yes:
            letters = format_count(len(ids), "dead letter")
            queue = strip_control_characters(manager.name)
            confirm(f"Permanently drop {letters} of {queue}?")
        _apply_to_each("dropped", ids, manager.drop, _DEAD_LETTER, as_json)


def _parse_choice(words: Sequence[str] | None, everything: bool) -> tuple[str, list[str]]:
    if not everything:
        return _parse_ids(words, _DEAD_LETTER, ", or --all")
    queue, ids = split_queue_and_rest(words, min_rest=0)
    if ids:
        raise UsageError("ids and --all cannot be combined; give one of them")
    return queue, ids


# -- ids on the command line


def _parse_ids(
    words: Sequence[str] | None, kind: _IdKind, alternative: str = ""
) -> tuple[str, list[str]]:
    """Return the queue and the ids of messages of that kind, of which there must be one."""
    queue, ids = split_queue_and_rest(words, min_rest=1)
    if not ids:
        raise UsageError(
            f"no id is given: give the ids of {kind.thing}s, which `{kind.shown_by}` shows"
            f"{alternative}"
        )
    return queue, ids


def _apply_to_each(
    verb: str,
    ids: list[str],
    action: Callable[[str], int],
    kind: _IdKind,
    as_json: bool,
) -> None:
    """Apply the action to each id, and print the total. Raises NotFound for the others."""
    counts = {message_id: action(message_id) for message_id in ids}
    missing = [message_id for message_id, count in counts.items() if not count]
    _print_count(verb, sum(counts.values()), missing, as_json)
    if missing:
        ids_text = ", ".join(map(repr, missing))
        raise NotFound(f"found no {kind.thing} {ids_text}: see `{kind.shown_by}`")


def _print_count(verb: str, count: int, missing: list[str], as_json: bool) -> None:
    print_either(as_json, {verb: count, "missing": missing}, f"{verb} {count:,}")
