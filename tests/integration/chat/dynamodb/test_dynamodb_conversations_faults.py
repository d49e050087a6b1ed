"""DynamoDBConversations when DynamoDB is busy, leaves writes unprocessed, or loses
responses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from conversation_rows import CANARY, answer_messages, make_turn

from contracts.conversations.support import (
    KEY,
    LATER,
    NOW,
    acquire_grant,
    acquire_lock,
    create_conversation,
    list_staged_sids,
    make_fragment,
    make_parked,
    make_window,
    stage_messages,
)
from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.errors import LockLost, ParkedNotFound
from holdfast.chat.model import Conversation, LockAcquired, LockGrant, LockHeld, Status
from holdfast.chat.outbox import WritingReply
from holdfast.errors import ConfigError, HoldfastError, StoreUnavailable
from holdfast.testing import ManualClock
from support.dynamodb.faults import (
    READS,
    FailingClient,
    InterleavingClient,
    RecordingClient,
    ResponseLosingClient,
    SingleRowClient,
    make_cancellation,
    make_error,
)
from support.dynamodb.service import clear_tables


def open_store(client: Any) -> DynamoDBConversations:
    return DynamoDBConversations(client=client, clock=ManualClock(auto_advance=True))


# -- all writes


@dataclass(frozen=True)
class Case:
    """A write, and the error that repeating it may raise."""

    call: Callable[[DynamoDBConversations, LockGrant], Any]
    repeat_error: type[HoldfastError] | None = None


def _acquire(store: DynamoDBConversations, _: LockGrant) -> Any:
    return store.acquire(
        KEY, owner="second", trigger_id="t2", now=NOW + 60.0, expires_at=NOW + 120.0
    )


BATCH = make_parked(make_fragment("m1"), make_fragment("m2"))
WRITES: dict[str, Case] = {
    "create": Case(lambda store, _: store.create(Conversation(KEY, created_at=NOW))),
    "stage": Case(lambda store, _: store.stage(make_fragment("m3"), expires_at=LATER)),
    "open_window": Case(
        lambda store, _: store.open_window(make_window(), now=NOW, untriggered_before=0.0)
    ),
    "mark_triggered": Case(lambda store, _: store.mark_triggered(make_window("open"))),
    "close_window": Case(lambda store, _: store.close_window("chat", "open")),
    "take over": Case(_acquire),
    "renew": Case(lambda store, grant: store.renew(grant, now=NOW, expires_at=NOW + 90.0)),
    "note": Case(lambda store, grant: store.note(grant, WritingReply(("m1",)), "thread")),
    "release": Case(lambda store, grant: store.release(grant, Status.ERROR), LockLost),
    "finish": Case(
        lambda store, grant: store.finish(
            grant, make_turn("m1"), now=NOW, remember_until=LATER
        ),
        LockLost,
    ),
    "drop_staged": Case(lambda store, _: store.drop_staged("chat", ["m1", "m2"])),
    "park": Case(lambda store, grant: store.park(grant, BATCH, remember_until=LATER), LockLost),
    "park without lock": Case(lambda store, _: store.park(None, BATCH, remember_until=LATER)),
    "unpark": Case(
        lambda store, _: store.unpark(
            "there", back_to_stage=True, now=NOW + 5.0, expires_at=LATER
        ),
        ParkedNotFound,
    ),
    "set_status": Case(lambda store, _: store.set_status(KEY, Status.WITH_PERSON)),
}


def prepare_store(store: DynamoDBConversations, name: str) -> LockGrant:
    """Store a conversation in progress, with a window, two staged messages and a parked one."""
    stage_messages(store, "m1", "m2")
    if name != "open_window":
        store.open_window(make_window("open"), now=NOW, untriggered_before=0.0)
    batch = make_parked(make_fragment("m9"))
    store.park(None, replace(batch, parked_id="there", reason="why"), remember_until=LATER)
    if name == "create":
        return LockGrant(KEY, "no owner", "t", 1)
    create_conversation(store, status="before")
    return acquire_grant(store)


def read_everything(store: DynamoDBConversations) -> object:
    """Return what is stored, without the staged rows that only have to be removed."""
    staged = {row.message_sid: repr(row) for row in store.staged("chat")}
    for answered in store.processed(KEY, staged):
        del staged[answered]
    return (
        store.get(KEY),
        staged,
        store.history(KEY),
        store.window("chat"),
        sorted(map(repr, store.parked())),
        store.processed(KEY, ["m1", "m2", "m9"]),
    )


class DoneButBusyClient(RecordingClient):
    """A client that makes the first write and reports a failure, so that the write is repeated.

    This is what botocore and DynamoDBClient make of a lost response.
    """

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.failed = 0

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        response = super().respond(operation, arguments)
        if operation not in READS and not self.failed:
            self.failed += 1
            raise make_error("InternalServerError", 500)
        return response


@pytest.mark.requirement("R002-096")
@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_response_was_lost_is_done_once(moto: Any, name: str) -> None:
    """(MS-06). If the call repeats the write, the first try makes DynamoDB refuse the
    second. This is neither a lost lock nor another writer's row. If the caller repeats the call
    after StoreUnavailable, nothing is done twice.
    """
    case = WRITES[name]
    reference = open_store(clear_tables(moto))
    grant = prepare_store(reference, name)
    expected, after = case.call(reference, grant), read_everything(reference)

    if name != "unpark":  # unpark correctly reports that the batch is no longer parked
        store, busy = open_store(clear_tables(moto)), DoneButBusyClient(moto)
        grant = prepare_store(store, name)
        assert case.call(open_store(busy), grant) == expected
        assert busy.failed == 1
        assert read_everything(store) == after

    store, losing = open_store(clear_tables(moto)), ResponseLosingClient(moto)
    grant = prepare_store(store, name)
    losing.responses_to_lose = 1
    with pytest.raises(StoreUnavailable):
        case.call(open_store(losing), grant)
    try:
        case.call(open_store(losing), grant)
        raised = None
    except HoldfastError as error:
        raised = type(error)
    assert raised is case.repeat_error
    assert read_everything(store) == after


def test_a_lock_whose_response_was_lost_is_reported_with_its_trigger(moto: Any) -> None:
    """When the call is repeated, the store names the holding trigger, which waits for the lock
    (MS-05).
    """
    store = open_store(clear_tables(moto))
    create_conversation(store)
    losing = ResponseLosingClient(moto)
    losing.responses_to_lose = 1
    with pytest.raises(StoreUnavailable):
        acquire_lock(open_store(losing))
    outcome = store.acquire(KEY, owner="o2", trigger_id="t", now=NOW, expires_at=NOW + 60.0)
    assert outcome == LockHeld("trigger", NOW + 60.0)


# -- busy rows

BUSY = {
    "conflict": make_cancellation("TransactionConflict", "None"),
    "throttled row": make_cancellation("ThrottlingError", "None"),
    "in progress": make_error("TransactionInProgressException"),
    "throughput": make_error("ProvisionedThroughputExceededException"),
}


@pytest.mark.parametrize("busy", BUSY.values(), ids=BUSY)
def test_a_turn_that_meets_the_keeper_is_tried_again(
    client: Any, store: DynamoDBConversations, busy: Any
) -> None:
    """Other processes write the same rows (MS-07)."""
    create_conversation(store)
    conflicting = open_store(FailingClient(client, busy, busy, only="transact_write_items"))
    conflicting.finish(
        acquire_grant(conflicting), make_turn("m1"), now=NOW, remember_until=LATER
    )
    assert len(store.history(KEY)) == 2


def test_a_renewal_that_meets_a_transaction_is_tried_again(
    client: Any, store: DynamoDBConversations
) -> None:
    create_conversation(store)
    grant = acquire_grant(store)
    busy = make_error("TransactionConflictException")
    conflicting = open_store(FailingClient(client, busy, busy, only="put_item"))
    assert conflicting.renew(grant, now=NOW, expires_at=NOW + 90.0) is True


@pytest.mark.parametrize("was_renewed", [False, True])
def test_a_renewal_that_meets_a_takeover_is_refused(
    client: Any, store: DynamoDBConversations, was_renewed: bool
) -> None:
    """The renewals of a lock have a row of their own, and the takeover writes it, too."""
    create_conversation(store)
    grant = acquire_grant(store)
    if was_renewed:
        assert store.renew(grant, now=NOW, expires_at=NOW + 60.0)
    interleaving = InterleavingClient(
        client, lambda: acquire_grant(store, "other", now=NOW + 60.0)
    )
    renewing = open_store(interleaving)
    assert renewing.renew(grant, now=NOW + 59.0, expires_at=NOW + 119.0) is False
    assert store.get(KEY).lock_expires_at == NOW + 120.0  # type: ignore[union-attr]


@pytest.mark.parametrize("was_renewed", [False, True])
def test_a_takeover_that_meets_a_renewal_finds_the_lock_held(
    client: Any, store: DynamoDBConversations, was_renewed: bool
) -> None:
    create_conversation(store)
    grant = acquire_grant(store)
    if was_renewed:
        assert store.renew(grant, now=NOW, expires_at=NOW + 60.0)
    interleaving = InterleavingClient(
        client, lambda: store.renew(grant, now=NOW + 59.0, expires_at=NOW + 119.0)
    )
    outcome = open_store(interleaving).acquire(
        KEY, owner="other", trigger_id="t", now=NOW + 60.0, expires_at=NOW + 120.0
    )
    assert outcome == LockHeld("trigger", NOW + 119.0)
    store.note(grant, WritingReply(("m1",)), "thread")


def test_a_store_that_stays_busy_is_unavailable_and_its_error_does_not_show_the_text(
    client: Any, store: DynamoDBConversations
) -> None:
    create_conversation(store)
    conflicts = [make_cancellation("TransactionConflict") for _ in range(20)]
    conflicting = open_store(FailingClient(client, *conflicts, only="transact_write_items"))
    with pytest.raises(StoreUnavailable) as raised:
        conflicting.finish(
            acquire_grant(conflicting), make_turn("m1"), now=NOW, remember_until=LATER
        )
    assert CANARY not in str(raised.value)
    assert store.history(KEY) == []


def test_an_error_about_missing_tables_names_the_command_that_creates_them(client: Any) -> None:
    with pytest.raises(ConfigError, match="holdfast chat tables --create"):
        DynamoDBConversations("other-", client=client).get(KEY)


# -- another process that writes between two calls


def test_a_lock_released_between_two_tries_is_acquired(
    client: Any, store: DynamoDBConversations
) -> None:
    """The lock had expired at the first try, and its owner released it right after."""
    create_conversation(store)
    grant = acquire_grant(store)
    interleaving = InterleavingClient(client, lambda: store.release(grant, "vip"))
    outcome = acquire_lock(open_store(interleaving), "second", now=NOW + 60.0)
    assert (outcome.grant.fence, outcome.conversation.previous_status) == (2, "vip")


def test_a_lock_taken_over_between_two_tries_is_reported_as_held(
    client: Any, store: DynamoDBConversations
) -> None:
    """Of two workers that find an expired lock, one gets it (I-MS-3)."""
    create_conversation(store)
    acquire_grant(store)
    interleaving = InterleavingClient(
        client, lambda: acquire_grant(store, "faster", now=NOW + 60.0)
    )
    outcome = open_store(interleaving).acquire(
        KEY, owner="slower", trigger_id="t", now=NOW + 60.0, expires_at=NOW + 120.0
    )
    assert outcome == LockHeld("trigger", NOW + 120.0)


@pytest.mark.parametrize("name", ["finish", "release", "park"])
def test_a_status_that_an_operator_sets_right_before_the_end_is_kept(
    client: Any, store: DynamoDBConversations, name: str
) -> None:
    """The store had read another status when it built the write (MS-30)."""
    grant = prepare_store(store, name)
    interleaving = InterleavingClient(client, lambda: store.set_status(KEY, Status.WITH_PERSON))
    WRITES[name].call(open_store(interleaving), grant)
    assert store.get(KEY).status == Status.WITH_PERSON  # type: ignore[union-attr]


@pytest.mark.requirement("R002-075")
@pytest.mark.parametrize("name", ["finish", "release", "park", "note"])
def test_a_takeover_right_before_the_write_is_noticed(
    client: Any, store: DynamoDBConversations, name: str
) -> None:
    """The condition decides, not an earlier read (MS-07, MS-08)."""
    grant = prepare_store(store, name)
    interleaved_store = open_store(
        interleaving := InterleavingClient(
            client, lambda: acquire_grant(store, "other", now=NOW + 60.0)
        )
    )
    with pytest.raises(LockLost):
        WRITES[name].call(interleaved_store, grant)
    assert interleaving.other_writer is None
    assert list_staged_sids(store) == ["m1", "m2"]
    assert store.get(KEY).lock_fence == 2  # type: ignore[union-attr]
    assert store.history(KEY) == []


def test_a_message_that_another_worker_parks_meanwhile_is_not_parked_twice(
    client: Any, store: DynamoDBConversations
) -> None:
    """The sweepers of two hosts may park overlapping batches without a lock."""
    first, second = stage_messages(store, "m1", "m2")
    interleaving = InterleavingClient(
        client, lambda: store.park(None, make_parked(first), remember_until=LATER)
    )
    batch = make_parked(first, second)
    open_store(interleaving).park(None, batch, remember_until=LATER)
    assert sorted(parked.sids for parked in store.parked()) == [("m1",), ("m2",)]
    assert list_staged_sids(store) == []


def test_a_crash_between_two_slices_loses_nothing(
    client: Any, store: DynamoDBConversations
) -> None:
    """Park more than forty messages of an unknown conversation. Each message stays staged or is
    parked, and a second parking completes it (I-MS-1).
    """
    sids = [f"m{n:02}" for n in range(45)]
    batch = make_parked(*stage_messages(store, *sids))
    crashing = _SecondTransaction(client)
    with pytest.raises(StoreUnavailable):
        open_store(crashing).park(None, batch, remember_until=LATER)
    [partial] = store.parked()
    assert 0 < len(partial.sids) < 45
    assert sorted([*partial.sids, *list_staged_sids(store)]) == sids
    assert store.processed(KEY, sids) == set(partial.sids)
    store.park(None, batch, remember_until=LATER)
    assert sorted(sid for parked in store.parked() for sid in parked.sids) == sids
    assert list_staged_sids(store) == []


class _SecondTransaction(RecordingClient):
    """A client whose second transaction fails."""

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if len(self.list_calls("transact_write_items")) == 2:
            raise make_error("SomethingElse")
        return super().respond(operation, arguments)


# -- unprocessed writes and keys


class PartialBatchClient(RecordingClient):
    """A client that processes one write of each batch, and none after the given number of
    calls.
    """

    stops_after = 1_000

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation != "batch_write_item":
            return super().respond(operation, arguments)
        [(table, requests)] = arguments["RequestItems"].items()
        if len(self.list_calls(operation)) > self.stops_after:
            return {"UnprocessedItems": arguments["RequestItems"]}
        first, *others = requests
        super().respond(operation, {"RequestItems": {table: [first]}})
        return {"UnprocessedItems": {table: others} if others else {}}


@pytest.mark.requirement("R002-078")
def test_unprocessed_deletes_of_staged_rows_are_sent_again(
    client: Any, store: DynamoDBConversations
) -> None:
    """BatchWriteItem does not raise, and takes 25 writes at most (MS-09)."""
    sids = [f"m{n:02}" for n in range(30)]
    stage_messages(store, *sids, "stays")
    leaving_store = open_store(leaving := PartialBatchClient(client))
    leaving_store.drop_staged("chat", sids)
    assert list_staged_sids(store) == ["stays"]
    sizes = [
        len(requests)
        for call in leaving.list_calls("batch_write_item")
        for requests in call["RequestItems"].values()
    ]
    assert max(sizes) == 25


def test_rows_that_stay_unprocessed_raise_an_error(
    client: Any, store: DynamoDBConversations
) -> None:
    stage_messages(store, "m1", "m2")
    stubborn = PartialBatchClient(client)
    stubborn.stops_after = 1
    with pytest.raises(StoreUnavailable, match="UnprocessedItems"):
        open_store(stubborn).drop_staged("chat", ["m1", "m2"])
    assert list_staged_sids(store) == ["m2"]


class SmallPageClient(SingleRowClient):
    """A client that returns pages of one row."""

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation == "scan":
            return self.client.scan(**{**arguments, "Limit": 1})
        return super().respond(operation, arguments)


def test_every_page_of_every_read_is_read(client: Any, store: DynamoDBConversations) -> None:
    """Query, Scan and BatchGetItem return one row in each response (MS-17)."""
    create_conversation(store)
    answer_messages(store, "m8", asked="🙂" * 80_000)
    answer_messages(store, "m9")
    stage_messages(store, "m1", "m2", "m3")
    store.park(
        None, make_parked(make_fragment("m6"), make_fragment("m7")), remember_until=LATER
    )
    paged = open_store(SmallPageClient(client))
    assert read_everything(paged) == read_everything(store)
    assert list(paged.waiting()) == list(store.waiting())
    assert [waiting.fragments for waiting in paged.waiting()] == [3]
    assert list(paged.conversations()) == list(store.conversations())
    assert paged.processed(KEY, ["m1", "m6", "m7", "m8", "m9"]) == {"m6", "m7", "m8", "m9"}
    assert paged.history(KEY, limit=3) == store.history(KEY)[-3:]
    [batch] = paged.parked()
    assert paged.unpark(batch.parked_id, back_to_stage=True, now=NOW, expires_at=LATER) == batch
    assert list_staged_sids(store) == ["m1", "m2", "m3", "m6", "m7"]


@pytest.mark.requirement("R002-029", "R002-042")
def test_reads_that_must_be_current_are_consistent(
    client: Any, store: DynamoDBConversations
) -> None:
    """Moto cannot lag, so the test checks the requests."""
    create_conversation(store)
    recorded_store = open_store(recorder := RecordingClient(client))
    read_everything(recorded_store)
    recorded_store.history(KEY)
    with pytest.raises(ParkedNotFound):
        recorded_store.unpark("none", back_to_stage=True, now=NOW, expires_at=LATER)
    reads = [call for name, call in recorder.calls if name in ("get_item", "query")]
    assert len(reads) >= 4
    assert all(call["ConsistentRead"] for call in reads)
    [batch] = recorder.list_calls("batch_get_item")
    assert all(request["ConsistentRead"] for request in batch["RequestItems"].values())
    assert recorder.list_calls("scan")[-1]["ConsistentRead"]
    assert isinstance(acquire_lock(store), LockAcquired)
