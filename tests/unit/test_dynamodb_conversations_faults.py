"""DynamoDBConversations when DynamoDB is busy, leaves something over, or says nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from dynamodb_chat_kit import (
    CANARY,
    KEY,
    LATER,
    NOW,
    acquired,
    answered,
    begun,
    chat_service,
    emptied,
    fragment,
    granted,
    parked,
    stage,
    staged,
    turn,
    window,
)
from dynamodb_faults import (
    READS,
    Client,
    LosesAnswers,
    Meanwhile,
    OneRowAtATime,
    Refuses,
    cancelled,
    error,
)

from holdfast.adapters.aws.dynamodb.chat import DynamoDBConversations
from holdfast.conversations.errors import LockLost, ParkedNotFound
from holdfast.conversations.model import Conversation, LockAcquired, LockGrant, LockHeld, Status
from holdfast.conversations.outbox import WritingReply
from holdfast.core.errors import ConfigError, HoldfastError, StoreUnavailable
from holdfast.testing import ManualClock


@pytest.fixture(scope="module")
def moto() -> Iterator[Any]:
    with chat_service() as client:
        yield client


@pytest.fixture
def client(moto: Any) -> Any:
    return emptied(moto)


def opened(client: Any) -> DynamoDBConversations:
    return DynamoDBConversations(client=client, clock=ManualClock(auto_advance=True))


@pytest.fixture
def store(client: Any) -> DynamoDBConversations:
    return opened(client)


# -- every write there is


@dataclass(frozen=True)
class Case:
    """A write, and what asking for it again may say."""

    call: Callable[[DynamoDBConversations, LockGrant], Any]
    again: type[HoldfastError] | None = None


def _acquire(store: DynamoDBConversations, _: LockGrant) -> Any:
    return store.acquire(
        KEY, owner="second", trigger_id="t2", now=NOW + 60.0, expires_at=NOW + 120.0
    )


BATCH = parked(fragment("m1"), fragment("m2"))
WRITES: dict[str, Case] = {
    "create": Case(lambda store, _: store.create(Conversation(KEY, created_at=NOW))),
    "stage": Case(lambda store, _: store.stage(fragment("m3"), expires_at=LATER)),
    "open_window": Case(
        lambda store, _: store.open_window(window(), now=NOW, untriggered_before=0.0)
    ),
    "mark_triggered": Case(lambda store, _: store.mark_triggered(window("open"))),
    "close_window": Case(lambda store, _: store.close_window("chat", "open")),
    "take over": Case(_acquire),
    "renew": Case(lambda store, grant: store.renew(grant, now=NOW, expires_at=NOW + 90.0)),
    "note": Case(lambda store, grant: store.note(grant, WritingReply(("m1",)), "thread")),
    "release": Case(lambda store, grant: store.release(grant, Status.ERROR), LockLost),
    "finish": Case(
        lambda store, grant: store.finish(grant, turn("m1"), now=NOW, remember_until=LATER),
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


def prepared(store: DynamoDBConversations, name: str) -> LockGrant:
    """A conversation under way; a window, two staged messages and a parked one."""
    stage(store, "m1", "m2")
    if name != "open_window":
        store.open_window(window("open"), now=NOW, untriggered_before=0.0)
    one = parked(fragment("m9"))
    store.park(None, type(one)("there", KEY, "why", NOW, one.staged), remember_until=LATER)
    if name == "create":
        return LockGrant(KEY, "nobody", "t", 1)
    begun(store, status="before")
    return granted(store)


def seen(store: DynamoDBConversations) -> object:
    return (
        store.get(KEY),
        sorted(map(repr, store.staged("chat"))),
        store.history(KEY),
        store.window("chat"),
        sorted(map(repr, store.parked())),
        store.processed(KEY, ["m1", "m2", "m9"]),
    )


class DoneButBusy(Client):
    """Does what it is asked to write, says that it failed, and so is asked again: what
    botocore and Calls make of an answer that was lost."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.failed = 0

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        answer = super().answer(operation, arguments)
        if operation not in READS and not self.failed:
            self.failed += 1
            raise error("InternalServerError", 500)
        return answer


@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_answer_was_lost_is_done_once(moto: Any, name: str) -> None:
    """R002-096, MS-06. Tried again within the call, the second try is refused because of
    the first: that is no loss of the lock, nor somebody else's row. Tried again by the
    caller, who was told StoreUnavailable, nothing is done twice."""
    case = WRITES[name]
    whole = opened(emptied(moto))
    grant = prepared(whole, name)
    said, after = case.call(whole, grant), seen(whole)

    if name != "unpark":  # a person reads that it is not there any more, which is true
        store, busy = opened(emptied(moto)), DoneButBusy(moto)
        grant = prepared(store, name)
        assert case.call(opened(busy), grant) == said
        assert busy.failed == 1
        assert seen(store) == after

    store, silent = opened(emptied(moto)), LosesAnswers(moto)
    grant = prepared(store, name)
    silent.to_lose = 1
    with pytest.raises(StoreUnavailable):
        case.call(opened(silent), grant)
    try:
        case.call(opened(silent), grant)
        refused = None
    except HoldfastError as problem:
        refused = type(problem)
    assert refused is case.again
    assert seen(store) == after


