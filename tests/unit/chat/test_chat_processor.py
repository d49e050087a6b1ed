"""The steps of a turn and each failure branch, in the documented order."""

from threading import Event

import pytest

from holdfast.chat import events as cv
from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    SendUnclear,
    ThreadGone,
    TransientError,
)
from holdfast.chat.messages import Trigger
from holdfast.chat.model import (
    ConversationKey,
    Fragment,
    ParkedBatch,
    Status,
    Turn,
    UnreadableFragment,
    Window,
)
from holdfast.chat.outbox import PreparedReply, SendingReply, SentReply, WritingReply
from holdfast.errors import StoreUnavailable
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import get_lease
from holdfast.testing import ManualClock, MemoryConversations
from holdfast.worker.outcome import Done, GiveBack, Retry
from holdfast.worker.runner import Context
from support.chat.application import AI_CONFIG, KEY, Ground
from support.chat.providers import FakeSender


@pytest.fixture
def ground() -> Ground:
    return Ground()


# -- the happy path


@pytest.mark.requirement(
    "R002-038",
    "R002-043",
)
def test_three_quick_messages_are_answered_by_one_reply(ground):
    for sid, body in [("SM1", "I have"), ("SM2", "a question"), ("SM3", "about my bill")]:
        ground.say(sid, body)
        ground.clock.advance(1.0)
    assert ground.turn(7.0) == Done()
    text = "I have\na question\nabout my bill"
    assert ground.providers.the_sender.texts == [f"You said: {text}"]
    assert ground.history == [("user", text), ("assistant", f"You said: {text}")]
    row = ground.conversation
    assert (row.status, row.outbox, row.lock_expires_at > ground.clock.time()) == (
        Status.REPLY_SENT,
        None,
        False,
    )
    assert (row.thread_id, row.last_assistant_message_sid) == ("thread-1", "SM1")
    assert (row.prompt_tokens, row.completion_tokens, row.updated_at) == (
        7,
        3,
        ground.clock.time(),
    )
    assert ground.store.staged("c") == []
    assert ground.store.window("c") is None
    assert ground.queue.stats().completed == 1


@pytest.mark.requirement("R002-009", "R002-010")
def test_only_the_first_message_of_a_window_sends_a_trigger(ground):
    assert [ground.say(f"SM{n}").opened for n in range(4)] == [True, False, False, False]
    assert ground.queue.stats().delayed == 1


@pytest.mark.requirement("R002-005", "R002-011")
def test_the_trigger_waits_for_the_window(ground):
    ground.say("SM1")
    ground.clock.advance(9.0)
    assert ground.poll() is None
    ground.clock.advance(1.0)
    assert ground.poll() is not None


@pytest.mark.requirement("R002-037", "R002-063", "R002-066", "R002-067")
def test_the_history_has_sids_times_tokens_and_status(ground):
    ground.say("SM7", "hi")
    ground.turn()
    user, assistant = ground.store.history(KEY)
    assert (user.role, user.body) == ("user", "hi")
    assert (assistant.role, assistant.body) == ("assistant", "You said: hi")
    assert assistant.at == ground.clock.time()
    assert (user.message_sid, user.details["sids"], user.at) == (
        "SM7",
        ["SM7"],
        ground.clock.time(),
    )
    assert assistant.message_sid == "SM1"
    assert assistant.details["status"] == "queued"
    assert (assistant.details["prompt_tokens"], assistant.details["completion_tokens"]) == (
        7,
        3,
    )
    assert (user.seq, assistant.seq) == (1, 2)


@pytest.mark.requirement(
    "R002-012",
    "R002-052",
    "R002-053",
    "R002-054",
    "R002-055",
    "R002-056",
    "R002-072",
    "R002-074",
    "R002-091",
)
def test_the_next_batch_goes_on_in_the_same_thread(ground):
    ground.say("SM1", "one")
    ground.turn()
    ground.say("SM2", "two")
    ground.turn()
    first, second = ground.providers.the_writer.asked
    assert (first.thread_id, first.thread_mark) == ("thread-1", "")
    assert (second.thread_id, second.thread_mark) == ("thread-1", "item-1")
    assert ground.providers.the_writer.threads == 1
    assert [body for _, body in ground.history] == [
        "one",
        "You said: one",
        "two",
        "You said: two",
    ]
    assert ground.conversation.prompt_tokens == 14


# -- windows


def test_a_customer_who_is_still_typing_is_waited_for(ground):
    ground = Ground(quiet_seconds=3.0, max_wait_seconds=60.0)
    ground.say("SM1", "one")
    ground.clock.advance(9.0)
    ground.say("SM2", "two")
    assert ground.turn(1.0) == Done()
    assert ground.providers.the_sender.texts == []
    assert ground.conversation.status == ""
    ground.clock.advance(1.0)
    assert not ground.say("SM3", "three").opened, "the window is still open"
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: one\ntwo\nthree"]
    assert ground.store.window("c") is None


