"""Convert parked batches to rows of `conversations-parked`, and back.

    parked_id          the reason, the time, and how far the reply had come
    parked_id#0001…    the staged messages, several in each row

A row holds 400 KB, and a transaction holds 100 rows and 4 MB. A batch is therefore parked in
slices that fit into one transaction each. A batch has one slice unless its messages are huge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.chat.dynamodb import items
from holdfast.chat.model import (
    ConversationKey,
    Fragment,
    ParkedBatch,
    Staged,
    UnreadableFragment,
)
from holdfast.chat.outbox import to_plain_data
from holdfast.store.dynamodb.values import Attributes

MAX_MESSAGES_PER_SLICE = 40  # each needs up to three rows of the transaction
_MAX_PART_BYTES = 250 * 1024
_MAX_PARTS_PER_SLICE = 8
_MAX_STAGED_BYTES = 390 * 1024
_MAX_TEXT_CHARS = 10_000  # of each text in a row that is too large

Part = list[dict[str, Any]]


def split_into_parts(staged: Sequence[Staged]) -> list[Part]:
    """Distribute the messages over rows of similar size, in order.

    The same messages always give the same parts.
    """
    parts: list[Part] = []
    size = 0
    for row in map(_row_from_staged, staged):
        row_size = items.estimate_size(row)
        if (
            not parts
            or size + row_size > _MAX_PART_BYTES
            or len(parts[-1]) == MAX_MESSAGES_PER_SLICE
        ):
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += row_size
    return parts


def split_into_slices(sizes: Sequence[int]) -> Iterator[range]:
    """Yield which parts are written together, given the number of messages in each part.

    There is always at least one slice.
    """
    first, messages = 0, 0
    for position, size in enumerate(sizes):
        is_full = (
            messages + size > MAX_MESSAGES_PER_SLICE or position - first == _MAX_PARTS_PER_SLICE
        )
        if is_full and position > first:
            yield range(first, position)
            first, messages = position, 0
        messages += size
    yield range(first, len(sizes))


def row_from_batch(parked: ParkedBatch) -> Attributes:
    """Return the head row of a parked batch."""
    outbox = {} if parked.outbox is None else {"outbox": to_plain_data(parked.outbox)}
    row = {
        "conversation_id": parked.key.conversation_id,
        "parked_id": parked.parked_id,
        "primary_channel": parked.key.primary_channel,
        "reason": parked.reason,
        "parked_at": parked.parked_at,
        **outbox,
    }
    return items.encode_row(row, "the parked batch")


def row_from_part(parked: ParkedBatch, position: int, part: Part) -> Attributes:
    """Return the row of one part of a parked batch."""
    row = {
        "conversation_id": parked.key.conversation_id,
        "parked_id": f"{parked.parked_id}#{position:04}",  # sorts by position
        "of": parked.parked_id,
        "staged": part,
    }
    return items.encode_row(row, "the parked batch")


def batches_from_rows(rows: Iterable[items.Row]) -> list[ParkedBatch]:
    """Return the parked batches of these rows, the oldest first."""
    heads: list[items.Row] = []
    parts: dict[tuple[str, str], list[items.Row]] = {}
    for row in rows:
        if "of" in row:
            parts.setdefault((row["conversation_id"], row["of"]), []).append(row)
        else:
            heads.append(row)
    batches = [_batch_from_rows(head, parts.get(_get_identity(head), [])) for head in heads]
    return sorted(batches, key=lambda batch: batch.parked_at)


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
        tuple(_staged_from_row(entry, key) for part in in_order for entry in part["staged"]),
        items.outbox_from_row(head),
    )


# -- one message of it


def _row_from_staged(staged: Staged) -> dict[str, Any]:
    if isinstance(staged, Fragment):
        row = items.row_from_fragment(staged)
        del row["conversation_id"]  # the part's row has it
    else:
        row = {
            "message_sid": staged.message_sid,
            "problem": staged.problem,
            "row": dict(staged.row),
        }
    return row if items.estimate_size(row) <= _MAX_STAGED_BYTES else _shorten(row)


def _shorten(value: Any) -> Any:
    """Return the value with long texts cut.

    This is for a row of other software that fills its table's row completely. An operator can
    find the rest by its beginning, while without parking the conversation would be blocked
    forever.
    """
    match value:
        case str():
            return value[:_MAX_TEXT_CHARS]
        case Mapping():
            return {name: _shorten(element) for name, element in value.items()}
        case list() | tuple():
            return [_shorten(element) for element in value]
    return value


def _staged_from_row(row: Mapping[str, Any], key: ConversationKey) -> Staged:
    if "row" in row:
        return UnreadableFragment(row["message_sid"], row.get("problem", ""), row["row"])
    return items.staged_from_row({**row, "conversation_id": key.conversation_id})


def row_for_restaging(staged: Staged, key: ConversationKey, now: float) -> dict[str, Any]:
    """Return the row that stages a parked message again.

    An unreadable row goes back as it was, so that nothing is lost. It gets a channel and a
    time, so that the sweeper finds its conversation and does not treat it, and the messages
    beside it, as if they had waited for years.
    """
    if isinstance(staged, Fragment):
        return items.row_from_fragment(staged)
    names = {"conversation_id": key.conversation_id, "message_sid": staged.message_sid}
    return {"primary_channel": key.primary_channel, **staged.row, **names, "staged_at": now}
