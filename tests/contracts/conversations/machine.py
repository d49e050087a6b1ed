"""Random sequences of calls, to two openings of one store, compared with the model.

Each call is made to the store and to the model. Both must return the same, raise the same,
and store the same.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from contracts.conversations.model import ConversationModel
from contracts.conversations.support import (
    LATER,
    NOW,
    OUTBOXES,
    OpenStore,
    make_fragment,
    make_turn,
    make_unreadable,
)
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Staged,
    Status,
    UnreadableFragment,
    Window,
    make_parked_id,
)
from holdfast.chat.outbox import Outbox
from holdfast.chat.ports import ConversationStore
from holdfast.errors import HoldfastError
from holdfast.testing import ManualClock

SLOTS = st.integers(0, 1)  # two conversations
OPENINGS = st.integers(0, 1)  # the store is opened twice
SIDS = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
SID = st.integers(0, 3)
GRANTS = st.integers(0, 2)  # the latest grant, or one of the two before it
STATUSES = st.sampled_from(["", Status.REPLY_SENT, Status.ERROR, Status.WITH_PERSON, "vip"])
SECONDS = st.sampled_from([1.0, 30.0, 60.0])

_numbers = count()


class ConversationMachine(RuleBasedStateMachine):
    """The state machine that calls a store and the model alike."""

    def __init__(self, open_store: OpenStore, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.stores = [open_store(clock) for _ in range(2)]
        self.model = ConversationModel(clock)
        number = next(_numbers)  # all examples may share one store
        self.prefix = f"{number}-"
        self.keys = [ConversationKey(f"+49157{number:05}", f"{number}-{n}") for n in range(2)]
        self.grants: list[list[LockGrant]] = [[], []]
        self.now = NOW
        self.calls = 0
        self.touched = {0, 1}  # the conversations of the last step

    def key(self, slot: int) -> ConversationKey:
        """Return the key of a conversation, and compare it after this step."""
        self.touched.add(slot)
        return self.keys[slot]

    def teardown(self) -> None:
        """Compare everything once more, and close the stores."""
        for store in self.stores:
            self.touched = {0, 1}
            assert self._read_all(store) == self._read_all(self.model)
            store.close()

    def both(self, opening: int, call: Callable[[ConversationStore], Any]) -> Any:
        """Make the call to the model and the store, and compare the results."""
        expected = _get_result(self.model, call)
        assert _get_result(self.stores[opening], call) == expected
        return expected

    # -- sequences that reach the end of a turn

    @initialize(slot=SLOTS, status=STATUSES)
    def begin(self, slot: int, status: str) -> None:
        """Start with a conversation that has staged messages and a lock."""
        self.create(slot, 0, status)
        self.stage(slot, 0, [0, 1])
        self.acquire(slot, 0)

    @rule(slot=SLOTS, opening=OPENINGS)
    def answer_all(self, slot: int, opening: int) -> None:
        """Answer everything that is staged."""
        self.acquire(slot, opening)
        rows = self.model.staged(self.key(slot).conversation_id)
        if rows and self.grants[slot]:
            self._finish(opening, self.grants[slot][-1], [row.message_sid for row in rows])

    # -- every method

    @rule(slot=SLOTS, opening=OPENINGS, status=STATUSES)
    def create(self, slot: int, opening: int, status: str) -> None:
        """Create a conversation."""
        made = Conversation(self.key(slot), {"a": [1]}, {"b": None}, status, created_at=NOW)
        self.both(opening, lambda store: store.create(made))

    @rule(slot=SLOTS, opening=OPENINGS, sids=SIDS)
    def stage(self, slot: int, opening: int, sids: list[int]) -> None:
        """Stage messages."""
        for sid in sids:
            row = make_fragment(f"m{sid}", self.key(slot), staged_at=self.now)
            self.both(opening, lambda store, row=row: store.stage(row, expires_at=LATER))

    @rule(slot=SLOTS, opening=OPENINGS, sids=SIDS)
    def drop(self, slot: int, opening: int, sids: list[int]) -> None:
        """Remove staged rows."""
        ids = [f"m{sid}" for sid in sids]
        self.both(opening, lambda store: store.drop_staged(self.key(slot).conversation_id, ids))

    @rule(slot=SLOTS, opening=OPENINGS, sid=SID, trigger=SID, seconds=SECONDS)
    def open_window(
        self, slot: int, opening: int, sid: int, trigger: int, seconds: float
    ) -> None:
        """Open a window."""
        wanted = self._window(slot, sid, trigger, seconds)
        self.both(
            opening,
            lambda store: store.open_window(
                wanted, now=self.now, untriggered_before=self.now - seconds
            ),
        )

    @rule(slot=SLOTS, opening=OPENINGS, sid=SID, trigger=SID)
    def mark_triggered(self, slot: int, opening: int, sid: int, trigger: int) -> None:
        """Mark a window as triggered."""
        wanted = self._window(slot, sid, trigger, 0.0)
        self.both(opening, lambda store: store.mark_triggered(wanted))

    @rule(slot=SLOTS, opening=OPENINGS, trigger=SID)
    def close_window(self, slot: int, opening: int, trigger: int) -> None:
        """Close a window."""
        conversation_id = self.key(slot).conversation_id
        self.both(opening, lambda store: store.close_window(conversation_id, f"w{trigger}"))

    def _window(self, slot: int, sid: int, trigger: int, seconds: float) -> Window:
        conversation_id = self.key(slot).conversation_id
        return Window(
            conversation_id, f"w{trigger}", f"m{sid}", self.now, self.now + 2 * seconds
        )

    @rule(slot=SLOTS, opening=OPENINGS)
    def acquire(self, slot: int, opening: int) -> None:
        """Acquire the lock."""
        self.calls += 1
        result = self.both(
            opening,
            lambda store: store.acquire(
                self.key(slot),
                owner=f"owner {self.calls}",
                trigger_id=f"t{self.calls}",
                now=self.now,
                expires_at=self.now + 60.0,
            ),
        )
        if isinstance(result, LockAcquired):
            self.grants[slot].append(result.grant)

    def _grant(self, slot: int, which: int) -> LockGrant:
        self.touched.add(slot)
        grants = self.grants[slot][-1 - which :]
        return grants[0] if grants else LockGrant(self.key(slot), "unknown owner", "none", 1)

    @rule(slot=SLOTS, opening=OPENINGS, which=GRANTS)
    def renew(self, slot: int, opening: int, which: int) -> None:
        """Renew a current or stale grant."""
        grant, until = self._grant(slot, which), self.now + 60.0
        self.both(opening, lambda store: store.renew(grant, now=self.now, expires_at=until))

    @rule(slot=SLOTS, opening=OPENINGS, which=GRANTS, status=st.none() | STATUSES)
    def release(self, slot: int, opening: int, which: int, status: str | None) -> None:
        """Release a current or stale grant."""
        grant = self._grant(slot, which)
        self.both(opening, lambda store: store.release(grant, status))

    @rule(slot=SLOTS, opening=OPENINGS, which=GRANTS, outbox=st.sampled_from(OUTBOXES))
    def note(self, slot: int, opening: int, which: int, outbox: Outbox) -> None:
        """Note the state of a reply."""
        grant = self._grant(slot, which)
        self.both(opening, lambda store: store.note(grant, outbox, f"thread {self.calls}"))

    @rule(slot=SLOTS, opening=OPENINGS, which=GRANTS, sids=SIDS)
    def finish(self, slot: int, opening: int, which: int, sids: list[int]) -> None:
        """Finish a turn."""
        self._finish(opening, self._grant(slot, which), [f"m{sid}" for sid in sids])

    @rule(slot=SLOTS, opening=OPENINGS, which=GRANTS, parked=st.integers(0, 3))
    def finish_parked(self, slot: int, opening: int, which: int, parked: int) -> None:
        """Finish the turn of a parked batch."""
        parked_id = self._any_parked(parked)
        self._finish(opening, self._grant(slot, which), ["m0"], parked_id)

    def _finish(
        self, opening: int, grant: LockGrant, sids: list[str], parked_id: str | None = None
    ) -> None:
        self.calls += 1
        done = make_turn(*sids, at=self.now, reply=f"r{self.calls}")
        self.both(
            opening,
            lambda store: store.finish(
                grant, done, now=self.now, remember_until=LATER, parked_id=parked_id
            ),
        )

    @rule(
        slot=SLOTS, opening=OPENINGS, which=st.none() | GRANTS, sids=SIDS, broken=st.booleans()
    )
    def park(
        self, slot: int, opening: int, which: int | None, sids: list[int], broken: bool
    ) -> None:
        """Park a batch, with or without a grant."""
        grant = None if which is None else self._grant(slot, which)
        rows: list[Staged] = [make_fragment(f"m{sid}", self.key(slot)) for sid in sids]
        if broken:
            rows.append(make_unreadable(key=self.key(slot)))
        batch = ParkedBatch(
            self._parked_id(slot, rows), self.key(slot), "why", self.now, tuple(rows)
        )
        self.both(opening, lambda store: store.park(grant, batch, remember_until=LATER))

    def _parked_id(self, slot: int, rows: list[Staged]) -> str:
        return make_parked_id(self.key(slot), (row.message_sid for row in rows))

    @rule(opening=OPENINGS, which=st.integers(0, 3), back_to_stage=st.booleans())
    def unpark(self, opening: int, which: int, back_to_stage: bool) -> None:
        """Take a batch out of the parked ones."""
        wanted = self._any_parked(which)
        self.both(
            opening,
            lambda store: store.unpark(
                wanted, back_to_stage=back_to_stage, now=self.now, expires_at=LATER
            ),
        )

    def _any_parked(self, which: int) -> str:
        """Return a parked id of either conversation, or sometimes an unknown one."""
        self.touched |= {0, 1}
        ids = sorted(batch.parked_id for batch in self.model.parked())
        return ids[which] if which < len(ids) else f"{self.prefix}none"

    @rule(slot=SLOTS, opening=OPENINGS, status=STATUSES)
    def set_status(self, slot: int, opening: int, status: str) -> None:
        """Set a status as an operator."""
        self.both(opening, lambda store: store.set_status(self.key(slot), status))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds
        self.clock.advance(seconds)  # the clock of the stores, for `updated_at`

    # -- what must hold after each step

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        """Compare the conversations of the step; reading both would cost more than the step."""
        assert self._read_all(self.stores[self.calls % 2]) == self._read_all(self.model)
        self.touched.clear()

    def _read_all(self, store: ConversationStore) -> object:
        return [
            (
                store.get(key),
                {
                    row.message_sid: _to_comparable(row)
                    for row in store.staged(key.conversation_id)
                },
                store.window(key.conversation_id),
                store.history(key, limit=100),
                store.processed(key, ["m0", "m1", "m2", "m3", "broken"]),
            )
            for key in (self.keys[slot] for slot in sorted(self.touched))
        ]

    @invariant()
    def listings_agree(self) -> None:
        """Compare the listings of store and model."""
        assert self._read_listings(self.stores[1]) == self._read_listings(self.model)

    def _read_listings(self, store: ConversationStore) -> object:
        parked = {batch.parked_id: batch for batch in store.parked() if batch.key in self.keys}
        waiting = {row.key: row for row in store.waiting() if row.key in self.keys}
        return parked, waiting


def _get_result(store: ConversationStore, call: Callable[[ConversationStore], Any]) -> object:
    """Return the result of the call, or the type of its error."""
    try:
        return call(store)
    except HoldfastError as error:
        return type(error)


def _to_comparable(row: Staged) -> object:
    """Return the row, or only the type of an unreadable one.

    Each store describes the problem in its own words.
    """
    return UnreadableFragment if isinstance(row, UnreadableFragment) else row


def run_machine(open_store: OpenStore, clock: ManualClock, examples: int, steps: int) -> None:
    """Compare a store with the model over random sequences of calls."""
    run_state_machine_as_test(
        lambda: ConversationMachine(open_store, clock),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
