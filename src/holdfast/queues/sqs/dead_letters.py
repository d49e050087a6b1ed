"""Dead letters: they are in another SQS queue, that of the redrive policy if there is one.

    dead-letter   send a copy with its reason there, then delete the message; a crash in
                  between leaves two messages instead of none
    list          receive all of them, then make them visible again, because SQS has no
                  other way to read messages
    redrive       send each back, then delete it

Dead letters that SQS moved by the redrive policy have no reason, because SQS knows none.
Several queues may share one queue for their dead letters; each lists and moves only its own.
"""

from __future__ import annotations  # keeps annotations as text, which loads no types

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.aws.errors import NO_QUEUE, get_cause_code
from holdfast.errors import ConfigError, QueueUnavailable, Unsupported
from holdfast.lease.clock import to_utc
from holdfast.queue.message import MessageState
from holdfast.queue.operator import Progress, QueueOperator, ignore_progress
from holdfast.queues.sqs.address import QueueAddress, parse_address
from holdfast.queues.sqs.queue_client import (
    MAX_BATCH_ENTRIES,
    OLDER_MAX_MESSAGE_BYTES,
    QueueClient,
    Receipt,
    split_batches,
)
from holdfast.queues.sqs.sending import (
    ATTEMPTS,
    DETAIL,
    REASON,
    SOURCE,
    get_message_id,
    make_dead_letter_notes,
    parse_body,
    send_copy,
)

if TYPE_CHECKING:
    from holdfast.queue.info import MessageInfo

_INSPECT_SECONDS = 30  # listed dead letters are visible again after this time at the latest
_REMOVE_SECONDS = 600  # long enough to send back some thousand, one after the other
_CANNOT_SEARCH = "SQS cannot be searched; only dead letters can (`holdfast dead`)"


class SQSDeadLetters(QueueOperator):
    """The dead letters of one queue. Operators can reach no other messages of SQS."""

    def __init__(
        self,
        source: QueueClient,
        configured: str | None,
        capabilities: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(f"sqs:{source.address.name}", capabilities)
        self._source, self._configured = source, configured
        self._queue: QueueClient | None = None

    # -- finding their queue

    def find_queue(self) -> QueueClient | None:
        """Return the queue for dead letters, or None if it does not exist yet."""
        if self._queue is None:
            self._queue = self._look_up_queue()
        return self._queue

    def _look_up_queue(self) -> QueueClient | None:
        if self._configured is not None:
            return self._source.make_sibling(parse_address(self._configured))
        if (arn := self._source.facts.dead_letter_arn) is not None:
            *_, account, name = arn.split(":")
            response = self._source.call_service(
                "get_queue_url", QueueName=name, QueueOwnerAWSAccountId=account
            )
            return self._source.make_sibling(QueueAddress(name, response["QueueUrl"]))
        default = self._source.make_sibling(QueueAddress(self._make_default_name()))
        try:
            default.url  # noqa: B018  # asks SQS for it
        except ConfigError as error:
            if get_cause_code(error) in NO_QUEUE:
                return None
            raise
        return default

    def _make_default_name(self) -> str:
        """Return the name of the queue that Holdfast makes if there is no redrive policy."""
        stem, dot, fifo = self._source.address.name.partition(".")
        return f"{stem}-dead{dot}{fifo}"

    def _find_or_create_queue(self) -> QueueClient:
        if (queue := self.find_queue()) is not None:
            return queue
        name = self._make_default_name()
        attributes = {"MessageRetentionPeriod": str(14 * 86_400)}
        if self._source.address.fifo:
            attributes["FifoQueue"] = "true"
        # The source's size limit, because a server's default may be smaller.
        if (size := self._source.facts.max_bytes) > OLDER_MAX_MESSAGE_BYTES:
            attributes["MaximumMessageSize"] = str(size)
        response = self._source.call_service(
            "create_queue", QueueName=name, Attributes=attributes
        )
        self._queue = self._source.make_sibling(QueueAddress(name, response["QueueUrl"]))
        return self._queue

    # -- dead-lettering

    def send_copy(
        self, receipt: Receipt, reason: str, detail: str | None, attempts: int
    ) -> None:
        """Send a copy with its reason. The caller deletes the original afterwards.

        Raises MessageTooLarge if the queue for dead letters does not accept its body.
        """
        notes = make_dead_letter_notes(self._source.facts.arn, reason, detail, attempts)
        send_copy(self._find_or_create_queue(), receipt, notes)

    # -- for operators

    def count(self) -> int:
        """Count the dead letters approximately, as SQS does."""
        queue = self.find_queue()
        return 0 if queue is None else sum(queue.count_messages().values())

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        """Yield dead letters, the oldest first. Raises Unsupported for any other state."""
        if state is MessageState.COMPLETED:
            raise Unsupported(
                "SQS deletes completed messages, so they can be neither listed nor counted; "
                "the workers' logs and metrics count them"
            )
        if state is not MessageState.FAILED:
            raise Unsupported(
                f"SQS cannot list {state.value} messages: `holdfast status` counts them, "
                "`holdfast dead list` lists the dead letters"
            )
        with self._receive_briefly(limit) as (queue, letters):
            infos = [_to_message_info(queue, letter) for letter in letters]
        yield from infos

    def find(self, message_id: str) -> list[MessageInfo]:
        raise Unsupported(_CANNOT_SEARCH)

    def search(self, *_: Any, **__: Any) -> Iterator[MessageInfo]:
        raise Unsupported(_CANNOT_SEARCH)

    def cancel(self, message_id: str) -> int:
        raise Unsupported(
            f"SQS cannot cancel message {message_id!r}, because only a worker that receives it "
            "can remove it: let its handler return Reject"
        )

    def purge(self, older_than_seconds: float) -> int:
        raise Unsupported("SQS keeps no completed messages, so there is nothing to purge")

    def drop(self, message_id: str) -> int:
        return self._drop({message_id})

    def drop_many(self, messages: Sequence[MessageInfo]) -> int:
        """Delete these dead letters. All are received once, not once for each id."""
        return self._drop({message.id for message in messages})

    def _drop(self, message_ids: Collection[str]) -> int:
        return self._remove(message_ids, lambda letter: None, ignore_progress)

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = ignore_progress
    ) -> int:
        message_ids = None if message_id is None else {message_id}
        return self._remove(message_ids, self._send_back, on_progress)

    def redrive_many(self, messages: Sequence[MessageInfo]) -> int:
        """Move these dead letters back. All are received once, not once for each id."""
        message_ids = {message.id for message in messages}
        return self._remove(message_ids, self._send_back, ignore_progress)

    def _send_back(self, letter: Receipt) -> None:
        send_copy(self._source, letter)

    def _remove(
        self,
        message_ids: Collection[str] | None,
        before: Callable[[Receipt], None],
        on_progress: Progress,
    ) -> int:
        """Delete the dead letters with these ids, or all of them; call `before` with each."""
        with self._receive_briefly(None, _REMOVE_SECONDS) as (queue, letters):
            matches = [
                letter
                for letter in letters
                if message_ids is None or get_message_id(letter) in message_ids
            ]
            for letter in matches:
                before(letter)
                [failure] = queue.delete([letter])
                if failure is not None:
                    raise QueueUnavailable(
                        f"{queue}: a dead letter was not removed ({failure.code})"
                    )
                on_progress(1)
        return len(matches)

    # -- listing: no dead letter may stay hidden because it was listed

    @contextmanager
    def _receive_briefly(
        self, limit: int | None, hidden_seconds: int = _INSPECT_SECONDS
    ) -> Iterator[tuple[QueueClient, list[Receipt]]]:
        if (queue := self.find_queue()) is None:
            yield self._source, []
            return
        received = _receive_all(queue, limit, hidden_seconds)
        try:
            yield queue, [letter for letter in received if self._is_from_source(letter)]
        finally:
            for batch in split_batches(received):
                queue.set_visibility(batch, 0)

    def _is_from_source(self, letter: Receipt) -> bool:
        note = letter.attributes.get(SOURCE, {}).get("StringValue")
        source = note or letter.system.get("DeadLetterQueueSourceArn")
        return source in (None, self._source.facts.arn)


