"""SQSQueue: the queue contract on Amazon SQS.

    push      SendMessage(Batch)
    poll      ReceiveMessage: long, never more than asked for
    renew     ChangeMessageVisibilityBatch(lease), ten at a time
    ack       DeleteMessageBatch, gathered from all threads
    nack      ChangeMessageVisibility(backoff), or 0, or left to run out
    dead      SendMessage to the dead-letter queue, then DeleteMessage

SQS itself accepts a handle whose time is over, and then deletes or hides what somebody
else is working on. So the lease's own deadline, counted from before the receive, is
looked at before every call: a stale handle never leaves this process.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil, inf
from threading import Event
from typing import Any, ClassVar, Literal

from holdfast.adapters.aws.sqs.address import parse
from holdfast.adapters.aws.sqs.adopt import Adoption, receive_count
from holdfast.adapters.aws.sqs.dead_letters import SQSDeadLetters
from holdfast.adapters.aws.sqs.delivery import DeliveryIntake, InFlightIndex
from holdfast.adapters.aws.sqs.long_poll import LongPoll
from holdfast.adapters.aws.sqs.queue_client import BATCH, QueueClient
from holdfast.adapters.aws.sqs.receipt import CAP_SECONDS, Receipt, received, set_visibility
from holdfast.adapters.aws.sqs.receipt_calls import ReceiptCalls
from holdfast.adapters.aws.sqs.schema_wait import possible_waits, seconds_since_first_receive
from holdfast.adapters.aws.sqs.sending import (
    MAX_DELAY_SECONDS,
    MessageSender,
    OutgoingMessage,
    outgoing_message,
)
from holdfast.core import events as ev
from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import (
    ConfigError,
    HoldfastError,
    LeaseLost,
    QueueUnavailable,
    Unsupported,
)
from holdfast.core.events import Events
from holdfast.core.lease.lease import Lease, Renewal
from holdfast.core.process import after_fork
from holdfast.core.queue.manager import (
    MessageInfo,
    MessageState,
    Progress,
    QueueManager,
    QueueStats,
    no_progress,
)
from holdfast.core.queue.message import AnyMessage, M, MessageCodec, lease_of
from holdfast.core.worker.settle import SettleResult

MAX_POLL_SECONDS = 20

_ATTRIBUTES = [
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "MessageGroupId",
]

OnNack = Literal["backoff", "now", "leave"]


class SQSQueue(QueueManager[M]):
    """A queue of Amazon SQS, standard or FIFO.

    `on_nack`: what a nack without a delay does: wait by the backoff, come back `now`, or
    `leave` the message to the end of its lease. `group_by`: the field whose value orders
    a FIFO queue; without it there is one order for all. `dead_letters`: name or URL of
    the queue for dead letters; by default that of the redrive policy, else `<name>-dead`.
    """

    renew_batch = BATCH
    poll_batch = BATCH
    gather_seconds = 0.003
    looks_until_empty = 3
    capabilities: ClassVar[frozenset[str]] = frozenset({"redrive_by_id", "drop"})

    def __init__(
        self,
        address: str,
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # what M is by default
        *,
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        dedupe: bool = False,
        on_nack: OnNack = "backoff",
        group_by: str | None = None,
        dead_letters: str | None = None,
        client: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        where = parse(address)
        super().__init__(
            f"sqs:{where.name}",
            lease_seconds=lease_seconds,
            max_attempts=max_attempts,
            backoff=backoff,
            clock=clock,
            events=events,
        )
        if lease_seconds > CAP_SECONDS:
            raise ConfigError("lease_seconds: SQS hides a message for at most 12 hours")
        if on_nack not in ("backoff", "now", "leave"):
            raise ConfigError(f"on_nack is 'backoff', 'now' or 'leave', not {on_nack!r}")
        if dedupe and not where.fifo:
            raise ConfigError(
                "SQS refuses the same id twice only in FIFO queues (for five minutes): "
                "use one whose name ends in .fifo, or leave dedupe off"
            )
        self.fifo = where.fifo
        # Ten of a FIFO queue may be of one group, and would be worked on side by side. One
        # by one, SQS keeps the group's others back by itself.
        self._at_once = 1 if self.fifo else BATCH
        self.on_nack, self._group_by = on_nack, self._checked_group(model, group_by)
        self._service = QueueClient(where, lease_seconds, client)
        self._codec: MessageCodec[M] = MessageCodec(model)
        self._said_no_checkpoints = False
        self._sender = MessageSender(self._service, clock, self._random)
        self._dead = SQSDeadLetters(self._service, dead_letters, clock)
        self._admission = DeliveryIntake(
            self._service, self._codec, self._dead, self.name, lease_seconds, self.events
        )
        self._become()
        after_fork.run_after_fork(self, SQSQueue._become)

    def _become(self) -> None:
        """A fork holds none of its parent's messages, and none of its locks."""
        self._held = InFlightIndex()
        self._keeping = ReceiptCalls(self._service, self._dead, self._held)

    def _checked_group(self, model: type[M], group_by: str | None) -> str | None:
        if group_by is None:
            return None
        if not self.fifo:
            raise ConfigError(f"group_by={group_by!r}: only FIFO queues have groups")
        if group_by not in model.model_fields and model.model_config.get("extra") != "allow":
            raise ConfigError(f"group_by={group_by!r}: {model.__name__} has no such field")
        return group_by

    def check(self) -> None:
        with suppress(QueueUnavailable):  # it may come back
            self._service.facts  # noqa: B018  # asks

    # -- producing

    def push(self, message: M, *, delay_seconds: float = 0.0) -> str:
        self._sender.send(self._packed(message, delay_seconds))
        return message.id

    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """By tens. An error tells which were not accepted; those before them were."""
        parcels = [self._packed(message, delay_seconds) for message in messages]
        self._sender.send_all(parcels)
        return [one.id for one in parcels]

    def _packed(self, message: M, delay_seconds: float) -> OutgoingMessage:
        if delay_seconds:
            self._check_push_delay(delay_seconds)
        packed = outgoing_message(
            message.id,
            self._codec.encode(message),
            delay_seconds=delay_seconds,
            fifo=self.fifo,
            group=str(getattr(message, self._group_by)) if self._group_by else None,
        )
        self._service.limit_for(packed.id, packed.size)
        return packed

    def _check_push_delay(self, seconds: float) -> None:
        if not seconds <= MAX_DELAY_SECONDS:
            raise ValueError(
                f"delay_seconds must be at most {MAX_DELAY_SECONDS} on SQS, not {seconds}: "
                "for longer, let a schedule push it"
            )
        if self.fifo and seconds > 0:
            raise ValueError("SQS FIFO queues have no delay per message: set the queue's own")

    # -- consuming

    def poll(
        self, batch_size: int = 1, *, wait_seconds: float = 0.0, stop: Event | None = None
    ) -> list[M]:
        if wait_seconds <= 0 or self._longest_poll() == 0:
            return super().poll(batch_size, wait_seconds=wait_seconds, stop=stop)
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
        give_up_at = self.clock.monotonic() + wait_seconds
        while not (stop and stop.is_set()):
            left = give_up_at - self.clock.monotonic()
            if left <= 0:
                break
            if claimed := self._receive(
                batch_size, min(self._longest_poll(), ceil(left)), stop
            ):
                return claimed
        return []

    def _longest_poll(self) -> int:
        """Trust counts from before the call, so a long wait must leave most of the lease."""
        return min(MAX_POLL_SECONDS, int(self.lease_seconds / 3))

    def _claim(self, limit: int) -> list[M]:
        return self._receive(limit, 0, None)

    def _receive(self, limit: int, wait: int, stop: Event | None) -> list[M]:
        claimed: list[M] = []
        try:
            while len(claimed) < limit:
                asked_at = self.clock.monotonic()
                raws = self._ask_for(min(self._at_once, limit - len(claimed)), wait, stop)
                claimed += [m for raw in raws if (m := self._admit(raw, asked_at)) is not None]
                if not raws or (wait and not self.fifo):
                    break
                wait = 0
        except HoldfastError:
            if not claimed:  # what was claimed must not be forgotten for a later error
                raise
        return claimed

    def _ask_for(
        self, count: int, wait: int, stop: Event | None
    ) -> Sequence[Mapping[str, Any]]:
        def receive() -> Sequence[Mapping[str, Any]]:
            answer = self._service.patiently(
                "receive_message",
                MaxNumberOfMessages=count,
                VisibilityTimeout=ceil(self.lease_seconds),
                WaitTimeSeconds=wait,
                AttributeNames=_ATTRIBUTES,
                MessageAttributeNames=["All"],
            )
            messages: Sequence[Mapping[str, Any]] = answer.get("Messages", [])
            return messages

        if wait and stop is not None:
            return LongPoll(receive, self._give_back_unseen).run(stop)
        return receive()

    def _give_back_unseen(self, raws: Sequence[Mapping[str, Any]]) -> None:
        """What came after its poller had left. At worst it comes back with its lease."""
        try:
            set_visibility(self._service, [received(raw) for raw in raws], 0)
        except HoldfastError as error:
            self.events.emit(ev.PollFailed(self.name, str(error)))

    def _admit(self, raw: Mapping[str, Any], asked_at: float) -> M | None:
        """The message of a delivery; None when it must not be handed out."""
        hold = received(raw)
        if self._held.adopts(hold, asked_at, self.clock.monotonic(), self.lease_seconds):
            return None
        message = self._admitted(hold, raw, asked_at, self.max_attempts)
        if message is SettleResult.DEAD_LETTERED:
            self._count_dead_letter()
        return None if isinstance(message, SettleResult) else message

    def take_over(
        self, deliveries: Sequence[Mapping[str, Any]], *, until: float = inf
    ) -> list[M | SettleResult]:
        """Lease what somebody else received, such as Lambda's event source.

        `deliveries` are as ReceiveMessage gives them. The answers, in order: the message,
        or what became of it: DEAD_LETTERED when it is malformed or was received too often,
        GIVEN_BACK when it is newer than the code, ABANDONED when it is not surely ours.
        All are extended first: nobody knows how long they were held. SQS is asked no more
        after `until` (monotonic). Raises nothing of SQS's.
        """
        holds = [received(raw) for raw in deliveries]
        takeover = Adoption(
            lambda ten: self._keeping.extend(ten, self.lease_seconds), self.clock, until
        )
        takeover.run(holds)
        ours = takeover.ours
        if len(ours) < len(holds):
            for problem in sorted(takeover.problems):
                self.events.emit(ev.PollFailed(self.name, problem))
        # Who waits behind a failing one of its FIFO group is received as often as that
        # one: its number says nothing about its own attempts.
        limit = inf if self.fifo else self.max_attempts
        return [
            self._admitted(hold, raw, ours[hold], limit)
            if hold in ours
            else SettleResult.ABANDONED
            for hold, raw in zip(holds, deliveries, strict=True)
        ]

    def _admitted(
        self, hold: Receipt, raw: Mapping[str, Any], asked_at: float, max_attempts: float
    ) -> M | SettleResult:
        admitted = self._admission.admit(
            self, hold, receive_count(raw), self._possible_waits(raw), asked_at, max_attempts
        )
        if not isinstance(admitted, SettleResult):
            self._held.add(lease_of(admitted))
        return admitted

    def _possible_waits(self, raw: Mapping[str, Any]) -> int:
        """How many receives an older worker may have spent waiting for this code. Version 1
        is the first there is: no worker was ever too old for it.
        """
        if not self.fifo or self._codec.model.current_version() <= 1:
            return 0
        return possible_waits(seconds_since_first_receive(raw, self.clock.time()))

    # -- renewing

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        return self._keeping.renew([lease.handle for lease in leases], seconds)

    # -- settling

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        return self._keeping.delete([lease.handle for lease in leases])

    def nack(
        self,
        message: M,
        *,
        delay_seconds: float | None = None,
        reason: str = "nacked",
        detail: str | None = None,
    ) -> None:
        if delay_seconds is None and self.on_nack == "leave":
            self._leave(message)
            return
        if delay_seconds is None and self.on_nack == "now":
            delay_seconds = 0.0
        super().nack(message, delay_seconds=delay_seconds, reason=reason, detail=detail)

    def _leave(self, message: M) -> None:
        if (lease := self._settling(message, "nacked")) is not None:
            self._keeping.leave(lease.handle)
            self._finish(lease, "nacked", None)

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        held_seconds = self.clock.monotonic() - lease.claimed_at
        longest = max(0, int(CAP_SECONDS - held_seconds) - 1)
        delay = min(ceil(delay_seconds), longest)
        lost = self._keeping.put_back(lease.handle, delay)
        if lost is None:  # SQS counts it as in flight until then
            self.returning_until = max(self.returning_until, self.clock.monotonic() + delay)
        return lost

    def _release(self, lease: Lease) -> LeaseLost | None:
        return self._keeping.put_back(lease.handle, 0)

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        return self._keeping.bury(
            lease.handle, reason, detail, lease.attempt, self.lease_seconds
        )

    # -- checkpoints: SQS has no place for them

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        if not self._said_no_checkpoints:
            self._said_no_checkpoints = True
            self.events.emit(ev.CheckpointNotKept(self.name, lease.message_id, lease.attempt))

    def load_checkpoint(self, message: M) -> Any:
        return None

    # -- for people

    def stats(self) -> QueueStats:
        """Approximate, as SQS says itself: good for people, not for arithmetic."""
        names = {
            "ready": "ApproximateNumberOfMessages",
            "delayed": "ApproximateNumberOfMessagesDelayed",
            "leased": "ApproximateNumberOfMessagesNotVisible",
        }
        found = self._service.attributes(*names.values())
        counts = {ours: int(found.get(theirs, 0)) for ours, theirs in names.items()}
        return QueueStats(expired=0, completed=None, failed=self._dead.count(), **counts)

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        if state is not MessageState.FAILED:
            raise Unsupported(
                f"SQS does not show {state.value} messages: `holdfast status` counts them, "
                "`holdfast dead list` shows the dead letters"
            )
        yield from self._dead.views(limit)

    def find(self, message_id: str) -> list[MessageInfo]:
        raise Unsupported("SQS cannot be searched: only dead letters can (`holdfast dead`)")

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = no_progress
    ) -> int:
        return self._dead.redrive(message_id, on_progress)

    def drop(self, message_id: str) -> int:
        return self._dead.drop(message_id)

    def purge(self, older_than_seconds: float) -> int:
        raise Unsupported("SQS keeps nothing of completed messages: there is nothing to purge")

    def close(self) -> None:
        self._service.close()
