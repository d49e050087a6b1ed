"""Batches: what refuses them whole, and their entries one by one."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.testing.sqs.errors import ServiceError, batch_refused

MAX_ENTRIES = 10

_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")

Answer = dict[str, Any]


def check_batch(entries: Sequence[dict[str, Any]], entry_kind: str) -> None:
    """Refuse a batch that is empty, too long, or whose ids do not tell entries apart."""
    if not entries:
        raise batch_refused(
            "EmptyBatchRequest", f"There should be at least one {entry_kind} in the request."
        )
    if len(entries) > MAX_ENTRIES:
        raise batch_refused(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MAX_ENTRIES}. "
            f"You have sent {len(entries)}.",
        )
    ids = [entry["Id"] for entry in entries]
    if not all(_ENTRY_ID.fullmatch(entry_id) for entry_id in ids):
        raise batch_refused(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and "
            "underscores. It can be at most 80 letters long.",
        )
    if repeated := next((i for i in ids if ids.count(i) > 1), None):
        raise batch_refused("BatchEntryIdsNotDistinct", f"Id {repeated} repeated.")


def each_entry(
    entries: Sequence[dict[str, Any]], act: Callable[[dict[str, Any]], Answer]
) -> Answer:
    """Do each on its own: one that is refused does not stop the others."""
    done: list[Answer] = []
    failed: list[Answer] = []
    for entry in entries:
        try:
            done.append({"Id": entry["Id"], **act(entry)})
        except ServiceError as refusal:
            failed.append(refusal.as_failed_entry(entry["Id"]))
    return batch_answer(done, failed)


def batch_answer(done: list[Answer], failed: list[Answer]) -> Answer:
    """AWS leaves out a list that would be empty."""
    return {name: all_ for name, all_ in (("Successful", done), ("Failed", failed)) if all_}
