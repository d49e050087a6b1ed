"""DeadLetterPromises: messages that no worker can process are kept, and can be redriven."""

from typing import Any

import pytest
from pydantic import model_validator

from holdfast.events import DeadLettered, Events
from holdfast.queue.manager import MessageState
from holdfast.queue.message import AnyMessage, QueueMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.support import (
    LEASE,
    MUCH_LATER,
    AnyQueue,
    EventRecorder,
    Inject,
    MakeQueue,
    NoteMessage,
    assert_completed,
    get_dead_letter,
    get_fence,
    iter_messages,
    poll_all,
    poll_one,
    push_and_poll,
    push_dead,
    require_capabilities,
)


class DeadlyMessage(QueueMessage):
    """A message whose validation ends the process."""

    @model_validator(mode="before")
    @classmethod
    def _exit(cls, data: Any) -> Any:
        raise SystemExit("validated")


class DeadLetterPromises:
    """Promises about dead letters, redrive, drop and purge."""

    @pytest.mark.requirement("R001-007", "R001-032")
    def test_a_dead_letter_is_kept_with_its_reason_and_never_delivered(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        queue.dead_letter(
            push_and_poll(queue, id="a"), "no such customer", detail="Traceback: …"
        )
        clock.advance(MUCH_LATER)
        assert queue.poll() == []
        view = get_dead_letter(queue)
        assert (view.id, view.state, view.attempts) == ("a", MessageState.FAILED, 1)
        assert view.reason == "no such customer"

    def test_the_detail_of_a_dead_letter_is_kept(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "find", "history")
        queue.dead_letter(
            push_and_poll(queue, id="a"), "no such customer", detail="Traceback: …"
        )
        [view] = queue.find("a")
        last = view.past[-1]
        assert (last.attempt, last.outcome, last.reason, last.detail) == (
            1,
            "dead-lettered",
            "no such customer",
            "Traceback: …",
        )

    def test_every_attempt_allowed_is_given(self, make_queue: MakeQueue) -> None:
        queue = make_queue(max_attempts=3)
        queue.push(AnyMessage())
        attempts = []
        for message in iter_messages(queue):
            attempts.append(message.attempts)
            queue.nack(message, delay_seconds=0)
        assert attempts == [1, 2, 3]

    def test_the_next_poll_dead_letters_never_the_nack(self, make_queue: MakeQueue) -> None:
        queue = make_queue(max_attempts=2)
        queue.push(AnyMessage())
        for _ in range(2):
            queue.nack(poll_one(queue), delay_seconds=0)
        assert (queue.stats().ready, queue.stats().failed) == (1, 0)
        assert queue.poll() == []
        assert (queue.stats().ready, queue.stats().failed) == (0, 1)

    def test_polls_count_and_report_the_messages_they_dead_letter_themselves(
        self, make_queue: MakeQueue, inject: Inject
    ) -> None:
        """A worker's report needs the count, because no handler ever saw these messages."""
        recorder = EventRecorder()
        queue = make_queue(max_attempts=1, model=NoteMessage, events=Events(recorder))
        assert queue.dead_lettered_by_poll == 0
        queue.push(NoteMessage(id="exhausted"))
        queue.nack(poll_one(queue), delay_seconds=0)
        inject(queue, b"{ not JSON")
        assert poll_all(queue) == []
        assert queue.dead_lettered_by_poll == 2
        ids = {event.reason: event.message_id for event in recorder.select(DeadLettered)}
        assert len(ids) == 2
        assert ids["gave up after 1 attempts"] == "exhausted"
        queue.push(NoteMessage(id="rejected"))
        queue.dead_letter(poll_one(queue), "no use")
        assert queue.dead_lettered_by_poll == 2  # the worker dead-lettered this one itself

    def test_the_reason_says_how_often_it_was_tried_and_why_it_failed_last(
        self, make_queue: MakeQueue
    ) -> None:
        queue = make_queue(max_attempts=2)
        queue.push(AnyMessage(id="a"))
        for reason in ("the first failure", "the second failure"):
            queue.nack(poll_one(queue), delay_seconds=0, reason=reason)
        queue.poll()
        view = get_dead_letter(queue)
        assert (view.id, view.attempts) == ("a", 2)
        assert "2" in view.reason
        if "history" in queue.capabilities:
            assert "the second failure" in view.reason

    def test_a_task_that_kills_its_workers_reaches_the_dead_letters_too(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        recorder = EventRecorder()
        for attempt in (1, 2, 3):
            queue = make_queue(max_attempts=3)
            if attempt == 1:
                queue.push(AnyMessage(id="killer"))
            assert poll_one(queue).attempts == attempt
            clock.advance(LEASE + 1)
        queue = make_queue(max_attempts=3, events=Events(recorder))
        assert queue.poll() == []
        view = get_dead_letter(queue)
        assert (view.id, view.attempts) == ("killer", 3)
        assert "3" in view.reason
        assert "worker" in view.reason
        [event] = recorder.select(DeadLettered)
        assert (event.queue, event.message_id, event.attempt) == (queue.name, "killer", 3)
        assert event.reason == "gave up after 3 attempts"

    def test_a_body_that_kills_the_workers_that_decode_it_reaches_the_dead_letters(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        queue = make_queue(max_attempts=2, model=DeadlyMessage)
        require_capabilities(queue, "refund")
        queue.push(DeadlyMessage.model_construct(id="killer"))
        for _ in range(2):
            with pytest.raises(SystemExit):
                queue.poll()
            clock.advance(MUCH_LATER)
        assert queue.poll() == []
        view = get_dead_letter(queue)
        assert (view.id, view.attempts) == ("killer", 2)

    def test_a_poll_that_dead_letters_a_message_returns_the_next_one(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        queue = make_queue(max_attempts=1)
        queue.nack(push_and_poll(queue, id="worn out"), delay_seconds=0)
        clock.advance(1)
        queue.push(AnyMessage(id="good"))
        assert [message.id for message in queue.poll(1)] == ["good"]
        assert get_dead_letter(queue).id == "worn out"

    # -- redrive

    def test_a_redriven_message_starts_anew_but_its_fence_goes_on_rising(
        self, make_queue: MakeQueue
    ) -> None:
        queue = make_queue(max_attempts=2)
        queue.nack(push_and_poll(queue), delay_seconds=0)
        last = poll_one(queue)
        queue.dead_letter(last, "no use")
        assert queue.redrive() == 1
        assert (queue.stats().ready, queue.stats().failed) == (1, 0)
        again = poll_one(queue)
        assert again.attempts == 1
        if "fence" in queue.capabilities:
            assert get_fence(again) > get_fence(last)
        queue.nack(again, delay_seconds=0)
        queue.ack(poll_one(queue))
        assert_completed(queue, 1)

    def test_a_message_out_of_attempts_can_be_redriven_repeatedly(
        self, make_queue: MakeQueue
    ) -> None:
        queue = make_queue(max_attempts=1)
        queue.push(AnyMessage(id="a"))
        for _ in range(4):
            message = poll_one(queue)
            assert message.attempts == 1
            queue.nack(message, delay_seconds=0)
            assert queue.poll() == []
            assert queue.redrive() == 1

    def test_redriving_one_id_leaves_the_others(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "redrive_by_id")
        push_dead(queue, "a", "b", "c")
        reported: list[int] = []
        assert queue.redrive("b", on_progress=reported.append) == sum(reported) == 1
        assert poll_one(queue).id == "b"
        assert sorted(view.id for view in queue.dead_letters()) == ["a", "c"]

    def test_redriving_takes_every_dead_letter_of_the_id(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "redrive_by_id")
        queue.push_many(AnyMessage(id="same", which=which) for which in (1, 2))
        for message in poll_all(queue):
            queue.dead_letter(message, "no use")
        assert queue.redrive("same") == 2
        assert {message.which for message in poll_all(queue)} == {1, 2}

    def test_redrive_reports_its_progress(self, queue: AnyQueue) -> None:
        push_dead(queue, "a", "b", "c")
        reported: list[int] = []
        assert queue.redrive(on_progress=reported.append) == 3
        assert sum(reported) == 3

    @pytest.mark.parametrize("verb", ["redrive_many", "drop_many"])
    def test_chosen_dead_letters_are_redriven_or_dropped_and_no_others(
        self, queue: AnyQueue, verb: str
    ) -> None:
        require_capabilities(queue, "redrive_by_id", "drop")
        push_dead(queue, "0", "1", "2", "3")
        chosen = [letter for letter in queue.dead_letters() if letter.id in ("1", "3")]
        assert getattr(queue, verb)(chosen) == 2
        assert sorted(letter.id for letter in queue.dead_letters()) == ["0", "2"]
        assert queue.stats().ready == (2 if verb == "redrive_many" else 0)
        if "peek" in queue.capabilities:
            assert getattr(queue, verb)(chosen) == 0

    def test_redrive_is_remembered(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "find", "history")
        queue.dead_letter(push_and_poll(queue, id="a"), "no use")
        queue.redrive()
        [view] = queue.find("a")
        assert [past.outcome for past in view.past] == ["dead-lettered", "redriven"]
        assert (view.state, view.attempts, view.reason) == (MessageState.PENDING, 0, None)

    # -- drop and purge

    @pytest.mark.parametrize("verb", ["redrive", "drop", "purge"])
    def test_a_verb_of_operators_leaves_messages_in_other_states(
        self, queue: AnyQueue, clock: ManualClock, verb: str
    ) -> None:
        require_capabilities(queue, {"redrive": "redrive_by_id"}.get(verb, verb))
        ids = ["waiting", "held", "dead" if verb == "purge" else "done"]
        queue.push_many(AnyMessage(id=message_id) for message_id in ids)
        messages = {message.id: message for message in poll_all(queue)}
        queue.nack(messages["waiting"], delay_seconds=0)
        if verb == "purge":
            queue.dead_letter(messages["dead"], "no use")
            clock.advance(24 * 3600)
        else:
            queue.ack(messages["done"])
        before = queue.stats()
        if verb == "purge":
            assert queue.purge(0) == 0
        else:
            assert [getattr(queue, verb)(each) for each in (*ids, "unknown")] == [0] * 4
        if verb == "redrive":
            assert queue.redrive() == 0
        assert queue.stats() == before

    def test_a_dropped_dead_letter_is_gone_for_good(self, queue: AnyQueue) -> None:
        require_capabilities(queue, "drop", "find")
        push_dead(queue, "a", "b")
        assert queue.drop("a") == 1
        assert queue.drop("a") == 0
        assert queue.find("a") == []
        assert get_dead_letter(queue).id == "b"
        assert queue.redrive() == 1

    def test_purge_removes_what_was_completed_long_enough_ago(
        self, queue: AnyQueue, clock: ManualClock
    ) -> None:
        require_capabilities(queue, "purge", "find")
        queue.ack(push_and_poll(queue, id="old"))
        clock.advance(5 * 3600)
        queue.ack(push_and_poll(queue, id="new"))
        assert queue.purge(24 * 3600) == 0
        assert queue.purge(3 * 3600) == 1
        assert queue.find("old") == []
        assert [view.id for view in queue.peek(MessageState.COMPLETED)] == ["new"]

    @pytest.mark.parametrize("max_attempts", [1, 4])
    def test_the_totals_match_when_everything_fails(
        self, make_queue: MakeQueue, max_attempts: int
    ) -> None:
        queue = make_queue(max_attempts=max_attempts)
        queue.push_many(AnyMessage() for _ in range(10))
        deliveries = 0
        for message in iter_messages(queue, 3):
            deliveries += 1
            queue.nack(message, delay_seconds=0)
        assert deliveries == 10 * max_attempts
        assert queue.stats().failed == 10
