"""One scenario for each verb of the queue: the state before, and the allowed states after.

A `Fate` says what happens to one id when a new worker opens the folder later: the attempt
with which it is delivered (None: it is not), and where it ends. A verb that returned has
led to `after`. A verb that was killed has led to `after` or left `before`, and to nothing
else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.queue.message import QueueMessage
from holdfast.testing.clock import ManualClock
from support.files.queue_folder import (
    LEASE,
    MUCH_LATER,
    Ground,
    Queue,
    make_message,
    move_to_another_host,
)

# After this a producer makes a new segment, so that the verb has to.
ANOTHER_SEGMENT_SECONDS = 3.0


class Fate(NamedTuple):
    """What happens to one id later."""

    attempt: int | None
    ends: str | None


ABSENT = Fate(None, None)
DONE = Fate(None, "completed")
DEAD = Fate(None, "failed")


def delivered(attempt: int) -> Fate:
    return Fate(attempt, "completed")


@dataclass(frozen=True)
class Scenario:
    """One verb of the queue, with its preparation and its allowed results."""

    name: str
    prepare: Callable[[Ground, Queue], Any]
    act: Callable[[Queue, Any], object]
    before: Mapping[str, Fate]
    after: Mapping[str, Fate]
    options: Mapping[str, Any] = field(default_factory=dict)
    tears: bool = False  # a visible file is broken on purpose
    checkpoint: Any = None  # what the next attempt must find once `act` returned


Done = dict[str, tuple[int, Any]]
"""The attempt of each id that was delivered, and what that attempt found saved."""


def work(queue: Queue, clock: ManualClock) -> Done:
    """Take and complete all messages, as the next worker does."""
    done: Done = {}
    for _ in range(3):
        for message in queue.poll(10):
            done[message.id] = message.attempts, queue.load_checkpoint(message)
            queue.ack(message)
        clock.advance(LEASE + 1.0)  # a lease that has to be watched is taken over, too
    return done


def find_fate(queue: Queue, message_id: str, done: Done) -> Fate:
    unreadable = [view for view in queue.dead_letters() if view.id == view.key]
    views = queue.find(message_id) or unreadable
    assert len(views) <= 1, f"{message_id!r} is there {len(views)} times"
    attempt, _ = done.get(message_id, (None, None))
    return Fate(attempt, views[0].state.value) if views else ABSENT


class NewerNote(QueueMessage):
    schema_version: int = 2


def nothing(ground: Ground, queue: Queue) -> None:
    queue.poll()  # registers the worker, because the scenario is about the verb only


def pushed(ground: Ground, queue: Queue) -> None:
    queue.push(make_message("a"))


def held(ground: Ground, queue: Queue) -> Any:
    pushed(ground, queue)
    [message] = queue.poll()
    ground.clock.advance(ANOTHER_SEGMENT_SECONDS)
    return message


def held_with_checkpoint(ground: Ground, queue: Queue) -> Any:
    message = held(ground, queue)
    queue.save_checkpoint(message, {"page": 1})
    return message


def expired_elsewhere(ground: Ground, queue: Queue) -> None:
    held(ground, ground.queue())
    ground.clock.advance(LEASE + 1)


def held_elsewhere(ground: Ground, queue: Queue) -> None:
    queue.poll()
    holder = ground.queue()
    held(ground, holder)
    move_to_another_host(holder)


def watched_elsewhere(ground: Ground, queue: Queue) -> None:
    """Prepare a lease of another host that this worker saw for long enough."""
    held_elsewhere(ground, queue)
    queue.poll()
    ground.clock.advance(2 * LEASE)


def used_up(ground: Ground, queue: Queue) -> None:
    pushed(ground, queue)
    for _ in range(queue.max_attempts):
        ground.queue().poll()
        ground.clock.advance(LEASE + 1)


def torn(ground: Ground, queue: Queue) -> None:
    queue.poll()
    pushed(ground, queue)
    ground.tear("a")


def newer(ground: Ground, queue: Queue) -> None:
    queue.poll()
    ground.queue(model=NewerNote).push(NewerNote(id="a"))


def dead(ground: Ground, queue: Queue) -> None:
    queue.dead_letter(held_with_checkpoint(ground, queue), "no use", detail="traceback")
    ground.clock.advance(ANOTHER_SEGMENT_SECONDS)


def dead_after_retry(ground: Ground, queue: Queue) -> None:
    queue.nack(held_with_checkpoint(ground, queue), delay_seconds=0)
    [message] = queue.poll()
    queue.dead_letter(message, "no use")


def completed_after_retry(ground: Ground, queue: Queue) -> None:
    queue.nack(held_with_checkpoint(ground, queue), delay_seconds=0)
    [message] = queue.poll()
    queue.ack(message)
    ground.clock.advance(MUCH_LATER)


Act = Callable[[Queue, Any], object]
Prepare = Callable[[Ground, Queue], Any]
FIRST, SECOND, THIRD = map(delivered, (1, 2, 3))
WAITS = Fate(None, "pending")
DEDUPE = {"dedupe": True}


def plain(
    name: str, prepare: Prepare, act: Act, before: Fate, after: Fate, **more: Any
) -> tuple[Scenario, ...]:
    """Return the scenario of one id."""
    return (Scenario(name, prepare, act, {"a": before}, {"a": after}, **more),)


def both(
    name: str, prepare: Prepare, act: Act, before: Fate, after: Fate, **more: Any
) -> tuple[Scenario, ...]:
    """Return the scenario without and with dedupe."""
    deduping = f"{name} with dedupe"
    return (
        *plain(name, prepare, act, before, after, **more),
        *plain(deduping, prepare, act, before, after, options=DEDUPE, **more),
    )


def push(queue: Queue, _: Any) -> object:
    return queue.push(make_message("a"))


def push_later(queue: Queue, _: Any) -> object:
    return queue.push(make_message("a"), delay_seconds=LEASE)


def poll(queue: Queue, _: Any) -> object:
    return queue.poll()


def ack(queue: Queue, message: Any) -> object:
    return queue.ack(message)


def dead_letter(queue: Queue, message: Any) -> object:
    return queue.dead_letter(message, "no use")


def cancel(queue: Queue, _: Any) -> object:
    return queue.cancel("a")


SCENARIOS = (
    *both("push", nothing, push, ABSENT, FIRST),
    *plain("push later", nothing, push_later, ABSENT, FIRST),
    Scenario(
        "push_many",
        nothing,
        lambda q, _: q.push_many([make_message(i) for i in "abc"]),
        dict.fromkeys("abc", ABSENT),
        dict.fromkeys("abc", FIRST),
    ),
    *plain("push again with dedupe", pushed, push, FIRST, FIRST, options=DEDUPE),
    *plain("claim", pushed, poll, FIRST, SECOND),
    *plain("take over", expired_elsewhere, poll, SECOND, THIRD),
    *plain("take over from another host", watched_elsewhere, poll, SECOND, THIRD),
    *plain("watch another host", held_elsewhere, poll, SECOND, SECOND),
    *plain("extend", held, lambda q, m: q.extend(m), SECOND, SECOND),
    *both("ack", held, ack, SECOND, DONE),
    *plain("ack with a checkpoint", held_with_checkpoint, ack, SECOND, DONE),
    *plain("nack", held, lambda q, m: q.nack(m), SECOND, SECOND),
    *plain("release", held, lambda q, m: q.release(m), SECOND, FIRST),
    *both("dead_letter", held, dead_letter, SECOND, DEAD),
    *plain("dead-letter the used up", used_up, poll, DEAD, DEAD),
    *both("dead-letter the torn", torn, poll, DEAD, DEAD, tears=True),
    *plain("give back the newer", newer, poll, WAITS, WAITS),
    *both("cancel", pushed, cancel, FIRST, DEAD),
    *both("cancel the leased", held_with_checkpoint, cancel, SECOND, DEAD),
    *both("redrive", dead, lambda q, _: q.redrive("a"), DEAD, FIRST),
    *both("drop", dead_after_retry, lambda q, _: q.drop("a"), DEAD, ABSENT),
    *both("purge", completed_after_retry, lambda q, _: q.purge(1), DONE, ABSENT),
    *plain(
        "save_checkpoint",
        held,
        lambda q, m: q.save_checkpoint(m, {"page": 2}),
        SECOND,
        SECOND,
        checkpoint={"page": 2},
    ),
    *plain("sweep", dead, lambda q, _: q.operator.sweep(0), DEAD, DEAD, options=DEDUPE),
)