def test_a_lock_that_was_taken_in_silence_is_its_own_trigger_s(moto: Any) -> None:
    """MS-05: asked again, the store says who holds it, and the trigger waits for it."""
    store = opened(emptied(moto))
    begun(store)
    silent = LosesAnswers(moto)
    silent.to_lose = 1
    with pytest.raises(StoreUnavailable):
        acquired(opened(silent))
    said = store.acquire(KEY, owner="o2", trigger_id="t", now=NOW, expires_at=NOW + 60.0)
    assert said == LockHeld("t", NOW + 60.0)


# -- busy rows

BUSY = {
    "conflict": cancelled("TransactionConflict", "None"),
    "throttled row": cancelled("ThrottlingError", "None"),
    "in progress": error("TransactionInProgressException"),
    "throughput": error("ProvisionedThroughputExceededException"),
}


@pytest.mark.parametrize("busy", BUSY.values(), ids=BUSY)
def test_a_turn_that_meets_the_keeper_is_tried_again(
    client: Any, store: DynamoDBConversations, busy: Any
) -> None:
    """MS-07: renewing and finishing write the same row."""
    begun(store)
    some = opened(Refuses(client, busy, busy, only="transact_write_items"))
    some.finish(granted(some), turn("m1"), now=NOW, remember_until=LATER)
    assert len(store.history(KEY)) == 2


def test_a_renewal_that_meets_a_transaction_is_tried_again(
    client: Any, store: DynamoDBConversations
) -> None:
    begun(store)
    grant = granted(store)
    busy = error("TransactionConflictException")
    some = opened(Refuses(client, busy, busy, only="update_item"))
    assert some.renew(grant, now=NOW, expires_at=NOW + 90.0) is True


def test_a_store_that_stays_busy_is_unavailable_and_nothing_is_told_of_the_text(
    client: Any, store: DynamoDBConversations
) -> None:
    begun(store)
    conflicts = [cancelled("TransactionConflict") for _ in range(20)]
    some = opened(Refuses(client, *conflicts, only="transact_write_items"))
    with pytest.raises(StoreUnavailable) as told:
        some.finish(granted(some), turn("m1"), now=NOW, remember_until=LATER)
    assert CANARY not in str(told.value)
    assert store.history(KEY) == []


def test_tables_that_are_missing_are_named_with_the_way_out(client: Any) -> None:
    with pytest.raises(ConfigError, match="holdfast chat tables --create"):
        DynamoDBConversations("other-", client=client).get(KEY)


# -- whoever comes between two of our calls


def test_a_lock_given_back_between_our_look_and_our_grip_is_taken(
    client: Any, store: DynamoDBConversations
) -> None:
    """It had run out when we looked; its owner came to an end right after."""
    begun(store)
    grant = granted(store)
    late = _SecondWrite(client, lambda: store.release(grant, "vip"))
    said = acquired(opened(late), "second", now=NOW + 60.0)
    assert (said.grant.fence, said.conversation.previous_status) == (2, "vip")


def test_a_lock_taken_over_between_our_look_and_our_grip_is_held(
    client: Any, store: DynamoDBConversations
) -> None:
    """I-MS-3: of two who find it expired one has it."""
    begun(store)
    granted(store)
    late = _SecondWrite(client, lambda: granted(store, "faster", now=NOW + 60.0))
    said = opened(late).acquire(
        KEY, owner="slower", trigger_id="t", now=NOW + 60.0, expires_at=NOW + 120.0
    )
    assert said == LockHeld("t", NOW + 120.0)


class _SecondWrite(Meanwhile):
    """Lets somebody else go first, right before the second write."""

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if len(self.made("update_item")) < 2:
            return self.client.update_item(**arguments)
        return super().answer(operation, arguments)


@pytest.mark.parametrize("name", ["finish", "release", "park"])
def test_a_person_who_takes_over_right_before_the_end_has_it(
    client: Any, store: DynamoDBConversations, name: str
) -> None:
    """MS-30: the store believed something else when it made the write."""
    grant = prepared(store, name)
    late = Meanwhile(client, lambda: store.set_status(KEY, Status.WITH_PERSON))
    WRITES[name].call(opened(late), grant)
    assert store.get(KEY).status == Status.WITH_PERSON  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["finish", "release", "park", "note"])
def test_a_takeover_right_before_the_write_is_noticed(
    client: Any, store: DynamoDBConversations, name: str
) -> None:
    """MS-07, MS-08, R002-075: the condition decides, not what was read before."""
    grant = prepared(store, name)
    some = opened(late := Meanwhile(client, lambda: granted(store, "other", now=NOW + 60.0)))
    with pytest.raises(LockLost):
        WRITES[name].call(some, grant)
    assert late.somebody is None
    assert staged(store) == ["m1", "m2"]
    assert store.get(KEY).lock_fence == 2  # type: ignore[union-attr]
    assert store.history(KEY) == []


