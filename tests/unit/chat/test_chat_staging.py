"""Stage 1, the sweeper and the operator (MS-13, MS-16, I-MS-5)."""

import pytest

from holdfast.chat.errors import (
    InvalidInbound,
    ParkedNotFound,
    PermanentError,
    SendUnclear,
    TransientError,
)
from holdfast.chat.messages import Inbound, parse_inbound
from holdfast.chat.model import (
    DAY,
    Channel,
    ConversationKey,
    ConversationNotFound,
    ConversationPolicy,
    ConversationProfile,
    Status,
    Window,
)
from holdfast.chat.operator import Operator
from holdfast.chat.staging import Stager
from holdfast.errors import ConfigError, QueueUnavailable, StoreUnavailable
from holdfast.testing import MemoryConversations, MemoryQueue
from holdfast.worker.outcome import Done, Reject, Retry
from support.chat.application import KEY, Ground

WRITTEN = {"message_sid": "SM1", "from": "whatsapp:you", "conversation_id": "c", "body": "hi"}


@pytest.fixture
def ground() -> Ground:
    return Ground()


# -- staging


@pytest.mark.requirement("R002-008")
def test_a_message_is_stored_once_by_its_sid(ground):
    assert ground.say("SM1", "first").new
    assert not ground.say("SM1", "second").new
    [row] = ground.store.staged("c")
    assert (row.body, row.key) == ("first", KEY)


@pytest.mark.requirement("R002-007")
def test_a_refused_message_leaves_nothing_behind(ground):
    with pytest.raises(InvalidInbound):
        ground.say("SM1", "")
    assert ground.store.staged("c") == []
    assert ground.store.window("c") is None
    assert ground.queue.stats().delayed == 0


def test_an_expired_window_that_is_still_there_is_not_in_the_way(ground):
    """Expiry is compared by value, because tables remove rows later (MS-13)."""
    ground.say("SM1")
    ground.clock.advance(ground.store.window("c").expires_at - ground.clock.time() + 1)
    assert ground.say("SM2").opened


class Deaf(MemoryQueue):
    """A queue that cannot be reached."""

    def _push(self, message, delay_seconds):
        raise QueueUnavailable("away")


def test_the_same_message_again_sends_the_trigger_its_first_delivery_could_not(ground):
    """Redelivery repairs a stager that died between window and trigger (MS-14)."""
    ground.queue.__class__ = Deaf
    with pytest.raises(QueueUnavailable):
        ground.say("SM1")
    ground.queue.__class__ = MemoryQueue
    assert not ground.store.window("c").triggered
    again = ground.say("SM1")
    assert (again.new, again.opened) == (False, True)
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1


def test_another_message_repairs_a_window_without_trigger_after_a_while(ground):
    """At once two stagers would race, and never would leave it unanswered (MS-14)."""
    ground.queue.__class__ = Deaf
    with pytest.raises(QueueUnavailable):
        ground.say("SM1")
    ground.queue.__class__ = MemoryQueue
    assert not ground.say("SM2").opened
    ground.clock.advance(ground.policy.grace_seconds + 1)
    assert ground.say("SM3").opened


class Unmarking(MemoryConversations):
    def mark_triggered(self, window: Window) -> None:
        raise StoreUnavailable("away")


def test_a_trigger_that_is_out_counts_though_it_could_not_be_marked(ground):
    ground.store.__class__ = Unmarking
    assert ground.say("SM1").opened
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1


def test_a_profile_begins_the_conversation_the_customer_wrote_to(ground):
    profile = ConversationProfile({"provider": "outbox"}, {"provider": "echo"})
    queues = dict.fromkeys(Channel, ground.queue)
    stager = Stager(ground.store, queues, profiles={"whatsapp:us": profile}, clock=ground.clock)
    staged = stager.stage(
        parse_inbound(
            {"message_sid": "SM9", "From": "whatsapp:+1", "To": "whatsapp:us", "body": "x"}
        )
    )
    row = ground.store.get(staged.key)
    assert row.channel_config == {"provider": "outbox", "sender": "whatsapp:us"}
    assert row.ai_config == {"provider": "echo"}
    other = parse_inbound({"message_sid": "SM9", "From": "+1", "To": "+2", "body": "x"})
    assert ground.store.get(stager.stage(other).key) is None


