"""The deadline heap: order, entries that move or die, its size, and when it wakes its loop."""

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.lease.renewal_schedule import NOT_SCHEDULED, DeadlineHeap


@dataclass(eq=False)
class Entry:
    """An entry with a key that a test can end."""

    key: str
    due_at: float = NOT_SCHEDULED
    live: bool = True


@dataclass
class Wakes:
    """Counts the calls of `wake`."""

    count: int = field(default=0)

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


@pytest.fixture
def heap(wakes: Wakes) -> DeadlineHeap[str, Entry]:
    return DeadlineHeap(wakes)


def add(heap: DeadlineHeap[str, Entry], key: str, due_at: float) -> Entry:
    """Add an entry to the heap, as a schedule does, and return it."""
    entry = heap._entries[key] = Entry(key)
    heap._put(entry, due_at)
    return entry


def take_keys(heap: DeadlineHeap[str, Entry], until: float = inf) -> list[str]:
    """Take all entries that are due by `until`, and return their keys."""
    keys = []
    while (entry := heap.take(until)) is not None:
        keys.append(entry.key)
    return keys


def test_entries_are_taken_in_the_order_of_their_times_and_equal_ones_in_that_of_the_puts(heap):
    for key, due_at in (("c", 3), ("a", 1), ("d", 3), ("b", 2)):
        add(heap, key, due_at)
    assert take_keys(heap, until=2) == ["a", "b"]
    assert take_keys(heap) == ["c", "d"]
    assert heap.await_next() == inf


def test_an_entry_that_was_moved_is_taken_once_and_at_its_last_time(heap):
    entry = add(heap, "a", 1)
    add(heap, "b", 5)
    heap._put(entry, 9)
    heap._put(entry, 7)
    assert take_keys(heap, until=5) == ["b"]
    assert heap.await_next() == 7
    assert take_keys(heap) == ["a"]


def test_a_taken_entry_is_scheduled_again_only_by_a_put(heap):
    entry = add(heap, "a", 1)
    assert heap.take(1) is entry
    assert heap.take(inf) is None
    heap._put(entry, 1)
    assert heap.take(1) is entry


def test_a_dead_entry_is_not_taken_and_is_forgotten(heap):
    dead = add(heap, "a", 1)
    add(heap, "b", 2)
    dead.live = False
    assert heap.await_next() == 2
    assert list(heap._entries) == ["b"]


def test_a_dead_entry_does_not_take_the_one_that_has_its_key_now(heap):
    dead = add(heap, "a", 1)
    dead.live = False
    add(heap, "a", 2)
    assert heap.await_next() == 2
    assert list(heap._entries) == ["a"]
    assert take_keys(heap) == ["a"]


def test_the_loop_is_woken_only_for_an_entry_that_is_due_sooner_than_it_expects(heap, wakes):
    add(heap, "first", 50)
    assert wakes.count == 0  # nothing waits yet
    assert heap.await_next() == 50
    add(heap, "later", 60)
    assert wakes.count == 0
    add(heap, "sooner", 40)
    assert wakes.count == 1
    add(heap, "not as soon", 45)  # the loop was woken already
    assert wakes.count == 1
    assert heap.await_next() == 40


def test_a_loop_that_has_nothing_to_do_is_woken_by_the_first_entry(heap, wakes):
    assert heap.await_next() == inf
    add(heap, "a", 1e9)
    assert wakes.count == 1


def test_the_size_follows_the_live_entries(heap):
    """As in a worker that holds and releases messages much faster than any is renewed."""
    kept = [add(heap, f"kept {number}", 1e6 + number) for number in range(10)]
    for number in range(20_000):
        add(heap, f"message {number}", number).live = False
        assert len(heap._items) <= 1025
        assert len(heap._entries) <= 1025 + len(kept)
    assert take_keys(heap) == [entry.key for entry in kept]


def test_an_entry_that_is_moved_often_does_not_make_the_heap_grow(heap):
    entry = add(heap, "a", 0)
    for due_at in range(1, 10_000):
        heap._put(entry, due_at)
        assert len(heap._items) <= 1025
    assert heap.await_next() == 9_999


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "end", "take"]), st.integers(0, 4), st.integers(0, 9))
    )
)
def test_any_sequence_of_steps_agrees_with_a_plain_dict(steps):
    heap: DeadlineHeap[str, Entry] = DeadlineHeap(lambda: None)
    model: dict[str, int] = {}
    for step, number, time in steps:
        key = str(number)
        if step == "put":
            entry = heap._entries.setdefault(key, Entry(key))
            heap._put(entry, time)
            model[key] = time
        elif step == "end" and key in model:
            heap._entries.pop(key).live = False
            del model[key]
        elif step == "take":
            first_at = min(model.values(), default=inf)
            taken = heap.take(time)
            assert (taken is None) == (first_at > time)
            if taken is not None:
                assert model.pop(taken.key) == first_at
        assert heap.await_next() == min(model.values(), default=inf)
