"""The maintenance commands `cancel`, `purge`, `dead redrive` and `dead drop`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.cli.arguments import (
    AsJson,
    Queue,
    QueueAndId,
    Yes,
    complete_ids_to_change,
    open_manager,
    split_queue_and_rest,
)
from holdfast.cli.console import (
    confirm,
    print_either,
    strip_control_characters,
)
from holdfast.cli.errors import NotFound, UsageError
from holdfast.text import format_count

if TYPE_CHECKING:
    pass

CreateTables = Annotated[bool, "--create", "Create the missing tables."]

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of messages by their ids.

    `action` is the method of a queue that makes it. `thing` is what the ids name, in one of
    the `states`, and `shown_by` a command that lists them. `alternative` says what may be
    given in place of ids.
    """

    verb: str
    action: Literal["cancel", "redrive", "drop"]
    thing: str = "dead letter"
    shown_by: str = "holdfast dead list"
    states: tuple[str, ...] = ("failed",)
    alternative: str = ""

    def apply(
        self, words: Sequence[str] | None, as_json: bool, question: str | None = None
    ) -> None:
        """Change each message, and print the total. Raises NotFound for the others.

        With a `question`, the user has to confirm it first.
        """
        queue, ids = split_queue_and_rest(words, min_rest=1)
        if not ids:
            raise UsageError(
                f"no id is given: give the ids of {self.thing}s, which `{self.shown_by}` shows"
                f"{self.alternative}"
            )
        with open_manager(queue) as manager:
            ids = complete_ids_to_change(manager, ids, self.states)
            if question is not None:
                name = strip_control_characters(manager.name)
                confirm(question.format(count=format_count(len(ids), self.thing), queue=name))
            change: Callable[[str], int] = getattr(manager, self.action)
            counts = {message_id: change(message_id) for message_id in ids}
        missing = [message_id for message_id, count in counts.items() if not count]
        self.print_count(sum(counts.values()), missing, as_json)
        if missing:
            ids_text = ", ".join(map(repr, missing))
            raise NotFound(f"found no {self.thing} {ids_text}: see `{self.shown_by}`")

    def print_count(self, count: int, missing: list[str], as_json: bool) -> None:
        """Print how many messages were changed."""
        print_either(as_json, {self.verb: count, "missing": missing}, f"{self.verb} {count:,}")


_CANCEL = _Change(
    "cancelled", "cancel", "waiting or leased message", "holdfast list", ("pending", "leased")
)
_REDRIVE = _Change("redriven", "redrive", alternative=", or --all")
_DROP = _Change("dropped", "drop")


def cancel(words: QueueAndId = None, as_json: AsJson = False) -> None:
    """Make waiting or running messages dead letters, and tell their handlers."""
    _CANCEL.apply(words, as_json)


def purge(
    queue: Queue = None,
    *,
    older_than: Annotated[float, "Remove messages completed longer ago than this."],
    as_json: AsJson = False,
) -> None:
    """Remove completed messages, and files that killed processes left behind."""
    with open_manager(queue) as manager:
        purged = manager.purge(older_than)
    print_either(as_json, {"purged": purged}, f"purged {purged:,}")


def redrive(
    words: QueueAndId = None,
    everything: Annotated[bool, "--all", "Redrive all dead letters."] = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back into the queue and count their attempts from 0 again."""
    from holdfast.cli.live_view import ProgressMeter

    if not everything:
        _REDRIVE.apply(words, as_json)
        return
    queue, ids = split_queue_and_rest(words, min_rest=0)
    if ids:
        raise UsageError("ids and --all cannot be combined; give one of them")
    with (
        open_manager(queue) as manager,
        ProgressMeter("redriving", manager.stats().failed) as meter,
    ):
        redriven = manager.redrive(on_progress=meter.advance)
    _REDRIVE.print_count(redriven, [], as_json)


def drop(words: QueueAndId = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove dead letters permanently."""
    _DROP.apply(words, as_json, None if yes else "Permanently drop {count} of {queue}?")
