"""Batches: the checks that refuse a complete batch, and the handling of its entries."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.testing.sqs.errors import ServiceError, sqs_error

MAX_ENTRIES = 10

_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")

Response = dict[str, Any]


def check_batch(entries: Sequence[dict[str, Any]], entry_kind: str) -> None:
    """Raise ServiceError for a batch that is empty, too long, or has bad or repeated ids."""
    if not entries:
        raise sqs_error(
            "EmptyBatchRequest", f"There should be at least one {entry_kind} in the request."
        )
    if len(entries) > MAX_ENTRIES:
        raise sqs_error(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MAX_ENTRIES}. "
            f"You have sent {len(entries)}.",
        )
    ids = [entry["Id"] for entry in entries]
    if not all(_ENTRY_ID.fullmatch(entry_id) for entry_id in ids):
        raise sqs_error(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and "
            "underscores. It can be at most 80 letters long.",
        )
    if repeated := next((i for i in ids if ids.count(i) > 1), None):
        raise sqs_error("BatchEntryIdsNotDistinct", f"Id {repeated} repeated.")


def run_each_entry(
    entries: Sequence[dict[str, Any]], handle: Callable[[dict[str, Any]], Response]
) -> Response:
    """Handle each entry separately, so that one refused entry does not stop the others."""
    succeeded: list[Response] = []
    failed: list[Response] = []
    for entry in entries:
        try:
            succeeded.append({"Id": entry["Id"], **handle(entry)})
        except ServiceError as refusal:
            failed.append(refusal.as_failed_entry(entry["Id"]))
    return make_batch_response(succeeded, failed)


def make_batch_response(succeeded: list[Response], failed: list[Response]) -> Response:
    """Make the response of a batch. AWS omits a list that would be empty."""
    return {
        name: entries
        for name, entries in (("Successful", succeeded), ("Failed", failed))
        if entries
    }