def _receive_all(queue: QueueClient, limit: int | None, hidden_seconds: int) -> list[Receipt]:
    """Receive all dead letters, the oldest first.

    This stops after two responses in a row without a new one, because SQS asks only some of
    its servers each time. If there are so many that the first are visible again before the
    last is received, those come again and again.
    """
    received: dict[str, Receipt] = {}
    empty = 0
    while empty < 2 and (limit is None or len(received) < limit):
        left = MAX_BATCH_ENTRIES if limit is None else limit - len(received)
        batch = queue.receive(
            min(MAX_BATCH_ENTRIES, left),
            visibility_seconds=hidden_seconds,
            wait_seconds=0,
            attributes=["All"],
        )
        known = len(received)
        received |= {raw["MessageId"]: Receipt(raw) for raw in batch}
        empty = 0 if len(received) > known else empty + 1
    return sorted(received.values(), key=_get_sent_ms)


def _get_sent_ms(letter: Receipt) -> int:
    return int(letter.system.get("SentTimestamp", 0))


def _to_message_info(queue: QueueClient, letter: Receipt) -> MessageInfo:
    from holdfast.queue.info import MessageInfo, PastAttempt  # only operators need them

    notes = {name: value.get("StringValue", "") for name, value in letter.attributes.items()}
    has_count = notes.get(ATTEMPTS, "").isdecimal()
    attempts = int(notes[ATTEMPTS]) if has_count else letter.receives - 1
    moved = "moved here by the queue's redrive policy: received too often, never completed"
    reason = notes.get(REASON) or moved
    at = to_utc(_get_sent_ms(letter) / 1000)
    return MessageInfo(
        id=get_message_id(letter),
        key=letter.sqs_id,
        state=MessageState.FAILED,
        attempts=attempts,
        fence=attempts,
        where=f"sqs:{queue.address.name}/{letter.sqs_id}",
        reason=reason,
        past=(PastAttempt(attempts, "dead-lettered", at, "", reason, notes.get(DETAIL)),),
        body=parse_body(letter.body),
    )
