"""Any order of calls, from two openings of one store, against the model.

Each call is made to both. They must answer alike, raise alike, and leave the same behind.
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

from holdfast.conversations.model import (
    Conversation,
    ConversationKey,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Staged,
    Status,
    UnreadableFragment,
    Window,
    parked_id_of,
)
from holdfast.conversations.outbox import Outbox
from holdfast.conversations.ports import ConversationStore
from holdfast.core.errors import HoldfastError
from holdfast.testing import ManualClock, MemoryConversations
from holdfast.testing.contracts.conversations.support import (
    LATER,
    NOW,
    OUTBOXES,
    OpenStore,
    damaged,
    fragment,
    turn,
)

SLOTS = st.integers(0, 1)  # two conversations
WHO = st.integers(0, 1)  # two openings of the store
SIDS = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
SID = st.integers(0, 3)
GRANTS = st.integers(0, 2)  # the last one, or one of those before it
STATUSES = st.sampled_from(["", Status.REPLY_SENT, Status.ERROR, Status.WITH_PERSON, "vip"])
SECONDS = st.sampled_from([1.0, 30.0, 60.0])

_numbers = count()


class ConversationMachine(RuleBasedStateMachine):
    def __init__(self, open_store: OpenStore, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.stores = [open_store(clock) for _ in range(2)]
        self.model = MemoryConversations(clock=clock)
        number = next(_numbers)  # the store may be one for all examples
        self.prefix = f"{number}-"
        self.keys = [ConversationKey(f"+49157{number:05}", f"{number}-{n}") for n in range(2)]
        self.grants: list[list[LockGrant]] = [[], []]
        self.now = NOW
        self.calls = 0
        self.touched = {0, 1}  # conversations that the last step was about

    def key(self, slot: int) -> ConversationKey:
        self.touched.add(slot)
        return self.keys[slot]

    def teardown(self) -> None:
        for store in self.stores:
            self.touched = {0, 1}
            assert self._held_by(store) == self._held_by(self.model)
            store.close()

    def both(self, who: int, call: Callable[[ConversationStore], Any]) -> Any:
        expected = _said(self.model, call)
        assert _said(self.stores[who], call) == expected
        return expected

    # -- lives that lead somewhere

    @initialize(slot=SLOTS, status=STATUSES)
    def begin(self, slot: int, status: str) -> None:
        self.create(slot, 0, status)
        self.stage(slot, 0, [0, 1])
        self.acquire(slot, 0)

    @rule(slot=SLOTS, who=WHO)
    def answer_all(self, slot: int, who: int) -> None:
        self.acquire(slot, who)
        rows = self.model.staged(self.key(slot).conversation_id)
        if rows and self.grants[slot]:
            self._finish(who, self.grants[slot][-1], [row.message_sid for row in rows])

    # -- every call there is

    @rule(slot=SLOTS, who=WHO, status=STATUSES)
    def create(self, slot: int, who: int, status: str) -> None:
        made = Conversation(self.key(slot), {"a": [1]}, {"b": None}, status, created_at=NOW)
        self.both(who, lambda store: store.create(made))

    @rule(slot=SLOTS, who=WHO, sids=SIDS)
    def stage(self, slot: int, who: int, sids: list[int]) -> None:
        for sid in sids:
            one = fragment(f"m{sid}", self.key(slot), staged_at=self.now)
            self.both(who, lambda store, one=one: store.stage(one, expires_at=LATER))

    @rule(slot=SLOTS, who=WHO, sids=SIDS)
    def drop(self, slot: int, who: int, sids: list[int]) -> None:
        ids = [f"m{sid}" for sid in sids]
        self.both(who, lambda store: store.drop_staged(self.key(slot).conversation_id, ids))

    @rule(slot=SLOTS, who=WHO, sid=SID, trigger=SID, seconds=SECONDS)
    def open_window(self, slot: int, who: int, sid: int, trigger: int, seconds: float) -> None:
        wanted = self._window(slot, sid, trigger, seconds)
        self.both(
            who,
            lambda store: store.open_window(
                wanted, now=self.now, untriggered_before=self.now - seconds
            ),
        )

    @rule(slot=SLOTS, who=WHO, sid=SID, trigger=SID)
    def mark_triggered(self, slot: int, who: int, sid: int, trigger: int) -> None:
        wanted = self._window(slot, sid, trigger, 0.0)
        self.both(who, lambda store: store.mark_triggered(wanted))

    @rule(slot=SLOTS, who=WHO, trigger=SID)
    def close_window(self, slot: int, who: int, trigger: int) -> None:
        conversation_id = self.key(slot).conversation_id
        self.both(who, lambda store: store.close_window(conversation_id, f"w{trigger}"))

    def _window(self, slot: int, sid: int, trigger: int, seconds: float) -> Window:
        conversation_id = self.key(slot).conversation_id
        return Window(
            conversation_id, f"w{trigger}", f"m{sid}", self.now, self.now + 2 * seconds
        )

    @rule(slot=SLOTS, who=WHO)
    def acquire(self, slot: int, who: int) -> None:
        self.calls += 1
        said = self.both(
            who,
            lambda store: store.acquire(
                self.key(slot),
                owner=f"owner {self.calls}",
                trigger_id=f"t{self.calls}",
                now=self.now,
                expires_at=self.now + 60.0,
            ),
        )
        if isinstance(said, LockAcquired):
            self.grants[slot].append(said.grant)

    def _grant(self, slot: int, which: int) -> LockGrant:
        self.touched.add(slot)
        grants = self.grants[slot][-1 - which :]
        return grants[0] if grants else LockGrant(self.key(slot), "nobody", "none", 1)

    @rule(slot=SLOTS, who=WHO, which=GRANTS)
    def renew(self, slot: int, who: int, which: int) -> None:
        grant, until = self._grant(slot, which), self.now + 60.0
        self.both(who, lambda store: store.renew(grant, now=self.now, expires_at=until))

    @rule(slot=SLOTS, who=WHO, which=GRANTS, status=STATUSES)
    def release(self, slot: int, who: int, which: int, status: str) -> None:
        grant = self._grant(slot, which)
        self.both(who, lambda store: store.release(grant, status))

    @rule(slot=SLOTS, who=WHO, which=GRANTS, outbox=st.sampled_from(OUTBOXES))
    def note(self, slot: int, who: int, which: int, outbox: Outbox) -> None:
        grant = self._grant(slot, which)
        self.both(who, lambda store: store.note(grant, outbox, f"thread {self.calls}"))

    @rule(slot=SLOTS, who=WHO, which=GRANTS, sids=SIDS)
    def finish(self, slot: int, who: int, which: int, sids: list[int]) -> None:
        self._finish(who, self._grant(slot, which), [f"m{sid}" for sid in sids])

    @rule(slot=SLOTS, who=WHO, which=GRANTS, parked=st.integers(0, 3))
    def finish_parked(self, slot: int, who: int, which: int, parked: int) -> None:
        parked_id = self._any_parked(parked)
        self._finish(who, self._grant(slot, which), ["m0"], parked_id)

    def _finish(
        self, who: int, grant: LockGrant, sids: list[str], parked_id: str | None = None
    ) -> None:
        self.calls += 1
        done = turn(*sids, at=self.now, reply=f"r{self.calls}")
        self.both(
            who,
            lambda store: store.finish(
                grant, done, now=self.now, remember_until=LATER, parked_id=parked_id
            ),
        )

    @rule(slot=SLOTS, who=WHO, which=st.none() | GRANTS, sids=SIDS, broken=st.booleans())
    def park(
        self, slot: int, who: int, which: int | None, sids: list[int], broken: bool
    ) -> None:
        grant = None if which is None else self._grant(slot, which)
        rows: list[Staged] = [fragment(f"m{sid}", self.key(slot)) for sid in sids]
        if broken:
            rows.append(damaged(key=self.key(slot)))
        one = ParkedBatch(
            self._parked_id(slot, rows), self.key(slot), "why", self.now, tuple(rows)
        )
        self.both(who, lambda store: store.park(grant, one, remember_until=LATER))

    def _parked_id(self, slot: int, rows: list[Staged]) -> str:
        return parked_id_of(self.key(slot), (row.message_sid for row in rows))

    @rule(who=WHO, which=st.integers(0, 3), back_to_stage=st.booleans())
    def unpark(self, who: int, which: int, back_to_stage: bool) -> None:
        wanted = self._any_parked(which)
        self.both(
            who,
            lambda store: store.unpark(
                wanted, back_to_stage=back_to_stage, now=self.now, expires_at=LATER
            ),
        )

    def _any_parked(self, which: int) -> str:
        """Or none, now and then. It may be of either conversation."""
        self.touched |= {0, 1}
        ids = sorted(one.parked_id for one in self.model.parked())
        return ids[which] if which < len(ids) else f"{self.prefix}none"

    @rule(slot=SLOTS, who=WHO, status=STATUSES)
    def set_status(self, slot: int, who: int, status: str) -> None:
        self.both(who, lambda store: store.set_status(self.key(slot), status))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.clock.advance(seconds)  # the stores' own, for `updated_at`

    # -- what must hold after each of them

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        """Of the conversations it was about: to read both costs more than the step."""
        assert self._held_by(self.stores[self.calls % 2]) == self._held_by(self.model)
        self.touched.clear()

    def _held_by(self, store: ConversationStore) -> object:
        return [
            (
                store.get(key),
                {row.message_sid: _row(row) for row in store.staged(key.conversation_id)},
                store.window(key.conversation_id),
                store.history(key, limit=100),
                store.processed(key, ["m0", "m1", "m2", "m3", "broken"]),
            )
            for key in (self.keys[slot] for slot in sorted(self.touched))
        ]

    @invariant()
    def listings_agree(self) -> None:
        assert self._listed(self.stores[1]) == self._listed(self.model)

    def _listed(self, store: ConversationStore) -> object:
        parked = {one.parked_id: one for one in store.parked() if one.key in self.keys}
        waiting = {one.key: one for one in store.waiting() if one.key in self.keys}
        return parked, waiting


def _said(store: ConversationStore, call: Callable[[ConversationStore], Any]) -> object:
    """What was answered, or the kind of refusal."""
    try:
        return call(store)
    except HoldfastError as error:
        return type(error)


def _row(row: Staged) -> object:
    """A row nobody can read is told by its kind: why is said in the store's own words."""
    return UnreadableFragment if isinstance(row, UnreadableFragment) else row


def run_machine(open_store: OpenStore, clock: ManualClock, examples: int, steps: int) -> None:
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