def test_a_later_trigger_that_comes_at_once_does_not_meet_the_lock(ground):
    """Otherwise the later trigger would be acked, and no trigger would be left."""
    ground = Ground(quiet_seconds=3.0, max_wait_seconds=60.0)
    prolong = ground.processor._prolong_window

    def slow(trigger: Trigger, delay_seconds: float) -> None:
        prolong(trigger, delay_seconds)
        ground.processor._prolong_window = prolong
        ground.clock.advance(delay_seconds)
        assert ground.handle(ground.poll()) == Done(), "the later trigger, handled elsewhere"

    ground.processor._prolong_window = slow
    ground.say("SM1", "one")
    ground.clock.advance(9.0)
    ground.say("SM2", "two")
    ground.turn(1.0)
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: one\ntwo"]


def test_a_worker_whose_trigger_was_settled_elsewhere_sends_another_trigger(ground):
    """The worker is frozen before it takes the lock, and then fails.

    By then its trigger is gone, and the trigger that found its lock held was acked.
    """
    ground.say("SM1", "one")
    ground.clock.advance(10.0)
    frozen = ground.poll()
    ground.clock.advance(61.0)
    assert ground.handle(ground.poll()) == Done(), "the second delivery answers all"

    def reply(text: str) -> str:
        if text == "two" and len(ground.providers.the_writer.asked) == 2:
            assert ground.turn() == Done(), "the trigger of this message finds the lock held"
        return f"re: {text}"

    ground.providers.the_writer.reply = reply
    ground.say("SM2", "two")
    lease = get_lease(frozen)
    ctx = Context(ground.queue, frozen, lease, ground.stopping, ground.clock)
    assert isinstance(ground.processor(frozen, ctx), Retry)
    ground.run_until_quiet()
    assert [body for _, body in ground.history][2:] == ["two", "re: two"]


def test_a_talkative_customer_is_answered_after_the_longest_wait():
    ground = Ground(quiet_seconds=3.0, max_wait_seconds=30.0)
    started = ground.clock.time()
    for number in range(100):
        ground.say(f"SM{number:03}", str(number))
        ground.clock.advance(1.0)
        if (trigger := ground.poll()) is not None:
            ground.handle(trigger)
        if ground.providers.the_sender.sent:
            break
    assert 29.0 <= ground.clock.time() - started <= 32.0


def test_clocks_that_disagree_prolong_no_wait_for_ever():
    """The trigger counts the time waited; the stager's clock is not used."""
    ground = Ground(quiet_seconds=3.0, max_wait_seconds=30.0)
    ground.clock.step_time(3600.0)
    ground.say("SM1")
    ground.clock.step_time(-3600.0)
    ground.run_until_quiet(40.0)
    assert len(ground.providers.the_sender.sent) == 1


@pytest.mark.requirement("R002-079")
def test_a_message_during_the_turn_has_a_window_of_its_own(ground):
    """Late arrivals are answered without another message of the customer (MS-03)."""

    def reply(text: str) -> str:
        if text == "one":
            assert ground.say("SM2", "late").opened
        return f"re: {text}"

    ground.providers.the_writer.reply = reply
    ground.say("SM1", "one")
    ground.turn()
    stats = ground.queue.stats()
    assert (stats.delayed, stats.ready) == (1, 0), "its own trigger, and no follow-up beside it"
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["re: one", "re: late"]


@pytest.mark.requirement("R002-023")
def test_a_trigger_that_meets_a_working_owner_is_acked_and_the_owner_answers(ground):
    """The owner checks again after the lock is released (MS-04)."""

    def reply(text: str) -> str:
        if text == "one":
            ground.say("SM2", "late")
            assert ground.turn() == Done()
            assert ground.names()[-2:] == ["LockBusy", "Completed"]
        return f"re: {text}"

    ground.providers.the_writer.reply = reply
    ground.say("SM1", "one")
    ground.turn()
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["re: one", "re: late"]
    assert ground.store.staged("c") == []


def test_a_message_that_comes_before_the_send_does_not_supersede_the_reply(ground):
    """The rule is that a reply answers the messages it was written for."""
    ground.providers.the_sender.troubles = [TransientError("throttled")]
    ground.say("SM1", "book for five")
    assert isinstance(ground.turn(), Retry)
    ground.say("SM2", "no, six")
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: book for five", "You said: no, six"]
    assert [role for role, _ in ground.history] == ["user", "assistant"] * 2


def test_more_messages_than_one_write_holds_are_answered_in_turns():
    ground = Ground(most_fragments=3)
    for number in range(8):
        ground.say(f"SM{number}", str(number))
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == [
        "You said: 0\n1\n2",
        "You said: 3\n4\n5",
        "You said: 6\n7",
    ]


