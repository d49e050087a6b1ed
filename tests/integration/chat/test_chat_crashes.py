"""SIGKILL and SIGSTOP between any two calls of a conversation's ports.

A process answers three messages over SQLite and a file queue, and is struck after its k-th
call of store, queue, writer, sender or secrets: killed, or frozen until another process has
taken over. Other processes continue, and may be struck as well. Afterwards every message is
either once in the history, or parked because it is unknown whether its reply was sent. No
part of a reply was sent twice, unless the policy allows that. Nothing is staged, locked or
unfinished. Then the webhooks of all messages are repeated, and one more message arrives; only
that one is answered. A sweeper is needed only if a stager died and its webhook is not
repeated.

Time is a number that each process is given. It advances a little with each call, and jumps
when there is nothing to do, so no test really waits.

`make test` kills the worker of three scenes, and `make nightly` does the rest.

R002; MS-01, 02, 03, 04, 05, 06, 07, 08, 09, 14, 20, 21, 22; I-MS-1…6.
"""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from threading import Event
from typing import Any, Literal, Self

import pytest

from chaos.test_chaos import SECONDS
from holdfast.chat.errors import SendUnclear, TransientError
from holdfast.chat.messages import Trigger
from holdfast.chat.model import ConversationKey, ConversationPolicy, Doubt, LockAcquired, Status
from holdfast.chat.outbox import SendingReply
from holdfast.chat.providers.local import OutboxSender, read_outbox
from holdfast.chat.sqlite_conversations import SQLiteConversations
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.manager import MessageState
from holdfast.queue.message import make_id
from holdfast.queues.files import FilesystemQueue, FsOps
from holdfast.testing.clock import ManualClock
from support.chat.accounting import ChatAccounting
from support.chat.application import PROFILE, Chat, Port, make_message
from support.chat.providers import (
    FakeProviders,
    FakeSecrets,
    FakeSender,
    FakeWriter,
    Ledger,
    Line,
)
from support.files.crash import Ending
from support.fork_server import SmallChild

CALL_SECONDS = 0.01


KEY = ConversationKey("whatsapp:+4915100000000", "chat-one")
MESSAGES = ("first", "second", "third")
LEASE_SECONDS = (
    20.0  # shorter than the lock, so a trigger is redelivered while the lock is held
)
AWAY_SECONDS = 25.0  # until another process starts
STEP_SECONDS = 12.0
BOOTED_AT = 1_000_000_000.0  # the start of the monotonic clock of all processes
WAIT_TIMEOUT = 100


