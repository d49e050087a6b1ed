"""`holdfast push`: push messages from arguments, a file or standard input."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import (
    QUEUE_HELP,
    STDIN,
    AsJson,
    find_new_queue,
    make_duration_option,
    report_created,
    resolve_queue,
)
from holdfast.cli.console import print_json, print_result
from holdfast.cli.errors import UsageError

_MAX_IDS = 10  # that are printed one by one


def push(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE JSON",
            help=f"{QUEUE_HELP} Then JSON objects, or - to read lines from standard input.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Read a file with a JSON object, an array of them, or one per line."),
    ] = None,
    delay: Annotated[
        float,
        make_duration_option(
            "Deliver no earlier than after this time (30s, 5m, 2h, 7d).", show_default=False
        ),
    ] = 0.0,
    message_id: Annotated[
        str | None, typer.Option("--id", help="The id of the message, if there is only one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Push messages. When this has returned, they cannot be lost."""
    from holdfast.cli.push_input import check_source, open_source, push_all
    from holdfast.queue.message import AnyMessage
    from holdfast.queues.opening import open_queue

    queue, texts = _split_queue_and_texts(words or [])
    with open_source(texts, file) as source:
        total = check_source(source, message_id)
        new = find_new_queue(queue)
        with open_queue(queue, AnyMessage) as manager:
            pushed = push_all(manager, source, total, message_id, delay)
    report_created(new)
    _report(manager.name, pushed, as_json)


def _split_queue_and_texts(words: list[str]) -> tuple[str, list[str]]:
    """Return the queue and the texts.

    The queue can be left out, because neither JSON nor `-` is a valid queue name.
    """
    if words and not _is_text(words[0]):
        queue, texts = words[0], words[1:]
    else:
        queue, texts = resolve_queue(), words
    if STDIN in texts and len(texts) > 1:
        raise UsageError("- reads all messages from standard input; give no other JSON with it")
    return queue, texts


def _is_text(word: str) -> bool:
    return word == STDIN or word.lstrip()[:1] in ("{", "[")


def _report(queue: str, ids: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "pushed": len(ids), "ids": ids})
    elif len(ids) <= _MAX_IDS:
        print_result(*ids)
    else:
        print_result(f"pushed {len(ids):,} messages to {queue}")
