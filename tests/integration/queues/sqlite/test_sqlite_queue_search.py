"""A search of a SQLite file reads it in pages, beside workers that go on writing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.files.queue_folder import make_message
from support.sqlite.queue_file import Queue, QueueFile

MANY = 2_500  # messages, more than two pages


@pytest.fixture
def ground(tmp_path: Path) -> QueueFile:
    return QueueFile(tmp_path)


def find_numbers(queue: Queue) -> list[int]:
    views = queue.search(where={"kind": "wanted"}, limit=10**9)
    return [view.body["number"] for view in views if view.body]


def push_many(queue: Queue, numbers: range) -> None:
    queue.push_many(
        make_message(f"m{n}", kind="other" if n % 7 else "wanted", number=n) for n in numbers
    )


def test_a_search_goes_through_all_pages_in_the_order_of_the_pushes(ground: QueueFile) -> None:
    queue, other = ground.queue(), ground.queue(queue="other")
    for start in range(0, MANY, 500):
        push_many(queue, range(start, start + 500))
        push_many(other, range(500))  # the numbers of a queue are not consecutive
    assert find_numbers(queue) == list(range(0, MANY, 7))
    seen: list[int] = []
    assert list(queue.search(error="none", on_progress=seen.append)) == []
    assert (sum(seen), len(seen) > 2) == (MANY, True)


def test_a_search_that_stands_still_lets_the_log_be_truncated(ground: QueueFile) -> None:
    queue, worker = ground.queue(), ground.queue()
    push_many(queue, range(MANY))
    search = queue.search(where={"kind": "wanted"}, limit=10**9)
    next(search)
    worker.ack_many(worker.poll(100))
    with closing(sqlite3.connect(ground.path)) as connection:
        [is_busy, *_] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not is_busy
    assert len(list(search)) == len(range(0, MANY, 7)) - 1


def test_messages_that_move_during_a_search_are_found_once(ground: QueueFile) -> None:
    queue, worker = ground.queue(), ground.queue()
    push_many(queue, range(MANY))
    numbers = []
    for view in queue.search(where={"kind": "wanted"}, limit=10**9):
        assert view.body
        numbers.append(view.body["number"])
        for message in worker.poll(10):
            worker.nack(message, delay_seconds=0)
    assert numbers == list(range(0, MANY, 7))
