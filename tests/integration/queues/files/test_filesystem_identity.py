"""Each name belongs to one process: forks, and calls that a network repeats."""

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interleaved_queue import SteppingFs

from holdfast.errors import LeaseLost, QueueUnavailable
from holdfast.lease.lease import LeaseState, Refused
from holdfast.queue.message import get_lease
from holdfast.queues.files import layout
from support.files import audit
from support.files.crash import run_in_child
from support.files.queue_folder import LEASE, Ground, Queue, drain, make_message
from support.files.watched import RefusingFs, WatchedFs
from support.interleaving import Baton, Scripted


@pytest.fixture
def ground(fast_path: Path) -> Ground:
    return Ground(fast_path)


def test_a_fork_pushes_under_keys_of_its_own(ground: Ground) -> None:
    """Two pushes of one id in the same millisecond would be one file if they shared a key."""
    queue = ground.queue()
    queue.push(make_message("a"))

    def push(say: Callable[[str], None]) -> None:
        queue.push(make_message("a"))

    run_in_child(push)
    run_in_child(push)
    queue.push(make_message("a"))
    assert len({task.key for _, task, _ in audit.list_tasks(ground.folder)}) == 4
    assert drain(queue) == [("a", 1)] * 4


def test_a_fork_claims_as_a_worker_of_its_own(ground: Ground) -> None:
    """Both saw the task, and in the same millisecond both would make the same leased name."""
    queue = ground.queue()
    queue.poll()
    queue.push_many([make_message("a"), make_message("b")])
    [first] = queue.poll()  # "b" stays in the parent's listing

    def claim(say: Callable[[str], None]) -> None:
        say(",".join(message.id for message in queue.poll(5)))

    claimed = run_in_child(claim).output.split(",")
    assert first.id not in claimed
    assert [message.id for message in queue.poll(5)] == []
    holders = {path.name.split("~")[2] for path in (ground.folder / "leased").iterdir()}
    assert len(holders) == 2


def test_a_fork_can_claim_while_its_parent_was_claiming(ground: Ground) -> None:
    """A lock that a thread of the parent held at the fork has no holder in the child."""
    queue = ground.queue()
    queue.push(make_message("a"))
    with queue._claim_lock:
        output = run_in_child(
            lambda say: say(str(len(queue.poll()))), hangs_after_seconds=10
        ).output
    assert output == "1"


def test_each_verb_believes_in_a_rename_that_was_done_and_then_refused(ground: Ground) -> None:
    """A network file system repeats a call whose response was lost. Then the source is gone."""
    fs = SteppingFs(ground.clock.time, Baton(Scripted([])), repeats=True)
    queue = ground.queue(fs)
    queue.push_many([make_message("a"), make_message("b")])
    queue.push(make_message("c"))
    first, second, third = queue.poll(3)
    ground.clock.advance(1)  # otherwise the longer lease would have the same name
    queue.extend(first)
    queue.save_checkpoint(first, {"page": 1})
    queue.ack(first)
    queue.nack(second, delay_seconds=0)
    queue.release(third)
    [again, other] = queue.poll(3)
    queue.dead_letter(again, "no use")
    queue.ack(other)
    ground.clock.advance(5)
    queue.redrive()
    assert [message_id for message_id, _ in drain(queue)] == [again.id]
    assert audit.find_faults(ground.folder) == {}
    assert {state for state, _, _ in audit.list_tasks(ground.folder)} == {"completed"}


def test_a_handle_that_went_stale_is_a_race_that_was_lost(ground: Ground) -> None:
    """A network file system reports this for a file that another host moved or removed."""
    fs = RefusingFs(
        ground.clock.time, errno.ESTALE, at=1, concerns=lambda name, _: name == "rename"
    )
    queue = ground.queue(fs)
    queue.poll()
    queue.push_many([make_message("a"), make_message("b")])
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
    """Another process removed it, or it is a link. Systems report that differently."""
    fs = RefusingFs(
        ground.clock.time,
        error,
        at=1,
        concerns=lambda name, args: name == "open" and str(args[0]).startswith("pending/"),
    )
    queue = ground.queue(fs)
    queue.push(make_message("a"))
    fs.refusing = True
    assert queue.poll() == []
    ground.clock.advance(3)
    assert drain(queue) == [("a", 1)]


@pytest.mark.parametrize("dedupe", [False, True], ids=["", "dedupe"])
def test_ids_whose_hashes_begin_alike_are_distinguished(ground: Ground, dedupe: bool) -> None:
    """A key holds only the beginning of the hash."""
    first, other = "33376", "51122"
    assert layout.hash_id(first)[:8] == layout.hash_id(other)[:8]
    queue = ground.queue(dedupe=dedupe)
    queue.push_many([make_message(first), make_message(other)])
    for message in queue.poll(2):
        queue.dead_letter(message, "no use")
    assert [view.id for view in queue.find(first)] == [first]
    assert queue.redrive(first) == 1
    assert queue.drop(other) == 1
    assert drain(queue) == [(first, 1)]


