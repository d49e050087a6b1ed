"""The order in which pytest-xdist runs tests, so that no long test is the last to start."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Files with tests that take longest, because they wait for real leases or start many processes.
SLOW_FILES = frozenset(
    f"test_{name}.py"
    for name in (
        "chaos",
        "chat_ministack",
        "chat_schedules",
        "cli_app",
        "cli_chat",
        "cli_extras",
        "cli_sqs",
        "cli_work",
        "crash_matrix",
        "demo",
        "django_tasks",
        "docs",
        "export_chaos",
        "export_whole_service",
        "faulty_network",
        "keeper_threads",
        "products",
        "queue_machines",
        "sqs_heartbeat_threads",
        "sqs_soak",
        "sqs_worker",
        "watchdog_example",
        "watchdog_requirements",
        "web_browser",
        "worker_async",
        "worker_broken_children",
        "worker_cancel",
        "worker_doctor",
        "worker_errors",
        "worker_orphans",
        "worker_pool",
        "worker_prefetch",
        "worker_process",
        "worker_shutdown",
        "worker_thread",
        "worker_watchdog",
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