class Doom:
    """A counter of calls that strikes the process after `after` of them, if that is not None.

    The point after a call and the point before the next one are the same. `meanwhile` has
    what another process does just before the first call of that name.
    """

    def __init__(
        self,
        after: int | None = None,
        by: signal.Signals = signal.SIGKILL,
        meanwhile: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self._after, self._by = after, by
        self._meanwhile = dict(meanwhile or {})
        self.calls: list[str] = []
        self.last_word: Callable[[], None] = lambda: None
        self.call_ended: Callable[[], None] = lambda: None
        self.returned: Callable[[Any], None] = lambda result: None

    def pause(self) -> None:
        """Strike if this is the point; called between two calls and after the last."""
        if len(self.calls) == self._after:
            self._after = None
            self.last_word()
            os.kill(os.getpid(), self._by)

    def make_call(self, label: str, call: Callable[[], Any]) -> Any:
        self.pause()
        if (meanwhile := self._meanwhile.pop(label, None)) is not None:
            self.last_word()
            meanwhile()
        try:
            result = call()
            self.returned(result)
            return result
        finally:  # also if it was refused
            self.calls.append(label)
            self.call_ended()


def describe_blow(calls: list[str], after: int) -> str:
    """Describe the point of the blow, for the report of a failure."""
    before, then = ["the beginning", *calls][after], [*calls, "the end"][after]
    return f"struck after call {after} of {len(calls)}: after {before}, before {then}"


@dataclass(frozen=True)
class Scene:
    """The course of a conversation if no process dies."""

    sender: Literal["finds", "blind", "outbox"] = "finds"
    in_doubt: Doubt = "if_missing"
    pages: int = 1
    threads: bool = (
        True  # the writer keeps threads; otherwise a reply that was not noted is lost
    )
    refusals: int = 0  # how often the sender refuses
    unclear: Literal["", "sent", "not sent"] = ""  # the sender's first answer is lost
    third_at: float = 2.0  # seconds after the first message
    late: str = ""  # before this call one more message arrives
    since: str = ""  # the first call to strike; before it all scenes are the same
    until: str = ""  # the last call to strike
    shows: tuple[str, ...] = ()  # calls that are made here but not in every turn

    def reply(self, text: str) -> str:
        """Return a reply with equal pages."""
        page = f"{make_id()[:8]} on: {text}".ljust(1_300 if self.pages > 1 else 0, ".")
        return "\n\n".join([page] * self.pages)

    def list_blows(self, calls: Sequence[str]) -> range:
        """Return the numbers of calls after which to strike."""
        first = calls.index(self.since) + 1 if self.since else 0
        last = calls.index(self.until) + 1 if self.until else len(calls)
        return range(first, last + 1)

    @property
    def policy(self) -> ConversationPolicy:
        """Return the policy of the conversation."""
        # No lease is renewed here, so look-ups must end within half of a lease.
        return ConversationPolicy(in_doubt=self.in_doubt, writer_seconds=LEASE_SECONDS)


class Place:
    """What outlives processes: a store, a queue, and the ledgers of the providers."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        self.folder, self.scene = folder, scene
        self.store = SQLiteConversations(folder / "chat.db", durability="process")
        self.sent, self.asked = Ledger(folder / "sent"), Ledger(folder / "asked")
        self.accepted = Ledger(folder / "came")
        self.letters = folder / "letters"  # of the outbox sender

    def make_providers(
        self, clock: ManualClock, watch: Callable[[str, Any], Any]
    ) -> FakeProviders:
        """Return the providers of the scene."""
        scene = self.scene
        writer = FakeWriter(scene.reply, ledger=self.asked, keeps_threads=scene.threads)
        sender: Any = OutboxSender(self.letters, clock)
        if scene.sender != "outbox":
            finds = scene.sender == "finds"
            sender = FakeSender(
                can_tell=finds, ledger=self.sent, clock=clock, fault=self._fail_sender
            )
        return FakeProviders(
            watch("writer", writer), watch("sender", sender), watch("secrets", FakeSecrets())
        )

    def _fail_sender(self, point: str) -> None:
        done = [line["what"] for line in self.sent.lines()]
        if point == "send" and done.count("refused") < self.scene.refusals:
            self.sent.add(what="refused")
            raise TransientError("the sender is unavailable")
        lost_at = {"sent": "sent", "not sent": "send"}.get(self.scene.unclear)
        if point == lost_at and "unclear" not in done:
            self.sent.add(what="unclear")
            raise SendUnclear("the answer was lost")

    def read_replies(self) -> list[Line]:
        """Return part and text of each message that was sent."""
        if self.scene.sender == "outbox":
            letters = read_outbox(self.letters)
            return [{"index": reply.index, "text": reply.text} for reply in letters]
        return [line for line in self.sent.lines() if line["what"] == "sent"]

    @property
    def interrupted(self) -> SendingReply | None:
        """Return the outbox if it says that a part may have been sent."""
        conversation = self.store.get(KEY)
        outbox = conversation.outbox if conversation else None
        return outbox if isinstance(outbox, SendingReply) else None

    def must_park(self) -> bool:
        """Check whether the next worker must park, by the outbox and the ledgers."""
        outbox, scene = self.interrupted, self.scene
        if outbox is None or scene.sender == "outbox" or scene.in_doubt == "at_least_once":
            return False
        sent = [line for line in self.read_replies() if line["text"] in outbox.answer.text]
        found = any(line["index"] == len(outbox.parts) for line in sent)
        return scene.sender == "blind" or not found

    def read_last_calls(self) -> list[str]:
        """Return the calls of the last process that was struck, as it recorded them."""
        calls: list[str] = json.loads((self.folder / "calls").read_text())
        return calls

    # -- the time

    def now(self) -> float:
        """Return the current time of the place."""
        return float((self.folder / "clock").read_text())

    def start_time(self) -> None:
        """Start with now, because files get their timestamps from the machine's clock."""
        (self.folder / "clock").write_text(repr(float(int(SYSTEM_CLOCK.time()) + 1)))

    def advance_to(self, at: float) -> None:
        """Advance the time; the slow clock of a stale holder does not turn it back."""
        (self.folder / "clock").write_text(repr(max(at, self.now())))


class Life:
    """A process with all its components, which starts at `at`."""

    def __init__(self, place: Place, at: float, doom: Doom) -> None:
        self._place, self.doom = place, doom
        self.clock = clock = ManualClock(at - BOOTED_AT, time=at, auto_advance=True)
        self._queue = FilesystemQueue(
            place.folder,
            Trigger,
            lease_seconds=LEASE_SECONDS,
            max_attempts=9,
            backoff=Backoff(first_seconds=1.0, max_seconds=2.0),
            clock=clock,
            fs=FsOps(server_time=clock.time),
        )
        self._keeper = LeaseKeeper(_BlockingClock(clock))
        self._fences: set[int] = set()
        doom.last_word, doom.returned = self._record_state, self._note_grant
        doom.call_ended = partial(clock.advance, CALL_SECONDS)
        watch = partial(Port, doom.make_call)
        self._chat = Chat(
            watch("store", place.store),
            watch("queue", self._queue),
            place.make_providers(clock, watch),
            keeper=self._keeper,
            clock=clock,
            policy=place.scene.policy,
            profiles={"*": PROFILE},
            max_attempts=9,
        )

    def _record_state(self) -> None:
        self._place.advance_to(self.clock.time())
        (self._place.folder / "calls").write_text(json.dumps(self.doom.calls))

    def close(self) -> None:
        """Stop the process."""
        self.doom.pause()
        self._place.advance_to(self.clock.time())
        self._keeper.stop()
        self._queue.close()

    # -- its work

    def stage(self, sids: Iterable[str], third_at: float = 2.0) -> None:
        """Stage the messages one second apart, the third at the given time."""
        began = self.clock.time()
        for number, sid in enumerate(sids):
            at = third_at if number == 2 else float(number)
            self.clock.advance(max(0.0, began + at - self.clock.time()))
            self._chat.stager.stage(make_message(KEY, sid))
            self._place.accepted.add(sid=sid)

    def run_until_quiet(self, *, sweep: bool = False) -> None:
        """Work until no trigger is left, and with `sweep` until nothing is staged."""
        for _ in range(WAIT_TIMEOUT):
            stats = self._queue.stats()
            if (stats.ready or stats.expired) and self._handle_next():
                continue
            if stats.ready + stats.delayed + stats.leased:
                self.clock.advance(self._seconds_until_due())
            elif sweep and self._place.store.staged(KEY.conversation_id):
                self.clock.advance(STEP_SECONDS)
                self._chat.sweeper.sweep()
            else:
                return
        raise AssertionError(f"never quiet: {self._queue.stats()}")

    def _seconds_until_due(self) -> float:
        """Return the time until the next trigger is due or a lease expires."""
        pending = self._queue.peek(MessageState.PENDING)
        due = [info.due_at.timestamp() for info in pending if info.due_at]
        left = min(due, default=inf) - self.clock.time() + CALL_SECONDS
        return min(STEP_SECONDS, max(CALL_SECONDS, left))

    def _handle_next(self) -> bool:
        messages = self._chat.queue.poll()
        for trigger in messages:
            self._chat.handle(trigger, Event())
            assert not self._has_lock(), "the lock was kept"
        return bool(messages)

    def _note_grant(self, result: object) -> None:
        if isinstance(result, LockAcquired):
            self._fences.add(result.grant.fence)

    def _has_lock(self) -> bool:
        if (row := self._place.store.get(KEY)) is None:
            return False
        return row.status == Status.PROCESSING and row.lock_fence in self._fences


class _BlockingClock:
    """The keeper's clock, which waits until the event is set.

    No lock is held long enough to be renewed here, and a thread that polls the time is slow.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.time, self.monotonic, self.sleep = clock.time, clock.monotonic, clock.sleep

    def wait(self, event: Event, seconds: float | None) -> bool:
        return event.wait()


Act = Callable[[Life], None]
"""What a process does, from start to end."""


@contextmanager
def run_life(
    place: Place, doom: Doom | None = None, *, away_seconds: float = 0.0
) -> Iterator[Life]:
    """Run a life in this process, some time after the last one."""
    life = Life(place, place.now() + away_seconds, doom or make_doom(place))
    try:
        yield life
    finally:
        life.close()


def make_doom(
    place: Place, after: int | None = None, by: signal.Signals = signal.SIGKILL
) -> Doom:
    """Return a doom that delivers the scene's late message, if there is one."""
    late = place.scene.late
    return Doom(after, by, {late: lambda: _arrive(place)} if late else {})


def _arrive(place: Place) -> None:
    """Stage one more message the first time, as another process would."""
    if any(line["sid"] == "late" for line in place.accepted.lines()):
        return
    with run_life(place, Doom()) as life:
        life.stage(["late"])


def work(life: Life) -> None:
    """Handle triggers until none is left."""
    life.run_until_quiet()


def stage_three(life: Life) -> None:
    """Stage three messages."""
    life.stage(MESSAGES)


# -- processes that are struck


class Struck:
    """A process that strikes itself after its k-th call."""

    def __init__(
        self, place: Place, act: Act, after: int, by: signal.Signals, away_seconds: float
    ) -> None:
        place.store.close()  # a process that dies is the last that has the file open
        self._child = SmallChild(
            partial(_live, place.folder, place.scene, act, after, by, away_seconds)
        )
        self._ending = self._child.wait_for_stop()

    @property
    def killed(self) -> bool:
        """Check whether the process was killed."""
        return self._ending is not None and self._ending.killed

    @property
    def frozen(self) -> bool:
        """Check whether the process is stopped."""
        return self._ending is None

    def thaw(self) -> None:
        """Let it continue until its end."""
        self._continue_by(signal.SIGCONT)
        assert self._ending == Ending(False, ""), f"the stale holder ended as {self._ending}"

    def end(self) -> None:
        """Kill the process if it is still stopped."""
        if self.frozen:
            self._continue_by(signal.SIGKILL)

    def _continue_by(self, sent: signal.Signals) -> None:
        os.kill(self._child.pid, sent)
        self._ending = self._child.wait_for_stop()


def _live(
    folder: Path,
    scene: Scene,
    act: Act,
    after: int,
    by: signal.Signals,
    away_seconds: float,
    say: Callable[[str], None],
) -> None:
    place = Place(folder, scene)
    with run_life(place, make_doom(place, after, by), away_seconds=away_seconds) as life:
        act(life)


# -- places


def make_place(folder: Path, scene: Scene | None = None) -> Place:
    """Return an empty place."""
    folder.mkdir()
    place = Place(folder, scene or Scene())
    place.start_time()
    return place


def make_staged_place(folder: Path, scene: Scene) -> Place:
    """Return a place with three staged messages and their trigger."""
    place = make_place(folder, scene)
    with run_life(place, Doom()) as life:
        life.stage(MESSAGES, scene.third_at)
    return place


def copy_place(place: Place, folder: Path) -> Place:
    """Copy the place to another folder."""
    place.store.close()
    shutil.copytree(place.folder, folder)
    return Place(folder, place.scene)


def record_calls(place: Place, act: Act, away_seconds: float = 0.0) -> list[str]:
    """Return the calls of a process that nothing strikes."""
    with run_life(place, away_seconds=away_seconds) as life:
        act(life)
    return list(life.doom.calls)


def list_owed(place: Place) -> set[str]:
    """Return the messages that were accepted or stored, whose webhooks are not repeated."""
    staged = [row.message_sid for row in place.store.staged(KEY.conversation_id)]
    return {line["sid"] for line in place.accepted.lines()}.union(staged)


def list_missing(place: Place) -> list[str]:
    """Return the messages whose webhooks failed and are repeated."""
    accepted = {line["sid"] for line in place.accepted.lines()}
    return [sid for sid in MESSAGES if sid not in accepted]


# The maximum wait, the grace and a margin; windows of dead processes would exist longer.
SWEPT_SECONDS = 30.0 + 60.0 + 2 * STEP_SECONDS + 10.0


class Trial:
    """A sequence of blows and their checks. A failure reports the calls before each blow."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._blows: list[str] = []
        self._life: Life | None = None
        self._struck: list[Struck] = []
        self._unclear = 0  # blows while a part was being sent
        self._must_park = False
        self._more_asked = 0  # how often the writer may have been asked again
        self._owed: set[str] = set()  # accepted or stored, so their webhooks are not repeated

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        for struck in self._struck:
            struck.end()
        self._stop_other()
        self.place.store.close()
        if error is not None:
            error.add_note("; then ".join(self._blows))

    def copy(self, folder: Path) -> "Trial":
        """Return a copy of this trial in another folder."""
        other = Trial(copy_place(self.place, folder))
        other._blows, other._owed = list(self._blows), set(self._owed)
        other._unclear, other._more_asked = self._unclear, self._more_asked
        return other

    # -- blows

    def kill(self, act: Act, calls: list[str], after: int, away: float = 0.0) -> None:
        """Kill a process after this many of its `calls`."""
        self._blows.append(describe_blow(calls, after))
        assert self._strike(act, after, signal.SIGKILL, away).killed, "it was not struck"
        assert self.place.read_last_calls() == calls[:after], "it made other calls"
        self._more_asked += not self.place.scene.threads and is_reply_lost(calls[:after])

    def freeze(self, act: Act, calls: list[str], after: int, away: float = 0.0) -> Struck:
        """Freeze a process after this many of its `calls`."""
        self._blows.append(describe_blow(calls, after))
        self._more_asked += 1  # it may be about to
        struck = self._strike(act, after, signal.SIGSTOP, away)
        assert struck.frozen, "it was not struck"
        assert self.place.read_last_calls() == calls[:after], "it made other calls"
        return struck

    def _strike(self, act: Act, after: int, by: signal.Signals, away: float) -> Struck:
        self._stop_other()
        struck = Struck(self.place, act, after, by, away)
        self._struck.append(struck)
        self._owed |= list_owed(self.place)
        self._must_park = bool(list(self.place.store.parked())) or self.place.must_park()
        self._unclear += self.place.interrupted is not None
        return struck

    # -- the next process

    def recover(self, *, sweep: bool = False) -> None:
        """Let another process work, a while later, until nothing is left to do."""
        life = self._start_other()
        began = life.clock.time()
        life.run_until_quiet(sweep=sweep)
        assert not sweep or life.clock.time() - began < SWEPT_SECONDS, "swept too late"

    def deliver_again(self, sids: Iterable[str]) -> None:
        """Stage messages again in another process."""
        self._start_other().stage(sids)

    def _start_other(self) -> Life:
        if self._life is None:
            at = self.place.now() + AWAY_SECONDS
            self._life = Life(self.place, at, make_doom(self.place))
        else:
            self._life.clock.advance(AWAY_SECONDS)
        return self._life

    def _stop_other(self) -> None:
        if self._life is not None:
            self._life.close()
            self._life = None

    # -- the checks

    def judge(self) -> None:
        """Check all promises, then once more after a further message."""
        all_sids = sorted(self._owed | list_owed(self.place))
        totals = self._check(all_sids)
        assert bool(totals.parked) == self._must_park, (
            "the send was not unclear, but the batch is parked"
            if totals.parked
            else "the send was unclear, but the batch is not parked"
        )
        self.deliver_again([*all_sids, "epilogue"])
        self.recover()
        after = self._check([*all_sids, "epilogue"])
        assert after.answered["epilogue"] == 1, "new messages are not answered"
        assert after.parked == totals.parked

    def _check(self, sids: Iterable[str]) -> ChatAccounting:
        place, at_least_once = self.place, self.place.scene.in_doubt == "at_least_once"
        max_sent = 1 + self._unclear * at_least_once
        account = ChatAccounting(
            place.store, place.read_replies(), place.asked.lines(), lambda *_: max_sent
        )
        wrong = [*account.find_wrong(), *account.find_unfinished(sids)]
        assert not [*wrong, *account.find_wrongly_parked()]
        most_asked = max(account.count_asked().values(), default=0)
        assert most_asked <= 1 + self._more_asked, f"the writer was asked {most_asked} times"
        for answer in [message for history in account.histories for message in history[1::2]]:
            assert len(answer.details["sids"]) == place.scene.pages
        return account


def is_reply_lost(calls: list[str]) -> bool:
    """Check whether the process was struck when a reply was known but not noted."""
    return calls[-1:] == ["writer.write"]


# -- the tests

PREPARED, SENDING = "store.note(PreparedReply)", "store.note(SendingReply)"

SCENES = {
    "the sender can be queried": Scene(),
    "the sender cannot be queried": Scene("blind", since=PREPARED),
    "it may be sent again": Scene("blind", in_doubt="at_least_once", since=PREPARED),
    "the writer keeps no thread": Scene(
        threads=False, since="store.note(WritingReply)", until=SENDING
    ),
    "replies in a folder": Scene("outbox", since=PREPARED),
    "three equal parts": Scene(pages=3, since=PREPARED),
    "three parts of a sender that cannot be queried": Scene("blind", pages=3, since=PREPARED),
    "the sender's answer is lost": Scene(
        unclear="sent", since=SENDING, shows=("store.note(UnclearReply)", "sender.find")
    ),
    "the sender fails without an answer": Scene(
        unclear="not sent", since=SENDING, shows=("store.note(UnclearReply)", "sender.find")
    ),
    "the sender is unavailable at first": Scene(
        refusals=1, since=PREPARED, shows=("store.release", "queue.nack")
    ),
    "the customer is still typing": Scene(
        third_at=9.5, until="queue.ack", shows=("queue.push", "store.release")
    ),
    "a message arrives before the window is closed": Scene(
        late="store.processed",
        since="store.processed",
        until="queue.ack",
        shows=("store.window", "queue.push"),
    ),
    "a message arrives while the reply is written": Scene(
        late="writer.write", since="writer.write", until="queue.ack", shows=("store.window",)
    ),
}
DAILY_SCENES = {
    "the sender can be queried",
    "three equal parts",
    "the sender's answer is lost",
}
KILL_SCENES = [
    pytest.param(name, marks=() if name in DAILY_SCENES else pytest.mark.nightly)
    for name in SCENES
]
STALE_HOLDER_SCENES = [
    "the sender can be queried",
    "the sender cannot be queried",
    "the sender fails without an answer",
    "a message arrives before the window is closed",
]
IN_EVERY_TURN = {
    "queue.poll",
    "store.acquire",
    "store.staged",
    "store.processed",
    "store.close_window",
    "secrets.get",
    "writer.open_thread",
    "store.note(WritingReply)",
    "writer.write",
    "store.note(PreparedReply)",
    "store.note(SendingReply)",
    "sender.connect",
    "sender.send",
    "store.finish",
    "queue.ack",
}


class Matrix:
    """A place that is copied for each blow."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        self.folder, self.scene = folder, scene
        self.first = make_staged_place(folder / "staged", scene)
        self.calls = record_calls(self.copy("unharmed"), work)

    def copy(self, name: str) -> Place:
        """Return a copy of the place."""
        return copy_place(self.first, self.folder / name)

    def list_blows(self) -> Sequence[int]:
        """Return the numbers of calls after which to strike."""
        return self.scene.list_blows(self.calls)


@pytest.mark.parametrize("name", KILL_SCENES)
def test_a_batch_survives_a_kill_between_any_two_of_its_calls(
    name: str, fast_path: Path
) -> None:
    matrix = Matrix(fast_path, SCENES[name])
    for after in matrix.list_blows():
        with Trial(matrix.copy(f"{after}")) as trial:
            trial.kill(work, matrix.calls, after)
            trial.recover()
            trial.judge()
    assert set(matrix.calls) >= IN_EVERY_TURN.union(matrix.scene.shows)


@pytest.mark.nightly
@pytest.mark.parametrize("name", STALE_HOLDER_SCENES)
def test_a_batch_survives_a_stale_holder_that_resumes_between_any_two_calls(
    name: str, fast_path: Path
) -> None:
    """Its clock was frozen, too, so only the fence stops it (MS-07, MS-08, I-MS-3)."""
    matrix = Matrix(fast_path, SCENES[name])
    for after in matrix.list_blows():
        with Trial(matrix.copy(f"{after}")) as trial:
            stale = trial.freeze(work, matrix.calls, after)
            trial.recover()
            stale.thaw()
            trial.recover()
            trial.judge()


FROZEN_AFTER = ["store.note(WritingReply)", "sender.send"]


@pytest.mark.nightly
@pytest.mark.parametrize("frozen_after", FROZEN_AFTER)
def test_a_stale_holder_that_resumes_while_another_worker_answers_is_refused(
    frozen_after: str, fast_path: Path
) -> None:
    """The status alone does not show which worker has the lock (MS-07, MS-08, I-MS-3).

    The other worker is stopped at each of its calls, and the stale holder resumes meanwhile.
    """
    matrix = Matrix(fast_path, SCENES["the sender can be queried"])
    after = matrix.calls.index(frozen_after) + 1
    with Trial(matrix.copy("dead")) as dead:
        dead.kill(work, matrix.calls, after)
    again = record_next_calls(dead.place)
    for then in range(find_takeover(again), len(again) + 1):
        with Trial(matrix.copy(f"{then}")) as trial:
            stale = trial.freeze(work, matrix.calls, after)
            other = trial.freeze(work, again, then, AWAY_SECONDS)
            stale.thaw()
            other.thaw()
            trial.recover()
            trial.judge()


# -- the worker that takes over is struck as well

TWICE = SCENES if SECONDS else ["the sender can be queried"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", TWICE)
def test_a_batch_survives_a_kill_of_the_worker_that_takes_over_too(
    name: str, fast_path: Path
) -> None:
    """Try all pairs of blows while the reply is sent and finished.

    If HOLDFAST_CHAOS_SECONDS is set, try all pairs of all scenes.
    """
    scene = SCENES[name] if SECONDS else replace(SCENES[name], since=SENDING)
    matrix = Matrix(fast_path, scene)
    for after in matrix.list_blows():
        with Trial(matrix.copy(f"{after}")) as dead:
            dead.kill(work, matrix.calls, after)
        again = record_next_calls(dead.place)
        for then in range(0 if SECONDS else find_takeover(again), len(again) + 1):
            with dead.copy(fast_path / f"{after}-{then}") as trial:
                trial.kill(work, again, then, AWAY_SECONDS)
                trial.recover()
                trial.judge()


def record_next_calls(place: Place) -> list[str]:
    """Return the calls of the next worker if nothing strikes it, recorded at a copy."""
    copy = copy_place(place, place.folder.with_name(f"{place.folder.name}-unharmed"))
    return record_calls(copy, work, AWAY_SECONDS)


def find_takeover(calls: list[str]) -> int:
    """Return the call that takes over; before it the dead worker's lock is still held."""
    polls = [number for number, name in enumerate(calls) if name == "queue.poll"]
    return polls[-1] if polls else 0


# -- staging


@pytest.mark.nightly
def test_no_message_is_lost_when_its_stager_dies_and_the_webhook_comes_again(
    fast_path: Path,
) -> None:
    """This needs no sweeper (MS-14)."""
    calls = record_calls(make_place(fast_path / "unharmed"), stage_three)
    assert calls.count("store.stage") == 3
    for after in range(len(calls) + 1):
        with Trial(make_place(fast_path / f"{after}")) as trial:
            trial.kill(stage_three, calls, after)
            trial.deliver_again(list_missing(trial.place))
            trial.recover()
            trial.judge()


@pytest.mark.nightly
def test_a_stored_message_is_answered_when_its_stager_dies_and_no_webhook_is_repeated(
    fast_path: Path,
) -> None:
    """The sweeper triggers it at the latest (MS-14, I-MS-5)."""
    calls = record_calls(make_place(fast_path / "unharmed"), stage_three)
    for after in range(len(calls) + 1):
        with Trial(make_place(fast_path / f"{after}")) as trial:
            trial.kill(stage_three, calls, after)
            trial.recover(sweep=True)
            trial.judge()


@pytest.mark.nightly
def test_a_stager_that_wakes_when_all_is_answered_does_no_harm(fast_path: Path) -> None:
    calls = record_calls(make_place(fast_path / "unharmed"), stage_three)
    for after in range(len(calls) + 1):
        with Trial(make_place(fast_path / f"{after}")) as trial:
            stale = trial.freeze(stage_three, calls, after)
            trial.recover(sweep=True)
            stale.thaw()
            trial.recover()
            trial.judge()
