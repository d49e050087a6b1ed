"""The order in which pytest-xdist runs tests, so that no long test is the last to start."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Files with tests that take longest, because they wait for real leases or start many processes.
SLOW_FILES = frozenset(
    f"test_{name}.py"
    for name in (
        "chaos",
        "chat_schedules",
        "cli_extras",
        "cli_sqs",
        "conversations_dynamodb",
        "crash_matrix",
        "demo",
        "export_chaos",
        "handlers_page",
        "queue_machines",
        "rename_protocol",
        "sqlite_queue_faults",
        "sqs_soak",
        "products",
        "state_machine_moto",
        "user_types",
        "web_browser",
        "worker_broken_children",
        "worker_orphans",
        "worker_pool",
        "worker_process",
    )
)


def deal(items: Sequence[T], workers: int, is_slow: Callable[[T], bool]) -> list[T]:
    """Return the items in shares for `--dist worksteal`, each with its slow items first.

    It gives each worker one share of consecutive items, and moves items from the end of a share
    to a worker that has none left.
    """
    slow = [item for item in items if is_slow(item)]
    slow = [item for worker in range(workers) for item in slow[worker::workers]]
    fast = [item for item in items if not is_slow(item)]
    dealt: list[T] = []
    for left in range(workers, 0, -1):
        size = (len(slow) + len(fast)) // left
        first = min(-(-len(slow) // left), size)
        dealt += slow[:first] + fast[: size - first]
        del slow[:first], fast[: size - first]
    return dealt