def test_staging_is_a_handler_with_outcomes(ground):
    """The stager is the handler of a worker or a Lambda behind a queue."""
    assert ground.stager(Inbound.model_validate(WRITTEN), None) == Done()
    refused = ground.stager(Inbound.model_validate({**WRITTEN, "body": ""}), None)
    assert isinstance(refused, Reject)
    ground.queue.__class__ = Deaf
    later = {**WRITTEN, "conversation_id": "d"}
    assert isinstance(ground.stager(Inbound.model_validate(later), None), Retry)


# -- the sweeper


def test_the_sweeper_triggers_messages_that_have_no_trigger(ground):
    """A stager died between window and trigger, and no further message came (I-MS-5)."""
    ground.queue.__class__ = Deaf
    with pytest.raises(QueueUnavailable):
        ground.say("SM1")
    ground.queue.__class__ = MemoryQueue
    assert ground.sweeper.sweep().triggered == 0, "not before the longest wait"
    ground.clock.advance(ground.policy.max_wait_seconds + ground.policy.grace_seconds + 1)
    assert ground.sweeper.sweep().triggered == 1
    assert ground.sweeper.sweep().triggered == 0, "its trigger is ahead"
    ground.run_until_quiet()
    assert len(ground.providers.the_sender.sent) == 1
    assert ground.sweeper.sweep().waiting == 0


def test_the_sweeper_leaves_recent_messages_alone(ground):
    """A worker is about to answer a row whose window was just closed."""
    ground.say("SM1")
    ground.store.close_window("c", ground.store.window("c").trigger_id)
    assert ground.sweeper.sweep().triggered == 0
    ground.clock.advance(ground.policy.max_wait_seconds + ground.policy.grace_seconds)
    assert ground.sweeper.sweep().triggered == 0
    ground.clock.advance(1.0)
    assert ground.sweeper.sweep().triggered == 1


def test_an_unreadable_conversation_does_not_stop_the_sweep(ground):
    ground.open(ConversationKey("whatsapp:you", "a"))
    for name in ("a", "c"):
        ground.say("SM1", conversation_id=name)
        ground.store.close_window(name, ground.store.window(name).trigger_id)
    ground.clock.advance(1000.0)
    get = ground.store.get

    def damaged(key: ConversationKey):
        if key.conversation_id == "a":
            raise PermanentError("its outbox cannot be read")
        return get(key)

    ground.store.get = damaged
    assert ground.sweeper.sweep().triggered == 1


def test_the_sweeper_leaves_locked_conversations_alone(ground):
    ground.say("SM1")
    ground.store.close_window("c", ground.store.window("c").trigger_id)
    ground.clock.advance(1000.0)
    now = ground.clock.time()
    ground.store.acquire(KEY, owner="o", trigger_id="x", now=now, expires_at=now + 60)
    assert ground.sweeper.sweep().triggered == 0
    ground.clock.advance(61.0)
    assert ground.sweeper.sweep().triggered == 1


@pytest.mark.requirement("R002-094")
def test_messages_unanswered_for_days_are_parked():
    """The parked batch keeps its reply, if it had one (MS-16, I-MS-1)."""
    ground = Ground(most_fragments=2)
    ground.providers.the_sender.troubles = [TransientError("away")]
    for number in range(5):
        ground.say(f"SM{number}")
    ground.turn()
    ground.clock.advance(ground.policy.park_after_seconds + 60)
    swept = ground.sweeper.sweep()
    assert (swept.waiting, swept.parked) == (1, 5)
    assert swept.oldest_seconds > 3 * DAY
    parked = list(ground.store.parked())
    assert sorted(sid for batch in parked for sid in batch.sids) == [f"SM{n}" for n in range(5)]
    assert [batch.outbox.sids for batch in parked if batch.outbox] == [("SM0", "SM1")]
    assert (ground.conversation.outbox, ground.conversation.status) == (None, Status.PARKED)
    assert ground.store.staged("c") == []


