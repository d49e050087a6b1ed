"""Tests of the rows in memory, on which the stores of tests are built."""

from contextlib import suppress

import pytest

from holdfast.testing.memory_rows import MemoryRows


@pytest.fixture
def memory() -> MemoryRows:
    return MemoryRows({"people": ("name",)}, {"people": "number"})


def test_a_transaction_that_raises_changes_nothing(memory: MemoryRows) -> None:
    with memory.begin_write() as rows:
        rows.insert("people", [{"name": "ada", "age": 36}, {"name": "alan", "age": 41}])
        before = rows.select("people", {})
    with suppress(RuntimeError), memory.begin_write() as rows:
        rows.update("people", [({"age": 37}, {"name": "ada"}), ({"age": 38}, {"name": "ada"})])
        rows.delete("people", [{"name": "alan"}])
        rows.insert("people", [{"name": "grace", "age": 85}])
        rows.replace("people", [{"name": "grace", "age": 86}])
        raise RuntimeError
    with memory.begin_read() as rows:
        assert rows.select("people", {}, order_by="name") == before


def test_a_stored_row_does_not_change_with_the_caller_s_values(memory: MemoryRows) -> None:
    notes = ["first"]
    with memory.begin_write() as rows:
        assert rows.insert("people", [{"name": "ada", "notes": notes}]) == 1
        assert rows.insert("people", [{"name": "ada", "notes": []}]) == 0
        notes.append("second")
        assert rows.select("people", {}) == [{"name": "ada", "notes": ["first"], "number": 1}]


def test_rows_are_found_by_comparisons_in_order(memory: MemoryRows) -> None:
    with memory.begin_write() as rows:
        rows.insert("people", [{"name": name, "age": age} for age, name in enumerate("cab")])
        older = rows.select("people", {"age >": 0}, order_by="name", descending=True, limit=1)
        younger = rows.select("people", {"age <": 2}, order_by="name")
    assert [row["name"] for row in older] == ["b"]
    assert [row["name"] for row in younger] == ["a", "c"]