# -- the lock


@pytest.mark.requirement("R002-023")
def test_the_owners_own_trigger_comes_back_when_the_lock_may_be_free(ground):
    """If it were acked, no trigger would be left to take over from a dead owner (MS-05)."""
    ground.say("SM1")
    ground.clock.advance(10.0)
    trigger = ground.poll()
    now = ground.clock.time()
    ground.store.acquire(
        KEY, owner="dead", trigger_id=trigger.id, now=now, expires_at=now + 45.0
    )
    outcome = ground.handle(trigger)
    assert isinstance(outcome, Retry)
    assert outcome.after_seconds == pytest.approx(45.0)
    ground.clock.advance(46.0)
    assert ground.turn(0.0) == Done()
    assert len(ground.providers.the_sender.sent) == 1


@pytest.mark.requirement("R002-021")
def test_a_lock_that_ran_out_is_taken_over(ground):
    """(MS-01, I-MS-4)"""
    now = ground.clock.time()
    ground.store.acquire(KEY, owner="dead", trigger_id="x", now=now, expires_at=now + 5.0)
    ground.say("SM1")
    ground.turn()
    assert len(ground.providers.the_sender.sent) == 1
    assert ground.conversation.lock_fence == 2


@pytest.mark.requirement("R002-022", "R002-025", "R002-084")
def test_the_lock_is_renewed_with_the_keeper_while_the_writer_thinks(ground):
    """by the keeper; MS-27."""

    def reply(text: str) -> str:
        for _ in range(20):
            ground.clock.advance(10.0)
            ground.keeper.tick()
            ground.queue.extend(trigger)
        return "at last"

    ground.providers.the_writer.reply = reply
    ground.say("SM1")
    ground.clock.advance(10.0)
    trigger = ground.poll()
    assert ground.handle(trigger) == Done()
    assert ground.providers.the_sender.texts == ["at last"]
    assert ground.keeper.held == 0


@pytest.mark.requirement("R002-026")
def test_the_keeper_is_started_with_the_first_trigger():
    ground = Ground(clock=ManualClock())  # the keeper's thread must not move the time
    keeper = LeaseKeeper(ground.clock)
    ground.use(ground.store, keeper)
    ground.say("SM1")
    assert not keeper.running
    try:
        assert ground.turn() == Done()
        assert keeper.running
    finally:
        keeper.stop()


@pytest.mark.requirement("R002-028", "R002-085", "R002-095")
def test_a_worker_frozen_past_its_lock_sends_nothing(ground):
    """The stale holder's next write is refused, the new owner's stays.

    (MS-07, MS-08, I-MS-3)
    """

    def reply(text: str) -> str:
        if len(ground.providers.the_writer.asked) == 1:
            ground.clock.advance(61.0)
            assert ground.turn(0.0) == Done(), "another worker has the trigger, and answers"
        return f"answer {len(ground.providers.the_writer.asked)}"

    ground.providers.the_writer.reply = reply
    ground.say("SM1")
    ground.turn()
    assert len(ground.providers.the_sender.sent) == 1
    assert len(ground.history) == 2
    assert ground.conversation.status == Status.REPLY_SENT
    assert "ReleaseFailed" not in ground.names(), "the lock of another worker is not a failure"


@pytest.mark.requirement("R002-028", "R002-085")
@pytest.mark.parametrize("kept", ["the message", "the lock"])
def test_a_worker_whose_lease_expired_stops_even_without_a_takeover(ground, kept):
    """Both must be held, and the lock is released for the next attempt."""

    def reply(text: str) -> str:
        for _ in range(7):
            ground.clock.advance(10.0)
            ground.queue.extend(trigger) if kept == "the message" else ground.keeper.tick()
        return "too late"

    ground.providers.the_writer.reply = reply
    ground.say("SM1")
    ground.clock.advance(10.0)
    trigger = ground.poll()
    assert isinstance(ground.handle(trigger), Retry)
    assert ground.conversation.outbox == WritingReply(("SM1",))
    assert ground.conversation.status == Status.ERROR


@pytest.mark.requirement("R002-056")
def test_a_lease_that_runs_out_right_before_the_send_sends_nothing(ground):
    sender = ground.providers.sender

    def slow_second(name: str):
        if isinstance(ground.conversation.outbox, PreparedReply):
            ground.providers.sender = sender
            ground.clock.advance(61.0)
        return sender(name)

    ground.providers.sender = slow_second
    ground.say("SM1", "hi")
    assert isinstance(ground.turn(), Retry)
    assert ground.providers.the_sender.sent == []
    assert isinstance(ground.conversation.outbox, PreparedReply)
    ground.run_until_quiet()
    assert len(ground.providers.the_writer.asked) == 1
    assert ground.providers.the_sender.texts == ["You said: hi"]


