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
    """Prepare a lease of another host that another process of this host saw in time."""
    held_elsewhere(ground, queue)
    ground.queue().poll()
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


def pushes(*ids: str) -> Callable[[Queue, Any], object]:
    return lambda queue, _: queue.push_many([make_message(i) for i in ids])


def cancel(queue: Queue, _: Any) -> int:
    return queue.cancel("a")


DEDUPE = {"dedupe": True}
A = "a"
SCENARIOS = (
    Scenario(
        "push", nothing, lambda q, _: q.push(make_message(A)), {A: ABSENT}, {A: delivered(1)}
    ),
    Scenario(
        "push later",
        nothing,
        lambda q, _: q.push(make_message(A), delay_seconds=LEASE),
        {A: ABSENT},
        {A: delivered(1)},
    ),
    Scenario(
        "push_many",
        nothing,
        pushes("a", "b", "c"),
        dict.fromkeys("abc", ABSENT),
        dict.fromkeys("abc", delivered(1)),
    ),
    Scenario("push with dedupe", nothing, pushes("a"), {A: ABSENT}, {A: delivered(1)}, DEDUPE),
    Scenario(
        "push again with dedupe",
        pushed,
        pushes("a"),
        {A: delivered(1)},
        {A: delivered(1)},
        DEDUPE,
    ),
    Scenario("claim", pushed, lambda q, _: q.poll(), {A: delivered(1)}, {A: delivered(2)}),
    Scenario(
        "take over",
        expired_elsewhere,
        lambda q, _: q.poll(),
        {A: delivered(2)},
        {A: delivered(3)},
    ),
    Scenario(
        "take over from another host",
        watched_elsewhere,
        lambda q, _: q.poll(),
        {A: delivered(2)},
        {A: delivered(3)},
    ),
    Scenario(
        "watch another host",
        held_elsewhere,
        lambda q, _: q.poll(),
        {A: delivered(2)},
        {A: delivered(2)},
    ),
    Scenario("extend", held, lambda q, m: q.extend(m), {A: delivered(2)}, {A: delivered(2)}),
    Scenario("ack", held, lambda q, m: q.ack(m), {A: delivered(2)}, {A: DONE}),
    Scenario(
        "ack with a checkpoint",
        held_with_checkpoint,
        lambda q, m: q.ack(m),
        {A: delivered(2)},
        {A: DONE},
    ),
    Scenario(
        "ack with dedupe", held, lambda q, m: q.ack(m), {A: delivered(2)}, {A: DONE}, DEDUPE
    ),
    Scenario("nack", held, lambda q, m: q.nack(m), {A: delivered(2)}, {A: delivered(2)}),
    Scenario("release", held, lambda q, m: q.release(m), {A: delivered(2)}, {A: delivered(1)}),
    Scenario(
        "dead_letter",
        held,
        lambda q, m: q.dead_letter(m, "no use"),
        {A: delivered(2)},
        {A: DEAD},
    ),
    Scenario(
        "dead_letter with dedupe",
        held,
        lambda q, m: q.dead_letter(m, "no use"),
        {A: delivered(2)},
        {A: DEAD},
        DEDUPE,
    ),
    Scenario("dead-letter the used up", used_up, lambda q, _: q.poll(), {A: DEAD}, {A: DEAD}),
    Scenario(
        "dead-letter the torn", torn, lambda q, _: q.poll(), {A: DEAD}, {A: DEAD}, tears=True
    ),
    Scenario(
        "dead-letter the torn with dedupe",
        torn,
        lambda q, _: q.poll(),
        {A: DEAD},
        {A: DEAD},
        DEDUPE,
        tears=True,
    ),
    Scenario(
        "give back the newer",
        newer,
        lambda q, _: q.poll(),
        {A: Fate(None, "pending")},
        {A: Fate(None, "pending")},
    ),
    Scenario("cancel", pushed, cancel, {A: delivered(1)}, {A: DEAD}),
    Scenario("cancel the leased", held_with_checkpoint, cancel, {A: delivered(2)}, {A: DEAD}),
    Scenario("cancel with dedupe", pushed, cancel, {A: delivered(1)}, {A: DEAD}, DEDUPE),
    Scenario(
        "cancel the leased with dedupe", held, cancel, {A: delivered(2)}, {A: DEAD}, DEDUPE
    ),
    Scenario("redrive", dead, lambda q, _: q.redrive(), {A: DEAD}, {A: delivered(1)}),
    Scenario(
        "redrive with dedupe",
        dead,
        lambda q, _: q.redrive("a"),
        {A: DEAD},
        {A: delivered(1)},
        DEDUPE,
    ),
    Scenario("drop", dead_after_retry, lambda q, _: q.drop("a"), {A: DEAD}, {A: ABSENT}),
    Scenario(
        "drop with dedupe",
        dead_after_retry,
        lambda q, _: q.drop("a"),
        {A: DEAD},
        {A: ABSENT},
        DEDUPE,
    ),
    Scenario("purge", completed_after_retry, lambda q, _: q.purge(1), {A: DONE}, {A: ABSENT}),
    Scenario(
        "purge with dedupe",
        completed_after_retry,
        lambda q, _: q.purge(1),
        {A: DONE},
        {A: ABSENT},
        DEDUPE,
    ),
    Scenario(
        "save_checkpoint",
        held,
        lambda q, m: q.save_checkpoint(m, {"page": 2}),
        {A: delivered(2)},
        {A: delivered(2)},
        checkpoint={"page": 2},
    ),
    Scenario("sweep", dead, lambda q, _: q.operator.sweep(0), {A: DEAD}, {A: DEAD}, DEDUPE),
)
