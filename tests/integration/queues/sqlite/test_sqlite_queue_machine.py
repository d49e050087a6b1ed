"""The SQLite queue against the model of `queue_machine`: three handles on one file."""

import sqlite3
from contextlib import closing
from typing import Any

from holdfast.queue.message import get_lease
from support.queue_machine import QUICK, QueueMachine
from support.sqlite.queue_file import QueueFile, find_faults

STATES = ("pending", "leased", "completed", "failed")


class SQLiteQueueMachine(QueueMachine):
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


class DedupeMachine(SQLiteQueueMachine):
    dedupe = True


TestQueue = SQLiteQueueMachine.TestCase
TestQueue.settings = QUICK
TestDedupe = DedupeMachine.TestCase
TestDedupe.settings = QUICK
