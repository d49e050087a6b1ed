"""The file queue against the model of `queue_machine`."""

from typing import Any

from hypothesis.stateful import rule

from support.files import audit
from support.files.queue_folder import Ground, get_key
from support.queue_machine import MAX_LEASE, QUICK, ExpectedTask, QueueMachine


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


class DedupeMachine(FileQueueMachine):
    dedupe = True


TestQueue = FileQueueMachine.TestCase
TestQueue.settings = QUICK
TestDedupe = DedupeMachine.TestCase
TestDedupe.settings = QUICK
