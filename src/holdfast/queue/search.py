"""Deciding whether a message is one that an operator searches for; see QueueManager.search."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.queue.info import MessageInfo
from holdfast.queue.manager import Progress


def select_messages(
    messages: Iterable[MessageInfo],
    where: Mapping[str, str],
    error: str | None,
    on_progress: Progress,
) -> Iterator[MessageInfo]:
    """Yield the messages that have these fields and this error.

    With `error`, the messages must come with their past attempts.
    """
    for message in messages:
        on_progress(1)
        if has_fields(message.body, where) and (
            error is None or _mentions_error(message, error)
        ):
            yield message


def has_fields(body: dict[str, Any] | None, where: Mapping[str, str]) -> bool:
    """Return whether a body has all of these fields with these values."""
    return all(_has_field(body or {}, name, text) for name, text in where.items())


def list_paths(name: str) -> list[list[str]]:
    """Return the keys that lead to a field, in each way in which its name can be read."""
    paths = [[name]]
    return [*paths, name.split(".")] if "." in name else paths


def contains_text(text: str | None, part: str) -> bool:
    """Return whether a text contains another, whatever the case."""
    return text is not None and part.casefold() in text.casefold()


def _has_field(body: dict[str, Any], name: str, text: str) -> bool:
    return any(_has_value(body, path, text) for path in list_paths(name))


def _has_value(value: Any, path: list[str], text: str) -> bool:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    if isinstance(value, dict | list):
        return False
    return text == (value if isinstance(value, str) else json.dumps(value))


def _mentions_error(message: MessageInfo, error: str) -> bool:
    reasons = [message.reason, *(past.reason for past in message.past)]
    return any(contains_text(reason, error) for reason in reasons)
