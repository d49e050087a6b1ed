"""`holdfast push`: hand over messages from arguments, a file or standard input."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.arguments import QUEUE_HELP, AsJson, default_queue, opened
from holdfast.cli.console import print_json, print_result, strip_control_characters
from holdfast.cli.durations import seconds
from holdfast.cli.errors import UsageError

STDIN = "-"
_FEW = 10  # ids are printed one by one up to this many


def push(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE JSON",
            help=f"{QUEUE_HELP} Then JSON objects, or - for lines from standard input.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A file: one JSON object, an array of them, or one per line."),
    ] = None,
    delay: Annotated[
        float,
        typer.Option(
            parser=seconds,
            metavar="DURATION",
            show_default=False,
            help="Deliver after 30s, 5m, 2h, 7d.",
        ),
    ] = 0.0,
    message_id: Annotated[
        str | None, typer.Option("--id", help="The id of the one message pushed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hand over messages. Once this has returned, they cannot be lost."""
    from holdfast.cli.push_input.sources import check, hand_over, source_of

    queue, texts = _queue_and_texts(words or [])
    with source_of(texts, file) as source:
        total = check(source, message_id)
        with opened(queue, create=True) as manager:
            pushed = hand_over(manager, source, total, message_id, delay)
    _report(manager.name, pushed, as_json)


def _queue_and_texts(words: list[str]) -> tuple[str, list[str]]:
    """JSON and `-` are never a queue's name, so the queue can be left out."""
    if words and not _is_text(words[0]):
        queue, texts = words[0], words[1:]
    else:
        queue, texts = default_queue(), words
    if STDIN in texts and len(texts) > 1:
        raise UsageError("- reads everything from standard input: give it alone")
    return queue, texts


def _is_text(word: str) -> bool:
    return word == STDIN or word.lstrip()[:1] in ("{", "[")


def _report(queue: str, ids: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "pushed": len(ids), "ids": ids})
    elif len(ids) <= _FEW:
        for message_id in ids:
            print_result(strip_control_characters(message_id))
    else:
        print_result(f"pushed {len(ids):,} messages to {queue}")