@pytest.mark.requirement("R002-028")
def test_a_renewal_that_is_refused_stops_the_work(ground):
    def reply(text: str) -> str:
        ground.clock.advance(30.0)
        row = ground.conversation
        ground.store.acquire(
            KEY, owner="other", trigger_id="x", now=row.lock_expires_at + 1, expires_at=9e9
        )
        ground.keeper.tick()
        return "too late"

    ground.providers.the_writer.reply = reply
    ground.say("SM1")
    outcome = ground.turn()
    assert isinstance(outcome, Retry)
    assert outcome.log_reason == "LeaseLost", "known from the keeper, not from a refused write"
    assert ground.providers.the_sender.sent == []
    assert ground.conversation.lock_trigger == "x", "the other owner keeps the lock"


@pytest.mark.requirement("R002-028")
def test_a_lock_counts_from_before_the_call_that_took_it(ground):
    """The response came so late that another worker may have the lock by now."""
    acquire = ground.store.acquire

    def slow(*key: object, **how: object) -> object:
        result = acquire(*key, **how)
        for _ in range(2):
            ground.clock.advance(31.0)
            ground.queue.extend(trigger)
        return result

    ground.store.acquire = slow
    ground.say("SM1")
    ground.clock.advance(10.0)
    trigger = ground.poll()
    assert isinstance(ground.handle(trigger), Retry)
    assert ground.providers.the_writer.asked == []


def test_a_lock_that_is_released_while_the_window_is_closed_is_taken(ground):
    """The other owner checked the staged rows before this window was closed."""
    ground.say("SM1", "hi")
    ground.clock.advance(10.0)
    now = ground.clock.time()
    other = ground.store.acquire(
        KEY, owner="other", trigger_id="x", now=now, expires_at=now + 60.0
    )
    close_window = ground.store.close_window

    def close_and_release(*window: str) -> None:
        close_window(*window)
        ground.store.close_window = close_window
        ground.store.release(other.grant, None)

    ground.store.close_window = close_and_release
    assert ground.turn(0.0) == Done()
    assert ground.providers.the_sender.texts == ["You said: hi"]


# -- no messages, or no conversation


@pytest.mark.requirement("R002-032")
def test_an_empty_batch_gives_the_lock_back_and_is_done(ground):
    """The status is restored (MS-02)."""
    ground.store.set_status(KEY, "vip")
    ground.queue.push(Trigger(conversation_id="c", primary_channel=KEY.primary_channel))
    assert ground.turn(0.0) == Done()
    assert ground.conversation.status == "vip"
    assert "NothingStaged" in ground.names()


@pytest.mark.requirement("R002-032")
def test_a_message_that_joins_while_an_empty_trigger_ends_is_answered(ground):
    """The window is closed before the last check, never after it."""
    ground.say("SM1", "one")
    ground.clock.advance(10.0)
    trigger = ground.poll()
    ground.store.drop_staged("c", ["SM1"])
    close = ground.store.close_window

    def join_first(*names: str) -> None:
        ground.say("SM2", "just in time")
        close(*names)

    ground.store.close_window = join_first
    ground.handle(trigger)
    ground.store.close_window = close
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: just in time"]


@pytest.mark.requirement("R002-045")
def test_messages_to_a_conversation_that_is_not_there_are_parked():
    """No conversation is created, and nothing is lost (MS-12)."""
    ground = Ground(conversation=False)
    ground.say("SM1", "hello?")
    assert ground.turn() == Done()
    assert ground.parked_reasons == ["there is no such conversation"]
    assert ground.store.get(KEY) is None
    assert ground.store.staged("c") == []
    assert ground.store.window("c") is None


def test_a_text_that_staging_would_have_refused_is_put_aside(ground):
    """Other programs may write large rows, but one write must hold a batch."""
    ground.say("SM1", "one")
    long = Fragment(KEY, "SM0", "x" * 64_001, received_at=1.0, staged_at=1.0)
    ground.store.stage(long, expires_at=9e9)
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: one"]
    assert ground.parked_reasons == ["its text is too long"]


def test_long_texts_are_answered_in_turns(ground):
    for number in range(3):
        ground.say(f"SM{number}", str(number) * 60_000)
    ground.run_until_quiet()
    assert [len(question.text) for question in ground.providers.the_writer.asked] == [
        60_000
    ] * 3


def test_the_outbox_of_messages_that_are_gone_is_not_sent_to_others(ground):
    ground.providers.the_sender.troubles = [TransientError("away")]
    ground.say("SM1", "one")
    ground.turn()
    ground.store.drop_staged("c", ["SM1"])
    ground.say("SM2", "two")
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: two"]


