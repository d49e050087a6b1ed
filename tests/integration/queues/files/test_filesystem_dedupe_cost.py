"""The cost of dedupe in file system calls, which is the same for each message."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support.files import audit
from support.files.queue_folder import Ground, Queue, make_message
from support.files.watched import CountingFs

FEW = 10
EACH_AT_MOST = 30  # calls for one message


def push_all(queue: Queue, count: int) -> None:
    queue.push_many([make_message(str(number)) for number in range(count)])


def dead(queue: Queue, count: int) -> None:
    push_all(queue, count)
    for message in queue.poll(count):
        queue.dead_letter(message, "no use")


def completed(queue: Queue, count: int) -> None:
    push_all(queue, count)
    queue.ack_many(queue.poll(count))


def removed_by_hand(queue: Queue, count: int) -> None:
    completed(queue, count)
    for _, _, path in list(audit.list_tasks(queue.folder)):
        path.unlink()


Prepare = Callable[[Queue, int], None]
Act = Callable[[Queue, int], object]


def redrive(queue: Queue, count: int) -> None:
    assert queue.redrive() == count


def push_again(queue: Queue, count: int) -> None:
    before = queue.stats()
    push_all(queue, count)
    assert queue.stats() == before


def purge(queue: Queue, count: int) -> None:
    assert queue.purge(0) == count


def dead_letter_all(queue: Queue, count: int) -> None:
    for message in queue.poll(count):
        queue.dead_letter(message, "no use")


def push_what_is_gone(queue: Queue, count: int) -> None:
    push_all(queue, count)
    assert queue.stats().ready == count


CASES: dict[str, tuple[Prepare, Act]] = {
    "redrive": (dead, redrive),
    "redrive one": (dead, lambda queue, count: queue.redrive("0")),
    "dead-letter": (push_all, dead_letter_all),
    "push what is pending": (push_all, push_again),
    "push what is completed": (completed, push_again),
    "push what is dead": (dead, push_what_is_gone),
    "purge": (completed, purge),
    "sweep": (removed_by_hand, lambda queue, count: queue.operator.sweep()),
}


def calls(folder: Path, count: int, prepare: Prepare, act: Act) -> Counter[str]:
    ground = Ground(folder, dedupe=True)
    prepare(ground.queue(), count)
    fs = CountingFs(ground.clock.time)
    queue = ground.queue(fs)
    fs.counted.clear()
    act(queue, count)
    return fs.counted


@pytest.mark.parametrize(("prepare", "act"), CASES.values(), ids=CASES)
def test_the_calls_for_each_message_do_not_grow_with_the_number_of_messages(
    fast_path: Path, prepare: Prepare, act: Act
) -> None:
    for_one, for_two, for_four = (
        calls(fast_path / str(times), times * FEW, prepare, act) for times in (1, 2, 4)
    )
    assert for_one["listdir"] == for_two["listdir"] == for_four["listdir"]
    assert for_four.total() - for_two.total() == 2 * (for_two.total() - for_one.total())
    assert for_four.total() - for_two.total() <= 2 * FEW * EACH_AT_MOST