def test_a_token_that_is_taken_is_not_taken_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers with one token could take each other's leases for their own."""
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
    """If two producers chose the same nonce, one of them must fail."""
    monkeypatch.setattr(secrets, "randbits", lambda n: 7)
    queue, twin = ground.queue(), ground.queue()
    key = twin._producer.make_key(layout.hash_id("a"))
    (ground.folder / "tmp" / key).write_text("the twin's")
    with pytest.raises(QueueUnavailable):
        queue.push(make_message("a"))


STALE_HOLDER_VERBS: dict[str, Callable[[Queue, Any], object]] = {
    "ack": lambda queue, message: queue._ack([get_lease(message)])[0],
    "nack": lambda queue, message: queue._nack(get_lease(message), 0.0, "why", None),
    "release": lambda queue, message: queue._release(get_lease(message)),
    "dead_letter": lambda queue, message: queue._dead_letter(get_lease(message), "why", None),
    "renew": lambda queue, message: queue.renew([get_lease(message)], 60.0)[0],
}


@pytest.mark.parametrize("verb", STALE_HOLDER_VERBS)
def test_a_stale_holder_on_a_wrong_clock_changes_no_byte(ground: Ground, verb: str) -> None:
    """Even without the check of its own deadline, the name alone must stop it."""
    stale_holder, successor = ground.queue(), ground.queue()
    stale_holder.push(make_message("a"))
    [message] = stale_holder.poll()
    ground.clock.advance(LEASE)
    [taken_over] = successor.poll()
    before = audit.read_all_files(ground.folder)
    assert isinstance(STALE_HOLDER_VERBS[verb](stale_holder, message), (LeaseLost, Refused))
    assert audit.read_all_files(ground.folder) == before
    successor.ack(taken_over)


def test_a_stale_holder_on_a_wrong_clock_saves_no_checkpoint(ground: Ground) -> None:
    stale_holder, successor = ground.queue(), ground.queue()
    stale_holder.push(make_message("a"))
    [message] = stale_holder.poll()
    ground.clock.advance(LEASE)
    successor.poll()
    before = audit.read_all_files(ground.folder)
    with pytest.raises(LeaseLost):
        stale_holder._save_checkpoint(get_lease(message), {"page": 1})
    assert audit.read_all_files(ground.folder) == before
    assert get_lease(message).state is LeaseState.LOST  # its handler must see that, too


class ShortWrites(WatchedFs):
    """A disk that writes a few bytes at a time."""

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "write":
            args = (args[0], args[1][:100])
        return real(*args, **kwargs)


def test_a_write_that_was_cut_short_goes_on(ground: Ground) -> None:
    queue = ground.queue(ShortWrites(ground.clock.time))
    queue.push(make_message("a", text="x" * 1000))
    queue.push_many([make_message("b", text="y" * 1000)])
    assert sorted(message.text[0] for message in queue.poll(2)) == ["x", "y"]


def test_a_checkpoint_that_cannot_be_read_gives_way_to_an_older_one(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    for page in (1, 2):
        [message] = queue.poll()
        queue.save_checkpoint(message, {"page": page})
        queue.nack(message, delay_seconds=0)
    [newest] = (ground.folder / "checkpoints").glob("*/2.json")
    newest.write_text('{"page": ')
    assert queue.load_checkpoint(queue.poll()[0]) == {"page": 1}


def test_done_work_leaves_no_checkpoint(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    queue.save_checkpoint(message, {"page": 1})
    queue.nack(message, delay_seconds=0)
    queue.ack(queue.poll()[0])
    assert list((ground.folder / "checkpoints").iterdir()) == []


def test_work_done_at_the_first_attempt_leaves_no_checkpoint(ground: Ground) -> None:
    queue = ground.queue()
    queue.push(make_message("a"))
    [message] = queue.poll()
    queue.save_checkpoint(message, {"page": 1})
    queue.ack(message)
    assert list((ground.folder / "checkpoints").iterdir()) == []


def test_a_task_that_may_not_be_read_is_dead_lettered_with_a_remedy(ground: Ground) -> None:
    fs = RefusingFs(
        ground.clock.time,
        errno.EACCES,
        concerns=lambda name, args: name == "open" and str(args[0]).startswith("leased/"),
    )
    queue = ground.queue(fs)
    queue.push(make_message("a"))
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
    queue.push(make_message("a"))
    os.rename(ground.folder, ground.folder.with_name("elsewhere"))
    assert drain(queue) == [("a", 1)]


def test_a_closed_queue_touches_no_folder_that_got_its_number(ground: Ground) -> None:
    queue = ground.queue()
    other = Ground(ground.root / "other", ground.clock).queue()
    number = queue._directory.fd
    queue.close()
    os.dup2(other._directory.fd, number)
    try:
        with pytest.raises(QueueUnavailable):
            queue.push(make_message("a"))
    finally:
        os.close(number)
    assert other.stats().ready == 0