@pytest.mark.parametrize("state", ["unsent", "expired"])
def test_a_window_whose_trigger_will_not_come_is_not_relied_on(ground, state):
    """The late message gets a trigger although a window is open."""

    def reply(text: str) -> str:
        if text == "one":
            now = ground.clock.time()
            until = now + 100.0 if state == "unsent" else now - 1.0
            window = Window("c", "never sent", "SM2", now, until, triggered=state != "unsent")
            ground.store.open_window(window, now=now, untriggered_before=now)
            late = Fragment(KEY, "SM2", "late", received_at=now, staged_at=now)
            ground.store.stage(late, expires_at=9e9)
        return f"re: {text}"

    ground.providers.the_writer.reply = reply
    ground.say("SM1", "one")
    ground.turn()
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["re: one", "re: late"]


@pytest.mark.requirement("R002-036", "R002-040")
def test_rows_of_another_channel_are_put_aside_and_the_others_answered(ground):
    """Every row is checked, not only the first (MS-18)."""
    ground.say("SM1", "one")
    ground.say("SM2", "two", **{"from": "whatsapp:else"})
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: one"]
    assert ground.parked_reasons == ["its channel is not the channel of its trigger"]


@pytest.mark.requirement("R002-039")
def test_a_row_that_cannot_be_read_is_put_aside_and_the_others_answered(ground):
    """It must not block later batches (MS-18)."""
    row = UnreadableFragment("SM0", "received_at: not a time", {"received_at": "soon"})
    parked = ParkedBatch("p", KEY, "to begin with", 1.0, (row,))
    ground.store.park(None, parked, remember_until=2.0)
    ground.store.unpark("p", back_to_stage=True, now=1.0, expires_at=9e9)
    ground.say("SM1", "one")
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: one"]
    assert ground.parked_reasons == ["this message cannot be read: received_at: not a time"]


@pytest.mark.requirement("R002-080")
def test_a_last_look_that_fails_brings_the_trigger_back_for_nothing(ground):
    """Not acked, or a message might have no trigger; nothing is done twice."""
    staged, looks = ground.store.staged, []

    def failing_second(conversation_id: str):
        looks.append(conversation_id)
        if len(looks) == 2:
            raise StoreUnavailable("throttled")
        return staged(conversation_id)

    ground.store.staged = failing_second
    ground.say("SM1", "one")
    assert isinstance(ground.turn(), Retry)
    assert ground.conversation.status == Status.REPLY_SENT
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1
    assert "NothingStaged" in ground.names()


@pytest.mark.requirement("R002-087")
def test_a_lock_that_cannot_be_given_back_runs_out(ground):
    """It is reported, and the first error decides the outcome (MS-26)."""
    release = ground.store.release

    def failing(*_: object) -> None:
        ground.store.release = release
        raise StoreUnavailable("away")

    ground.store.release = failing
    ground.providers.the_writer.troubles = [TransientError("OpenAI: 500")]
    ground.say("SM1", "one")
    outcome = ground.turn()
    assert isinstance(outcome, Retry)
    assert outcome.reason == "OpenAI: 500"
    assert cv.ReleaseFailed("c", "StoreUnavailable") in ground.emitted
    assert ground.conversation.status == Status.PROCESSING
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1


@pytest.mark.requirement("R002-097")
def test_a_message_that_was_answered_before_is_not_answered_again(ground):
    """A webhook is repeated long after its message was answered (MS-20)."""
    ground.say("SM1", "one")
    ground.turn()
    assert ground.say("SM1", "one").new, "its row is gone, so it is staged again"
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1
    assert len(ground.history) == 2
    assert ground.store.staged("c") == []


# -- secrets and configuration


@pytest.mark.requirement("R002-046", "R002-047", "R002-048", "R002-049", "R002-050", "R002-051")
@pytest.mark.parametrize("missing", ["openai-secret", "twilio-secret"])
def test_a_secret_that_is_not_there_parks_before_anything_is_paid_for(ground, missing):
    """(MS-22)."""
    ground.providers.secrets.missing = {missing}
    ground.say("SM1")
    assert ground.turn() == Done()
    assert ground.parked_reasons == [f"there is no secret '{missing}'"]
    assert ground.providers.the_writer.asked == []
    assert ground.conversation.status == Status.PARKED


@pytest.mark.parametrize("of", ["the_writer", "the_sender"])
def test_a_secret_that_is_not_whole_parks_before_anything_is_paid_for(ground, of):
    getattr(ground.providers, of).secret_fields = ("pass_phrase",)
    ground.say("SM1")
    ground.turn()
    [reason] = ground.parked_reasons
    assert "has no 'pass_phrase'" in reason
    assert ground.providers.the_writer.asked == []


@pytest.mark.requirement("R002-050")
@pytest.mark.parametrize(
    ("configs", "name"),
    [
        ({"ai_config": {}}, "ai_api_key_reference"),
        ({"channel_config": {}}, "whatsapp_credentials_id"),
    ],
)
def test_a_reference_that_is_missing_parks(configs, name):
    ground = Ground(conversation=False)
    ground.open(**configs)
    ground.say("SM1")
    ground.turn()
    assert ground.parked_reasons == [f"the conversation has no {name}"]
    assert ground.providers.the_writer.asked == []


