"""How long a message that is newer than the code waits, without using up its attempts.

A standard queue's message waits as a new copy, which SQS counts from 0. In a FIFO queue a
copy would go to the end of its group, so the message waits where it is: it stays hidden and
is received again after each wait. SQS counts those receives, and they cannot be undone:

    receive 1 ─ 1 min ─ receive 2 ─ 2 min ─ receive 3 ─ 4 min ─ receive 4 ─ …

Each wait is twice as long as the one before. So a deployment of an hour costs six receives, and
afterwards the message is hidden for no longer than the deployment took. The queue's own
redrive policy counts those receives: a maxReceiveCount of 6 is enough for half an hour, one
of 10 for eight hours.

The newer code cannot see which receives were waits. But waits take time, so the time since
the first receive says how many there can have been. That many are not counted as attempts.
"""

from collections.abc import Mapping

FIRST_WAIT_SECONDS = 60
_MAX_WAIT_SECONDS = 6 * 3600  # SQS hides a message for twice as long at most
_MAX_DOUBLINGS = 16


def compute_wait_seconds(receives: int) -> int:
    """Return how long a message waits after so many receives."""
    doublings = min(receives - 1, _MAX_DOUBLINGS)
    return min(FIRST_WAIT_SECONDS << doublings, _MAX_WAIT_SECONDS)


def count_possible_waits(seconds: float) -> int:
    """Return how many waits there can have been in `seconds` since the first receive.

    Each is assumed to have taken half its time, because this process's clock may differ
    from that of SQS.
    """
    waits = 0
    while seconds >= (needed := compute_wait_seconds(waits + 1) / 2):
        seconds -= needed
        waits += 1
    return waits


def compute_first_receive_age(system: Mapping[str, str], now: float) -> float:
    """Return the seconds since SQS first delivered the message, or 0.0 if it is unknown."""
    first = system.get("ApproximateFirstReceiveTimestamp")
    return 0.0 if first is None else now - int(first) / 1000
