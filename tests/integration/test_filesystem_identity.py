"""One name, one process: forks, and calls that a network repeats."""

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fs import audit
from fs.crash import in_a_child
from fs.faults import RefusingFs
from fs.ground import LEASE, Ground, Queue, drain, note
from fs.schedule import Baton, Scripted
from fs.stepping import SteppingFs
from fs.watched import WatchedFs
from holdfast.adapters.local.filesystem import names
from holdfast.core.errors import LeaseLost, QueueUnavailable
from holdfast.core.lease.lease import LeaseState, Refused
from holdfast.core.queue.message import lease_of


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
    assert len({task.key for _, task, _ in audit.tasks(ground.folder)}) == 4
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
    ground.clock.advance(1)  # or the longer lease would have the same name
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


def test_a_handle_that_went_stale_is_a_race_that_was_lost(ground: Ground) -> None:
    """What a network file system says of a file that another host moved or removed."""
    fs = RefusingFs(
        ground.clock.time, errno.ESTALE, at=1, concerns=lambda name, _: name == "rename"
    )
    queue = ground.queue(fs)
    queue.poll()
    queue.push_many([note("a"), note("b")])
    fs.refusing = True
    [message] = queue.poll()
    assert message.id == "b"
    queue.ack(message)
    ground.clock.advance(3)
    assert drain(queue) == [("a", 1)]


@pytest.mark.parametrize(
    "error", [errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ELOOP], ids=errno.errorcode.get
)
def test_a_segment_that_cannot_be_listed_any_more_is_empty(ground: Ground, error: int) -> None:
    """Removed by another, here or on another host; or a link: systems differ in the word."""
    fs = RefusingFs(
        ground.clock.time,
        error,
        at=1,
        concerns=lambda name, args: name == "open" and str(args[0]).startswith("pending/"),
    )
    queue = ground.queue(fs)
    queue.push(note("a"))
    fs.refusing = True
    assert queue.poll() == []
    ground.clock.advance(3)
    assert drain(queue) == [("a", 1)]


@pytest.mark.parametrize("dedupe", [False, True], ids=["", "dedupe"])
def test_ids_whose_hashes_begin_alike_are_told_apart(ground: Ground, dedupe: bool) -> None:
    """A key holds only the beginning of the hash."""
    one, other = "33376", "51122"
    assert names.id_hash(one)[:8] == names.id_hash(other)[:8]
    queue = ground.queue(dedupe=dedupe)
    queue.push_many([note(one), note(other)])
    for message in queue.poll(2):
        queue.dead_letter(message, "no use")
    assert [view.id for view in queue.find(one)] == [one]
    assert queue.redrive(one) == 1
    assert queue.drop(other) == 1
    assert drain(queue) == [(one, 1)]


def test_a_token_that_is_taken_is_not_taken_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of one name could take each other's leases for their own."""
    tokens = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    real = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda n: next(tokens) if n == 3 else real(n))
    ground.queue().poll()
    ground.queue().poll()
    cards = sorted(path.stem for path in (ground.folder / "workers").glob("*.json"))
    assert cards == ["aaaaaa", "bbbbbb"]