@pytest.mark.requirement("R002-051")
def test_secrets_that_do_not_answer_are_tried_again(ground):
    ground.providers.secrets.troubles = [TransientError("Secrets Manager: throttled")]
    ground.say("SM1")
    assert isinstance(ground.turn(), Retry)
    assert ground.conversation.status == Status.ERROR
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1


def test_a_secret_the_provider_does_not_take_is_fetched_anew(ground):
    ground.providers.the_writer.troubles = [AuthenticationFailed("OpenAI: 401")]
    ground.providers.the_sender.troubles = [AuthenticationFailed("Twilio: 401")]
    ground.say("SM1")
    ground.run_until_quiet()
    assert ground.providers.secrets.forgotten == ["openai-secret", "twilio-secret"]
    assert len(ground.providers.the_sender.sent) == 1


# -- the writer


@pytest.mark.requirement(
    "R002-057", "R002-058", "R002-083", "R002-086", "R002-088", "R002-089", "R002-090"
)
@pytest.mark.parametrize(
    "trouble", [TransientError("OpenAI: 500"), TransientError("OpenAI: timed out")]
)
def test_a_writer_that_fails_is_asked_again_and_nothing_is_recorded(ground, trouble):
    ground.providers.the_writer.troubles = [trouble]
    ground.say("SM1", "hi")
    assert isinstance(ground.turn(), Retry)
    assert ground.conversation.status == Status.ERROR
    assert ground.history == []
    assert ground.conversation.outbox == WritingReply(("SM1",))
    ground.run_until_quiet()
    assert [question.again for question in ground.providers.the_writer.asked] == [False, True]
    assert len(ground.history) == 2


@pytest.mark.requirement("R002-072", "R002-090", "R002-091")
def test_a_retry_asks_for_the_same_messages_in_the_same_thread(ground):
    """A thread must not get the same text twice, alone and with more (MS-21)."""
    ground.providers.the_writer.troubles = [TransientError("away")]
    ground.say("SM1", "one")
    ground.turn()
    ground.say("SM2", "two")
    ground.run_until_quiet()
    asked = ground.providers.the_writer.asked
    assert [question.text for question in asked] == ["one", "one", "two"]
    assert {question.thread_id for question in asked} == {"thread-1"}
    assert [question.again for question in asked] == [False, True, False]


def test_a_thread_that_is_gone_is_begun_anew(ground):
    ground.providers.the_writer.troubles = [ThreadGone()]
    ground.say("SM1")
    assert ground.turn() == Done()
    assert ground.conversation.thread_id == "thread-2"


def test_a_writer_that_answers_nothing_parks(ground):
    """(MS-22)"""
    ground.providers.the_writer.reply = lambda text: " \n"
    ground.say("SM1")
    assert ground.turn() == Done()
    assert ground.parked_reasons == ["the writer returned an empty reply"]
    assert ground.providers.the_sender.sent == []


def test_a_parked_reply_is_not_taken_for_the_answer_to_the_same_words_later(ground):
    """The mark moves behind it, also behind an empty answer (MS-21)."""
    ground.providers.the_sender.troubles = [PermanentError("refused")]
    ground.say("SM1", "yes")
    ground.turn()
    ground.providers.the_writer.reply = lambda text: ""
    ground.say("SM2", "yes")
    ground.turn()
    ground.say("SM3", "yes")
    ground.turn()
    marks = [question.thread_mark for question in ground.providers.the_writer.asked]
    assert marks == ["", "item-1", "item-2"]


def test_a_bug_is_tried_again_and_parked_with_the_last_attempt(ground):
    """An unknown error may be transient, but must neither cost tokens forever nor be lost."""
    ground.providers.the_writer.troubles = [ZeroDivisionError("canary")] * 9
    ground.say("SM1")
    for _ in range(4):
        assert ground.turn(400.0).log_reason == "ZeroDivisionError"
        ground.clock.advance(61.0)
    assert ground.turn(400.0) == Done()
    [reason] = ground.parked_reasons
    assert reason == "every attempt failed, the last one with ZeroDivisionError"
    assert len(ground.providers.the_writer.asked) == 5


# -- the sender


@pytest.mark.requirement("R002-056", "R002-064", "R002-088", "R002-093")
def test_a_reply_that_could_not_be_sent_is_not_written_again(ground):
    """The outbox keeps the reply, and the lock is free meanwhile."""
    ground.providers.the_sender.troubles = [TransientError("Twilio: 429")]
    ground.say("SM1", "hi")
    assert isinstance(ground.turn(), Retry)
    assert isinstance(ground.conversation.outbox, PreparedReply)
    assert ground.conversation.status == Status.ERROR
    ground.run_until_quiet()
    assert len(ground.providers.the_writer.asked) == 1
    assert ground.providers.the_sender.texts == ["You said: hi"]