def test_old_messages_of_an_unknown_conversation_are_parked():
    ground = Ground(conversation=False)
    ground.say("SM1")
    ground.clock.advance(4 * DAY)
    assert ground.sweeper.sweep().parked == 1
    assert ground.sweeper.sweep().waiting == 0


def test_a_conversation_whose_old_messages_were_parked_is_free_again(ground):
    ground.say("SM1")
    ground.clock.advance(4 * DAY)
    assert ground.sweeper.sweep().parked == 1
    assert ground.conversation.status == Status.PARKED
    assert not ground.conversation.is_locked(ground.clock.time())


# -- the operator


@pytest.fixture
def desk(ground: Ground) -> Operator:
    return ground.operator


def park(ground: Ground, trouble: Exception) -> str:
    ground.providers.the_sender.troubles = [trouble]
    ground.providers.the_sender.can_tell = False
    ground.say("SM1", "hi")
    ground.run_until_quiet()
    [parked] = ground.store.parked()
    return parked.parked_id


def test_a_parked_batch_can_be_answered_again(ground, desk):
    parked_id = park(ground, PermanentError("refused"))
    assert desk.retry(parked_id).sids == ("SM1",)
    ground.run_until_quiet()
    assert ground.providers.the_sender.texts == ["You said: hi"]
    assert len(ground.history) == 2
    assert ground.parked_reasons == []
    with pytest.raises(ParkedNotFound):
        desk.retry(parked_id)


def test_an_operator_can_record_a_sent_reply_in_the_history(ground, desk):
    parked_id = park(ground, SendUnclear("no answer"))
    desk.sent(parked_id)
    assert ground.history == [("user", "hi"), ("assistant", "You said: hi")]
    assert ground.providers.the_sender.sent == []
    assert ground.store.history(KEY)[1].details["status"] == "sent, says a person"
    assert (ground.parked_reasons, ground.conversation.thread_id) == ([], "thread-1")
    with pytest.raises(ParkedNotFound):
        desk.sent(parked_id)
    ground.say("SM1", "hi")
    ground.run_until_quiet()
    assert len(ground.history) == 2


def test_a_reply_recorded_later_does_not_move_the_threads_mark_back(ground, desk):
    parked_id = park(ground, SendUnclear("no answer"))
    ground.say("SM2", "and?")
    ground.run_until_quiet()
    assert ground.conversation.thread_mark == "item-2"
    desk.sent(parked_id)
    assert ground.conversation.thread_mark == "item-2"


def test_two_people_who_decide_at_once_leave_no_lock_behind(ground, desk):
    parked_id = park(ground, SendUnclear("no answer"))
    finish = ground.store.finish

    def after_another(grant, turn, **more):
        ground.store.finish = finish
        ground.store.unpark(parked_id, back_to_stage=False, now=1.0, expires_at=1.0)
        finish(grant, turn, **more)

    ground.store.finish = after_another
    with pytest.raises(ParkedNotFound):
        desk.sent(parked_id)
    assert not ground.conversation.is_locked(ground.clock.time())
    assert ground.history == []


def test_the_same_sids_of_another_conversation_are_parked_beside_these():
    """Messages of different conversations are not mixed up."""
    ground = Ground(conversation=False)
    ground.say("SM1", "one")
    ground.say("SM1", "two", **{"from": "whatsapp:else", "conversation_id": "d"})
    ground.run_until_quiet()
    texts = sorted(batch.staged[0].body for batch in ground.store.parked())
    assert texts == ["one", "two"]


def test_a_batch_without_a_reply_cannot_be_recorded_as_sent(ground, desk):
    ground.providers.the_writer.reply = lambda text: ""
    ground.say("SM1")
    ground.run_until_quiet()
    [parked] = ground.store.parked()
    with pytest.raises(PermanentError, match="only be retried"):
        desk.sent(parked.parked_id)