def test_a_push_never_writes_over_what_another_is_writing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two producers that chose the same nonce: one of them must fail."""
    monkeypatch.setattr(secrets, "randbits", lambda n: 7)
    queue, twin = ground.queue(), ground.queue()
    key = twin._producer.new_key(names.id_hash("a"))
    (ground.folder / "tmp" / key).write_text("the twin's")
    with pytest.raises(QueueUnavailable):
        queue.push(note("a"))


ZOMBIE_VERBS: dict[str, Callable[[Queue, Any], object]] = {
    "ack": lambda queue, message: queue._ack([lease_of(message)])[0],
    "nack": lambda queue, message: queue._nack(lease_of(message), 0.0, "why", None),
    "release": lambda queue, message: queue._release(lease_of(message)),
    "dead_letter": lambda queue, message: queue._dead_letter(lease_of(message), "why", None),
    "renew": lambda queue, message: queue.renew([lease_of(message)], 60.0)[0],
}


@pytest.mark.parametrize("verb", ZOMBIE_VERBS)
def test_a_zombie_on_a_wrong_clock_changes_no_byte(ground: Ground, verb: str) -> None:
    """I-FQ-4, below the check of its own deadline: the name alone must hold it off."""
    zombie, thief = ground.queue(), ground.queue()
    zombie.push(note("a"))
    [message] = zombie.poll()
    ground.clock.advance(LEASE)
    [stolen] = thief.poll()
    before = audit.all_files(ground.folder)
    assert isinstance(ZOMBIE_VERBS[verb](zombie, message), (LeaseLost, Refused))
    assert audit.all_files(ground.folder) == before
    thief.ack(stolen)


def test_a_zombie_on_a_wrong_clock_saves_no_checkpoint(ground: Ground) -> None:
    zombie, thief = ground.queue(), ground.queue()
    zombie.push(note("a"))
    [message] = zombie.poll()
    ground.clock.advance(LEASE)
    thief.poll()
    before = audit.all_files(ground.folder)
    with pytest.raises(LeaseLost):
        zombie._save_checkpoint(lease_of(message), {"page": 1})
    assert audit.all_files(ground.folder) == before
    assert lease_of(message).state is LeaseState.LOST  # its handler must see that, too


class ShortWrites(WatchedFs):
    """A disk that takes a few bytes at a time."""

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "write":
            args = (args[0], args[1][:100])
        return real(*args, **kwargs)


def test_a_write_that_was_cut_short_goes_on(ground: Ground) -> None:
    queue = ground.queue(ShortWrites(ground.clock.time))
    queue.push(note("a", text="x" * 1000))
    queue.push_many([note("b", text="y" * 1000)])
    assert sorted(message.text[0] for message in queue.poll(2)) == ["x", "y"]


def test_a_checkpoint_that_cannot_be_read_gives_way_to_an_older_one(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(note("a"))
    for page in (1, 2):
        [message] = queue.poll()
        queue.save_checkpoint(message, {"page": page})
        queue.nack(message, delay_seconds=0)
    [newest] = (ground.folder / "checkpoints").glob("*/2.json")
    newest.write_text('{"page": ')
    assert queue.load_checkpoint(queue.poll()[0]) == {"page": 1}


def test_done_work_leaves_no_checkpoint(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(note("a"))
    [message] = queue.poll()
    queue.save_checkpoint(message, {"page": 1})
    queue.nack(message, delay_seconds=0)
    queue.ack(queue.poll()[0])
    assert list((ground.folder / "checkpoints").iterdir()) == []


def test_work_done_at_the_first_attempt_leaves_no_checkpoint(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(note("a"))
    [message] = queue.poll()
    queue.save_checkpoint(message, {"page": 1})
    queue.ack(message)
    assert list((ground.folder / "checkpoints").iterdir()) == []


def test_what_may_not_be_read_is_buried_with_the_way_out(ground: Ground) -> None:
    fs = RefusingFs(
        ground.clock.time,
        errno.EACCES,
        concerns=lambda name, args: name == "open" and str(args[0]).startswith("leased/"),
    )
    queue = ground.queue(fs)
    queue.push(note("a"))
    fs.refusing = True
    assert queue.poll() == []
    fs.refusing = False
    [view] = queue.dead_letters()
    assert "redrive" in str(view.reason)
    queue.redrive()
    assert drain(queue) == [("a", 1)]


def test_a_queue_that_is_moved_as_a_whole_goes_on_for_those_who_have_it_open(
    ground: Ground,
) -> None:
    queue = ground.queue()
    queue.push(note("a"))
    os.rename(ground.folder, ground.folder.with_name("elsewhere"))
    assert drain(queue) == [("a", 1)]


def test_a_closed_queue_touches_no_folder_that_got_its_number(ground: Ground) -> None:
    queue = ground.queue()
    other = Ground(ground.root / "other", ground.clock).queue()
    number = queue._tree.fd
    queue.close()
    os.dup2(other._tree.fd, number)
    try:
        with pytest.raises(QueueUnavailable):
            queue.push(note("a"))
    finally:
        os.close(number)
    assert other.stats().ready == 0
