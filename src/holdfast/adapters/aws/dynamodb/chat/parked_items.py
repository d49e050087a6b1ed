"""ParkedBatch batches as rows of `conversations-parked`:

    parked_id          why, since when, how far the reply was
    parked_id#0001…    what was staged, several messages in each row

A row holds 400 KB and a transaction 100 rows of 4 MB together: what is parked at once is cut
into slices that fit. One slice is what a batch has, unless its messages are huge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.adapters.aws.dynamodb.chat import items, sanitize
from holdfast.adapters.aws.dynamodb.values import Attributes
from holdfast.conversations.model import (
    ConversationKey,
    Fragment,
    ParkedBatch,
    Staged,
    UnreadableFragment,
)
from holdfast.conversations.outbox import to_plain_data

MAX_MESSAGES_PER_SLICE = 40  # messages of a slice: three rows for each would be too many
_MAX_PART_BYTES = 250 * 1024
_MAX_PARTS_PER_SLICE = 8
_MAX_STAGED_BYTES = 390 * 1024
_MAX_TEXT_CHARS = 10_000  # characters of what is too large to be kept whole

Part = list[dict[str, Any]]


def split_into_parts(staged: Sequence[Staged]) -> list[Part]:
    """Rows of similar size, in order; the same for the same messages."""
    parts: list[Part] = []
    size = 0
    for one in map(_row_from_staged, staged):
        weight = sanitize.estimate_size(one)
        if (
            not parts
            or size + weight > _MAX_PART_BYTES
            or len(parts[-1]) == MAX_MESSAGES_PER_SLICE
        ):
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += weight
    return parts


def split_into_slices(sizes: Sequence[int]) -> Iterator[range]:
    """Which parts, of so many messages each, are written together. At least one slice."""
    first, messages = 0, 0
    for place, size in enumerate(sizes):
        full = messages + size > MAX_MESSAGES_PER_SLICE or place - first == _MAX_PARTS_PER_SLICE
        if full and place > first:
            yield range(first, place)
            first, messages = place, 0
        messages += size
    yield range(first, len(sizes))


def row_from_batch(parked: ParkedBatch) -> Attributes:
    outbox = {} if parked.outbox is None else {"outbox": to_plain_data(parked.outbox)}
    row = {
        "conversation_id": parked.key.conversation_id,
        "parked_id": parked.parked_id,
        "primary_channel": parked.key.primary_channel,
        "reason": parked.reason,
        "parked_at": parked.parked_at,
        **outbox,
    }
    return sanitize.encode_row(row, "what is parked")


def row_from_part(parked: ParkedBatch, place: int, part: Part) -> Attributes:
    row = {
        "conversation_id": parked.key.conversation_id,
        "parked_id": f"{parked.parked_id}#{place:04}",  # in order
        "of": parked.parked_id,
        "staged": part,
    }
    return sanitize.encode_row(row, "what is parked")


def batches_from_rows(rows: Iterable[items.Row]) -> list[ParkedBatch]:
    """Heads with their parts, the oldest first."""
    heads: list[items.Row] = []
    parts: dict[tuple[str, str], list[items.Row]] = {}
    for row in rows:
        if "of" in row:
            parts.setdefault((row["conversation_id"], row["of"]), []).append(row)
        else:
            heads.append(row)
    found = [_batch_from_rows(head, parts.get(_get_identity(head), [])) for head in heads]
    return sorted(found, key=lambda one: one.parked_at)


def _get_identity(head: items.Row) -> tuple[str, str]:
    return head["conversation_id"], head["parked_id"]


def _batch_from_rows(head: items.Row, parts: Iterable[items.Row]) -> ParkedBatch:
    in_order = sorted(parts, key=lambda part: str(part["parked_id"]))
    key = ConversationKey(head.get("primary_channel", ""), head["conversation_id"])
    return ParkedBatch(
        head["parked_id"],
        key,
        head.get("reason", ""),
        items.parse_time_or_zero(head.get("parked_at")),
        tuple(_staged_from_row(one, key) for part in in_order for one in part["staged"]),
        items.outbox_from_row(head),
    )


# -- one message of it


def _row_from_staged(one: Staged) -> dict[str, Any]:
    if isinstance(one, Fragment):
        row = items.row_from_fragment(one)
        del row["conversation_id"]  # the part's
    else:
        row = {"message_sid": one.message_sid, "problem": one.problem, "row": dict(one.row)}
    return row if sanitize.estimate_size(row) <= _MAX_STAGED_BYTES else _shorten(row)


def _shorten(value: Any) -> Any:
    """A row of somebody else's that fills its table's row to the brim. With its beginning
    a person may find the rest; without it the conversation stood still for ever."""
    match value:
        case str():
            return value[:_MAX_TEXT_CHARS]
        case Mapping():
            return {name: _shorten(one) for name, one in value.items()}
        case list() | tuple():
            return [_shorten(one) for one in value]
    return value


def _staged_from_row(row: Mapping[str, Any], key: ConversationKey) -> Staged:
    if "row" in row:
        return UnreadableFragment(row["message_sid"], row.get("problem", ""), row["row"])
    return items.staged_from_row({**row, "conversation_id": key.conversation_id})


def row_for_restaging(one: Staged, key: ConversationKey, now: float) -> dict[str, Any]:
    """Return the row for the stage. One that cannot be read goes back as it was, so that
    nothing is lost; with a channel and a time, so that the sweeper finds whose it is, and
    does not take it and those beside it for messages that waited for years."""
    if isinstance(one, Fragment):
        return items.row_from_fragment(one)
    names = {"conversation_id": key.conversation_id, "message_sid": one.message_sid}
    return {"primary_channel": key.primary_channel, **one.row, **names, "staged_at": now}