def test_the_desk_waits_for_a_conversation_that_is_being_answered(ground, desk):
    parked_id = park(ground, SendUnclear("no answer"))
    now = ground.clock.time()
    ground.store.acquire(KEY, owner="o", trigger_id="x", now=now, expires_at=now + 60)
    with pytest.raises(TransientError, match="try again"):
        desk.sent(parked_id)
    assert len(ground.parked_reasons) == 1


def test_the_desk_does_not_touch_the_reply_of_another_batch(ground, desk):
    parked_id = park(ground, SendUnclear("no answer"))
    ground.providers.the_sender.troubles = [TransientError("away")]
    ground.say("SM2", "and?")
    ground.turn()
    before = ground.conversation
    with pytest.raises(TransientError, match="try again"):
        desk.sent(parked_id)
    after = ground.conversation
    assert (after.outbox, after.status) == (before.outbox, before.status)
    ground.run_until_quiet()
    desk.sent(parked_id)
    assert [body for _, body in ground.history] == [
        "and?",
        "You said: and?",
        "hi",
        "You said: hi",
    ]


def test_a_dropped_batch_is_not_answered_again(ground, desk):
    desk.drop(park(ground, PermanentError("refused")))
    assert ground.parked_reasons == []
    ground.say("SM1", "hi")
    ground.run_until_quiet()
    assert ground.history == []
    assert len(ground.providers.the_writer.asked) == 1


def test_a_person_takes_a_conversation_over_and_hands_it_back(ground, desk):
    assert desk.assign_to_person(KEY)
    ground.say("SM1", "hi")
    ground.run_until_quiet()
    assert ground.conversation.status == Status.WITH_PERSON
    assert desk.resume_automation(KEY)
    [parked] = ground.store.parked()
    desk.retry(parked.parked_id)
    ground.run_until_quiet()
    assert len(ground.history) == 2


def test_a_person_who_takes_over_during_a_turn_gets_the_next_batch(ground, desk):
    """The operator's status holds when the lock is released (MS-30)."""

    def reply(text: str) -> str:
        desk.assign_to_person(KEY)
        raise TransientError("away")

    ground.providers.the_writer.reply = reply
    ground.say("SM1")
    ground.turn()
    assert ground.conversation.status == Status.WITH_PERSON


# -- the policy


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"window_seconds": 901.0, "max_wait_seconds": 901.0}, "SQS delays no message longer"),
        ({"window_seconds": -1.0}, "window_seconds"),
        ({"max_wait_seconds": 5.0}, "max_wait_seconds"),
        ({"quiet_seconds": -1.0}, "quiet_seconds"),
        ({"lock_seconds": 0.0}, "lock_seconds"),
        ({"in_doubt": "maybe"}, "in_doubt"),
        ({"writer_seconds": 0.0}, "writer_seconds"),
        ({"sender_seconds": 0.0}, "sender_seconds"),
        ({"stage_seconds": DAY}, "stage_seconds"),
        ({"park_after_seconds": 22 * DAY}, "park_after_seconds"),
        ({"remember_seconds": DAY}, "remember_seconds"),
        ({"grace_seconds": 0.0}, "grace_seconds"),
        ({"most_fragments": 41}, "most_fragments"),
    ],
)
def test_a_policy_that_loses_messages_is_refused(policy, problem):
    """(MS-16, MS-29)"""
    with pytest.raises(ConfigError, match=problem):
        ConversationPolicy(**policy)


def test_every_problem_of_the_policy_is_named_at_once():
    with pytest.raises(ConfigError, match=r"lock_seconds.*; .*grace_seconds"):
        ConversationPolicy(lock_seconds=0.0, grace_seconds=0.0)


def test_acquiring_the_lock_does_not_create_an_unknown_conversation():
    """(MS-12)"""
    ground = Ground(conversation=False)
    answer = ground.store.acquire(KEY, owner="o", trigger_id="t", now=1.0, expires_at=2.0)
    assert answer == ConversationNotFound()
    assert ground.store.get(KEY) is None