def test_a_crash_between_two_slices_loses_nothing(
    client: Any, store: DynamoDBConversations
) -> None:
    """I-MS-1: more than forty, as of a conversation that nobody knows. Each message is
    staged or parked, and a second parking ends it."""
    sids = [f"m{n:02}" for n in range(45)]
    batch = parked(*stage(store, *sids))
    dies = _SecondTransaction(client)
    with pytest.raises(StoreUnavailable):
        opened(dies).park(None, batch, remember_until=LATER)
    [some] = store.parked()
    assert 0 < len(some.sids) < 45
    assert sorted([*some.sids, *staged(store)]) == sids
    assert store.processed(KEY, sids) == set(some.sids)
    store.park(None, batch, remember_until=LATER)
    assert sorted(sid for one in store.parked() for sid in one.sids) == sids
    assert staged(store) == []


class _SecondTransaction(Client):
    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if len(self.made("transact_write_items")) == 2:
            raise error("SomethingElse")
        return super().answer(operation, arguments)


# -- what DynamoDB leaves over


class LeavesOver(Client):
    """Takes one put or delete of each batch; none at all from the given call on."""

    stops_after = 1_000

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation != "batch_write_item":
            return super().answer(operation, arguments)
        [(table, requests)] = arguments["RequestItems"].items()
        if len(self.made(operation)) > self.stops_after:
            return {"UnprocessedItems": arguments["RequestItems"]}
        first, *others = requests
        super().answer(operation, {"RequestItems": {table: [first]}})
        return {"UnprocessedItems": {table: others} if others else {}}


def test_staged_rows_that_were_left_over_are_dropped_in_the_end(
    client: Any, store: DynamoDBConversations
) -> None:
    """MS-09, R002-078: BatchWriteItem does not raise, and takes 25 at most."""
    sids = [f"m{n:02}" for n in range(30)]
    stage(store, *sids, "stays")
    some = opened(over := LeavesOver(client))
    some.drop_staged("chat", sids)
    assert staged(store) == ["stays"]
    sizes = [
        len(requests)
        for call in over.made("batch_write_item")
        for requests in call["RequestItems"].values()
    ]
    assert max(sizes) == 25


def test_rows_that_are_left_over_for_ever_are_told(
    client: Any, store: DynamoDBConversations
) -> None:
    stage(store, "m1", "m2")
    stubborn = LeavesOver(client)
    stubborn.stops_after = 1
    with pytest.raises(StoreUnavailable, match="UnprocessedItems"):
        opened(stubborn).drop_staged("chat", ["m1", "m2"])
    assert staged(store) == ["m2"]


class SmallPages(OneRowAtATime):
    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation == "scan":
            return self.client.scan(**{**arguments, "Limit": 1})
        return super().answer(operation, arguments)


def test_every_page_of_every_reading_is_read(client: Any, store: DynamoDBConversations) -> None:
    """MS-17: Query, Scan and BatchGetItem, with one row in each answer."""
    begun(store)
    answered(store, "m8", asked="🙂" * 80_000)
    answered(store, "m9")
    stage(store, "m1", "m2", "m3")
    store.park(None, parked(fragment("m6"), fragment("m7")), remember_until=LATER)
    paged = opened(SmallPages(client))
    assert seen(paged) == seen(store)
    assert list(paged.waiting()) == list(store.waiting())
    assert [one.fragments for one in paged.waiting()] == [3]
    assert list(paged.conversations()) == list(store.conversations())
    assert paged.processed(KEY, ["m1", "m6", "m7", "m8", "m9"]) == {"m6", "m7", "m8", "m9"}
    assert paged.history(KEY, limit=3) == store.history(KEY)[-3:]
    [batch] = paged.parked()
    assert paged.unpark(batch.parked_id, back_to_stage=True, now=NOW, expires_at=LATER) == batch
    assert staged(store) == ["m1", "m2", "m3", "m6", "m7"]


def test_readings_that_must_not_be_behind_are_consistent(
    client: Any, store: DynamoDBConversations
) -> None:
    """R002-029, R002-042: moto cannot lag, so the asking is looked at."""
    begun(store)
    some = opened(noting := Client(client))
    seen(some)
    some.history(KEY)
    with pytest.raises(ParkedNotFound):
        some.unpark("none", back_to_stage=True, now=NOW, expires_at=LATER)
    asked = [call for name, call in noting.calls if name in ("get_item", "query")]
    assert len(asked) >= 4
    assert all(call["ConsistentRead"] for call in asked)
    [batch] = noting.made("batch_get_item")
    assert all(one["ConsistentRead"] for one in batch["RequestItems"].values())
    assert noting.made("scan")[-1]["ConsistentRead"]
    assert isinstance(acquired(store), LockAcquired)
