"""One name, one process: forks, and calls that a network repeats."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fs import audit
from fs.crash import in_a_child
from fs.ground import Ground, drain, note
from fs.schedule import Baton, Scripted
from fs.stepping import SteppingFs


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path)


def test_a_fork_pushes_under_keys_of_its_own(ground: Ground) -> None:
    """In the same millisecond, the same id: with one key they would be one file."""
    queue = ground.queue()
    queue.push(note("a"))

    def push(say: Callable[[str], None]) -> None:
        queue.push(note("a"))

    in_a_child(push)
    in_a_child(push)
    queue.push(note("a"))
    assert drain(queue) == [("a", 1)] * 4


def test_a_fork_claims_as_a_worker_of_its_own(ground: Ground) -> None:
    """Both saw the task; in the same millisecond both would make the same leased name."""
    queue = ground.queue()
    queue.poll()
    queue.push_many([note("a"), note("b")])
    [first] = queue.poll()  # "b" stays in what the parent has listed

    def claim(say: Callable[[str], None]) -> None:
        say(",".join(message.id for message in queue.poll(5)))

    claimed = in_a_child(claim).said.split(",")
    assert first.id not in claimed
    assert [message.id for message in queue.poll(5)] == []
    holders = {path.name.split("~")[2] for path in (ground.folder / "leased").iterdir()}
    assert len(holders) == 2


def test_a_fork_can_claim_while_its_parent_was_claiming(ground: Ground) -> None:
    """A lock that a thread of the parent held at the fork is held by nobody in the child."""
    queue = ground.queue()
    queue.push(note("a"))
    with queue._claiming:
        said = in_a_child(lambda say: say(str(len(queue.poll()))), hangs_after_seconds=10).said
    assert said == "1"


def test_each_verb_believes_in_a_rename_that_was_done_and_then_refused(ground: Ground) -> None:
    """A network file system repeats a call whose answer was lost: the source is gone then."""
    fs = SteppingFs(ground.clock.time, Baton(Scripted([])), repeats=True)
    queue = ground.queue(fs)
    queue.push_many([note("a"), note("b")])
    queue.push(note("c"))
    one, two, three = queue.poll(3)
    queue.extend(one)
    queue.save_checkpoint(one, {"page": 1})
    queue.ack(one)
    queue.nack(two, delay_seconds=0)
    queue.release(three)
    [again, other] = queue.poll(3)
    queue.dead_letter(again, "no use")
    queue.ack(other)
    ground.clock.advance(5)
    queue.redrive()
    assert [message_id for message_id, _ in drain(queue)] == [again.id]
    assert audit.faults(ground.folder) == {}
    assert {state for state, _, _ in audit.tasks(ground.folder)} == {"completed"}


def test_an_unlinked_descriptor_is_not_needed_to_see_that_a_queue_was_moved(
    ground: Ground,
) -> None:
    """A queue folder that is renamed as a whole goes on to work for those who have it open."""
    queue = ground.queue()
    queue.push(note("a"))
    os.rename(ground.folder, ground.folder.with_name("elsewhere"))
    assert drain(queue) == [("a", 1)]