@pytest.mark.requirement("R002-065")
def test_a_number_the_provider_refuses_parks_with_the_reply(ground):
    """No retry, no second reply from the writer (MS-22)."""
    ground.providers.the_sender.troubles = [PermanentError("Twilio refused the number (21211)")]
    ground.say("SM1", "hi")
    assert ground.turn() == Done()
    [parked] = ground.store.parked()
    assert parked.reason == "Twilio refused the number (21211)"
    assert parked.outbox.answer.text == "You said: hi"
    assert parked.sids == ("SM1",)
    assert (ground.conversation.status, ground.conversation.outbox) == (Status.PARKED, None)
    ground.say("SM2", "still there?")
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: still there?"]


@pytest.mark.requirement("R002-064")
def test_an_unclear_send_is_looked_up_at_the_provider(ground):
    """The provider has it, so it is not sent again (MS-06)."""
    ground.providers.the_sender.after_sending = [SendUnclear("no answer")]
    ground.say("SM1", "hi")
    assert ground.turn() == Done()
    assert len(ground.providers.the_sender.sent) == 1
    assert len(ground.history) == 2
    assert cv.SendInDoubt("c", "found") in ground.emitted


def test_messages_of_earlier_replies_are_not_mistaken_for_the_unclear_part(ground):
    """Earlier replies may have the same text; their sids are known."""
    ground.providers.the_writer.reply = lambda text: "\n\n".join(c * 1500 for c in "ab")
    ground.say("SM1")
    ground.turn()
    ground.providers.the_sender.after_sending = [SendUnclear("no answer")]
    ground.say("SM2")
    ground.run_until_quiet()
    assert set(ground.providers.the_sender.known) == {"SM1", "SM2"}
    assert len(ground.providers.the_sender.sent) == 4


@pytest.mark.parametrize("doubt", ["if_missing", "at_most_once"])
@pytest.mark.parametrize("can_tell", [True, False])
def test_an_unclear_part_is_parked_unless_the_provider_reports_it_missing(doubt, can_tell):
    """An operator decides about what stays unknown, so no reply is sent twice (I-MS-2)."""
    ground = Ground(in_doubt=doubt)
    ground.providers.the_sender.can_tell = can_tell
    ground.providers.the_sender.troubles = [SendUnclear("no answer")]
    ground.say("SM1", "hi")
    assert ground.turn() == Done()
    if can_tell and doubt == "if_missing":
        assert ground.providers.the_sender.texts == ["You said: hi"]
        assert ground.parked_reasons == []
    else:
        assert ground.providers.the_sender.sent == []
        assert ground.parked_reasons == ["it is not known whether the reply was sent"]


def test_a_part_that_a_process_may_still_send_is_parked(ground):
    """That process may be frozen just before its call, so a missing message proves nothing."""
    sender = ground.providers.the_sender

    def send(part):
        ground.clock.advance(61.0)
        assert ground.turn(0.0) == Done(), "another worker takes over meanwhile"
        return FakeSender.send(sender, part)

    sender.send = send
    ground.say("SM1", "hi")
    assert isinstance(ground.turn(), Retry)
    assert ground.parked_reasons == ["it is not known whether the reply was sent"]
    assert len(sender.sent) == 1


@pytest.mark.parametrize("can_tell", [True, False])
def test_an_unclear_part_unknown_to_the_provider_is_sent_again_with_at_least_once(can_tell):
    ground = Ground(in_doubt="at_least_once")
    ground.providers.the_sender.can_tell = can_tell
    ground.providers.the_sender.troubles = [SendUnclear("no answer")]
    ground.say("SM1", "hi")
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: hi"]
    assert ground.parked_reasons == []


def test_a_sender_that_sends_nothing_twice_is_simply_asked_again(ground):
    ground.providers.the_sender.repeatable = True
    ground.providers.the_sender.can_tell = False
    ground.providers.the_sender.troubles = [SendUnclear("no answer")]
    ground.say("SM1", "hi")
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: hi"]


@pytest.mark.requirement("R002-060", "R002-073")
def test_a_long_reply_is_sent_in_parts_and_none_of_them_twice(ground):
    """The outbox counts parts (MS-22)."""
    ground.providers.the_writer.reply = lambda text: "\n\n".join(c * 1500 for c in "abc")
    ground.say("SM1")
    ground.providers.the_sender.after_sending = []
    real_send = ground.providers.the_sender.send

    def failing_second(part):
        if part.index == 1 and len(ground.providers.the_sender.sent) == 1:
            ground.providers.the_sender.send = real_send
            raise TransientError("throttled")
        return real_send(part)

    ground.providers.the_sender.send = failing_second
    assert isinstance(ground.turn(), Retry)
    assert [part.message_sid for part in ground.conversation.outbox.parts] == ["SM1"]
    ground.run_until_quiet()
    assert [text[0] for text in ground.providers.the_sender.texts] == ["a", "b", "c"]
    _, assistant = ground.store.history(KEY)
    assert assistant.details["sids"] == ["SM1", "SM2", "SM3"]
    assert ground.conversation.last_assistant_message_sid == "SM3"


