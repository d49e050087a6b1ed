"""The queues of files and of SQLite against the model of `queue_machine`."""

import sqlite3
from contextlib import closing
from typing import Any

from hypothesis.stateful import rule
from queue_machine import MAX_LEASE, QUICK, ExpectedTask, QueueMachine

from holdfast.queue.message import get_lease
from support.files import audit
from support.files.queue_folder import Ground, get_key
from support.sqlite.queue_file import QueueFile, find_faults

STATES = ("pending", "leased", "completed", "failed")


class FileQueueMachine(QueueMachine):
    cancel_fences = 2

    def make_ground(self, **options: Any) -> Ground:
        return Ground(self.root, **options)

    def list_states(self) -> dict[str, str]:
        return {t.key: state for state, t, _ in audit.list_tasks(self.ground.folder)}

    def get_key(self, message: Any) -> str:
        return get_key(message)

    def now(self) -> float:
        return self.clock.time()

    def find_faults(self) -> Any:
        return audit.find_faults(self.ground.folder)

    def check_late(self, worker: int) -> None:
        late = [t for t in self.expected.values() if self.is_late(t)]
        assert not [t for t in late if t.offset == self.offsets[worker]]
        if late:  # leases of holders that started before the clock was set are watched
            self.clock.advance(MAX_LEASE * 1.001 + 0.001)
            self.poll(worker, 99)
            super().check_late(worker)

    def count_held_seconds(self, expected: ExpectedTask) -> float:
        """Return the rest of a lease that began when the task was cancelled."""
        assert expected.cancelled_at is not None
        lease = expected.lease_seconds
        return max(0.0, min(lease, expected.cancelled_at + lease - self.now()))

    @rule()
    def sweep(self) -> None:
        self.person.operator.sweep()


class SQLiteQueueMachine(QueueMachine):
    """Three handles on one file."""

    lease_slack_seconds = 0.001  # it is counted in whole milliseconds

    def make_ground(self, **options: Any) -> QueueFile:
        return QueueFile(self.root, **options)

    def list_states(self) -> dict[str, str]:
        with closing(sqlite3.connect(self.ground.path)) as connection:
            rows = connection.execute("SELECT message_no, state FROM messages WHERE state < 4")
            return {str(number): STATES[state] for number, state in rows}

    def get_key(self, message: Any) -> str:
        return str(get_lease(message).handle)

    def now(self) -> float:
        return self.clock.monotonic()  # a step of the wall clock changes nothing

    def find_faults(self) -> Any:
        return find_faults(self.ground.path)

    def teardown(self) -> None:
        for queue in (*self.workers, self.person):
            queue.close()
        super().teardown()


class FileDedupeMachine(FileQueueMachine):
    dedupe = True


class SQLiteDedupeMachine(SQLiteQueueMachine):
    dedupe = True


def make_test_case(machine: type[QueueMachine]) -> Any:
    test_case = machine.TestCase
    test_case.settings = QUICK
    return test_case


TestFileQueue = make_test_case(FileQueueMachine)
TestFileDedupe = make_test_case(FileDedupeMachine)
TestSQLiteQueue = make_test_case(SQLiteQueueMachine)
TestSQLiteDedupe = make_test_case(SQLiteDedupeMachine)
