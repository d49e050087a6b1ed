"""Processor, sweeper and operator release the conversation's lock on every exit.

Otherwise the customer would wait until the lock expires.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import stack_size

import pytest

from holdfast.chat import events as cv
from holdfast.chat.errors import PermanentError, SendUnclear
from holdfast.chat.model import Status, UnreadableFragment
from holdfast.chat.outbox import WritingReply
from holdfast.chat.rows import row_from_parked
from holdfast.errors import StoreUnavailable
from holdfast.lease.keeper import LeaseKeeper
from holdfast.testing import MemoryConversations
from holdfast.worker.outcome import Done, Retry
from support.chat.application import Ground, QuietKeeper


@pytest.fixture
def ground() -> Ground:
    return Ground()


@contextmanager
def no_more_threads() -> Iterator[None]:
    """A keeper that cannot start a thread, as on a machine without memory for its stack."""
    before = stack_size(1 << 46)
    try:
        yield
    finally:
        stack_size(before)


def test_without_a_keeper_the_batch_is_answered_and_the_lock_given_back(ground):
    """The error is logged, and the batch is answered without renewal."""
    keeper = LeaseKeeper(ground.clock, ground.events)
    ground.use(ground.store, keeper)
    ground.say("SM1")
    with no_more_threads():
        assert ground.turn() == Done()
    assert not keeper.running
    assert cv.LockNotRenewed("c", "RuntimeError") in ground.emitted
    assert ground.providers.the_sender.texts == ["You said: hello"]
    assert (ground.conversation.status, ground.conversation.lock_trigger) == (
        Status.REPLY_SENT,
        "",
    )
    assert keeper.held == 0


def test_without_a_keeper_nothing_is_sent_once_the_lock_has_run_out():
    ground = Ground(lock_seconds=20.0)
    ground.use(ground.store, LeaseKeeper(ground.clock, ground.events))

    def slow(text: str) -> str:
        ground.clock.advance(20.0)
        return "too late"

    ground.providers.the_writer.reply = slow
    ground.say("SM1")
    with no_more_threads():
        assert isinstance(ground.turn(), Retry)
    assert ground.providers.the_sender.sent == []
    assert isinstance(ground.conversation.outbox, WritingReply)
    assert ground.conversation.status == Status.ERROR


class BrokenKeeper(QuietKeeper):
    """A store that raises `error` in the method that is `broken`."""

    broken: str
    error: BaseException

    def start(self) -> None:
        self._fail("start")

    def hold(self, lease, **more) -> None:
        self._fail("hold")

    def _fail(self, method: str) -> None:
        if method == self.broken:
            raise self.error


@pytest.mark.parametrize("broken", ["start", "hold"])
@pytest.mark.parametrize(
    "error", [OSError(), MemoryError(), SystemExit(3), KeyboardInterrupt()]
)
def test_whatever_the_keeper_raises_the_lock_is_given_back(ground, broken, error):
    keeper = BrokenKeeper(ground.clock, ground.events)
    keeper.broken, keeper.error = broken, error
    ground.use(ground.store, keeper)
    ground.say("SM1")
    ground.clock.advance(10.0)
    trigger = ground.poll()
    if isinstance(error, Exception):
        assert ground.handle(trigger) == Done()
    else:
        with pytest.raises(type(error)):
            ground.handle(trigger)
    assert ground.conversation.status != Status.PROCESSING


class Struck(MemoryConversations):
    """A store that raises `error` in the named call after a lock was acquired."""

    call: str
    error: BaseException
    locked = False

    def acquire(self, *args, **more):
        self.locked = True
        return super().acquire(*args, **more)

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "call") and self.locked:
            raise self.error
        return super().__getattribute__(name)


def struck(ground: Ground, call: str, error: BaseException) -> None:
    store = Struck(ground.store, clock=ground.clock)
    store.call, store.error = call, error
    ground.use(store)


ERRORS = [
    StoreUnavailable("away"),
    PermanentError("too large"),
    SystemExit(3),
    KeyboardInterrupt(),
]


@pytest.mark.requirement("R002-024", "R002-027", "R002-031", "R002-044", "R002-083")
@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("call", ["staged", "processed", "close_window", "note", "finish"])
def test_a_batch_that_fails_anywhere_gives_the_lock_back(ground, call, error):
    ground.say("SM1")
    ground.clock.advance(10.0)
    struck(ground, call, error)
    trigger = ground.poll()
    outcome = None
    with suppress(type(error)):
        outcome = ground.handle(trigger)
    assert isinstance(outcome, Retry) or not isinstance(error, StoreUnavailable)
    assert ground.conversation.status != Status.PROCESSING


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("call", ["staged", "processed", "drop_staged", "park"])
def test_a_sweeper_that_fails_anywhere_gives_the_lock_back(ground, call, error):
    ground.say("SM0")
    ground.run_until_quiet()
    ground.say("SM0")  # again, so that there is a row to drop
    ground.say("SM1")
    before = ground.conversation.status
    ground.clock.advance(ground.policy.park_after_seconds + 1.0)
    struck(ground, call, error)
    with suppress(type(error)):
        ground.sweeper.sweep()
    assert ground.conversation.status == before


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_desk_that_fails_gives_the_lock_back(ground, error):
    ground.providers.the_sender.troubles = [SendUnclear("no answer")]
    ground.providers.the_sender.can_tell = False
    ground.say("SM1")
    ground.run_until_quiet()
    [parked] = ground.store.parked()
    struck(ground, "finish", error)
    with pytest.raises(type(error)):
        ground.operator.sent(parked.parked_id)
    assert ground.conversation.status == Status.PARKED
    assert list(ground.store.parked()) == [parked]


def test_a_reply_to_rows_that_became_unreadable_becomes_history(ground):
    ground.providers.the_sender.troubles = [SendUnclear("no answer")]
    ground.providers.the_sender.can_tell = False
    ground.say("SM1")
    ground.run_until_quiet()
    [parked] = ground.store.parked()
    damaged = replace(parked, staged=(UnreadableFragment("SM1", "it has no body", {}),))
    with ground.store._database.begin_write() as rows:
        rows.replace("parked", [row_from_parked(damaged)])
    ground.operator.sent(parked.parked_id)
    assert [role for role, _ in ground.history] == ["user", "assistant"]