class Attentive(MemoryConversations):
    """A store that checks the sender's state when `SendingReply` is noted."""

    def note(self, grant, outbox, thread_id) -> None:
        super().note(grant, outbox, thread_id)
        if isinstance(outbox, SendingReply):
            self.connected.append((self.sender.connected, len(self.sender.sent)))


def test_sending_is_noted_between_the_connection_and_the_send():
    ground = Ground()
    store = Attentive(ground.store, clock=ground.clock)
    store.sender, store.connected = ground.providers.the_sender, []
    ground.providers.the_writer.reply = lambda text: "\n\n".join(c * 1500 for c in "ab")
    ground.use(store)
    ground.say("SM1")
    assert ground.turn() == Done()
    assert store.connected == [(1, 0), (1, 1)]
    assert ground.providers.the_sender.connected == 0


@pytest.mark.parametrize(
    "trouble",
    [TransientError("no connection"), AuthenticationFailed("no login"), RuntimeError("a bug")],
)
def test_a_failed_connection_leaves_no_unclear_send(ground, trouble):
    """A process that is killed there leaves none either, because only the reply was noted."""
    ground.providers.the_sender.no_connection = [trouble]
    ground.providers.the_sender.can_tell = False  # a doubt would be parked
    ground.say("SM1")
    ground.clock.advance(10.0)
    trigger = ground.poll()
    try:
        assert isinstance(ground.handle(trigger), Retry)
    except RuntimeError:
        ground.queue.nack(trigger)
    assert isinstance(ground.conversation.outbox, PreparedReply)
    ground.run_until_quiet()
    assert ground.parked_reasons == []
    assert ground.providers.the_sender.texts == ["You said: hello"]


# -- the final write


class Forgetful(MemoryConversations):
    """A store whose next `finish` fails once."""

    fails = True

    def finish(self, grant, turn: Turn, **more) -> None:
        if self.fails:
            self.fails = False
            raise StoreUnavailable("throttled")
        super().finish(grant, turn, **more)


@pytest.mark.requirement("R002-076", "R002-077", "R002-092", "R002-093")
def test_a_reply_that_is_out_and_not_recorded_is_critical_and_never_sent_again(ground):
    """`SentReply` is noted, the next attempt writes the history (MS-06)."""
    ground.store.__class__ = Forgetful
    ground.say("SM1", "hi")
    assert isinstance(ground.turn(), Retry)
    assert cv.SentNotRecorded("c", "StoreUnavailable") in ground.emitted
    assert isinstance(ground.conversation.outbox, SentReply)
    assert ground.history == []
    assert [row.message_sid for row in ground.store.staged("c")] == ["SM1"]
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1
    assert len(ground.providers.the_writer.asked) == 1
    assert len(ground.history) == 2


# -- stopping, and conversations assigned to a person


def test_a_worker_that_stops_gives_the_batch_back(ground):
    ground.stopping = Event()
    ground.stopping.set()
    ground.say("SM1")
    assert ground.turn() == GiveBack()
    assert ground.conversation.status == ""
    ground.stopping.clear()
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1


def test_a_conversation_with_a_person_is_not_answered(ground):
    """New messages are parked for that person, and the status stays (MS-30)."""
    ground.store.set_status(KEY, Status.WITH_PERSON)
    ground.say("SM1")
    assert ground.turn() == Done()
    assert ground.providers.the_writer.asked == []
    assert ground.parked_reasons == ["a person has taken over this conversation"]
    assert ground.conversation.status == Status.WITH_PERSON


@pytest.mark.requirement("R002-049")
def test_no_event_tells_a_body_a_number_or_a_secret():
    """Checks every event of good and bad turns as a log would print it (I-MS-9, MS-28)."""
    key = ConversationKey("+4930123456789", "+4930123456789")
    ground = Ground(conversation=False)
    ground.open(key, ai_config=AI_CONFIG, channel_config={"sms_credentials_id": "s"})
    ground.providers.the_writer.troubles = [TransientError("away")]
    ground.providers.the_sender.troubles = [SendUnclear("no answer"), PermanentError("refused")]
    for sid in ("SM1", "SM2"):
        address = {"from": key.primary_channel, "conversation_id": key.conversation_id}
        ground.say(sid, "canary-body", **address)
    ground.run_until_quiet()
    events = repr(ground.emitted)
    for secret in ("canary", "4930123456789"):
        assert secret not in events
