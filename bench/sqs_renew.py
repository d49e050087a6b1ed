"""sqs_renew: measure the CPU of a renewed lease, and of a thread for each message."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from threading import Thread, stack_size
from time import sleep
from typing import Any

from bench.figures import cpu_seconds
from bench.payload import BenchTask
from bench.session import Session, in_fresh_process
from bench.sqs_ground import Place, serving
from bench.sqs_players import HOLDFAST, fill
from bench.verdict import Bar, Result, ratio
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import get_lease
from holdfast.queues.sqs import SQSQueue

NAME = "sqs_renew"
TITLE = "SQS: CPU per renewed lease"
KEEPER = "Holdfast: one keeper thread"
THREADS = "boto3: a thread and a call for each message"
MESSAGES = 500  # also with --quick: with fewer, a call is made less often and costs more
VISIBILITY_SECONDS = 9
INTERVAL_SECONDS = VISIBILITY_SECONDS / 3


@dataclass(frozen=True, slots=True)
class Kept:
    """The figures of one measurement."""

    renewals: int
    seconds: float  # of CPU
    lost: int

    @property
    def milliseconds_each(self) -> float:
        """Return the CPU time of a renewal in milliseconds."""
        return self.seconds / self.renewals * 1000


Measured = Mapping[str, Sequence[Kept]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    seconds = session.size(4, 2) * INTERVAL_SECONDS
    measured: dict[str, list[Kept]] = defaultdict(list)
    with serving() as ground:
        for way in session.interleaved(TITLE, [KEEPER, THREADS], rounds=min(session.rounds, 3)):
            with ground.place(VISIBILITY_SECONDS) as place:
                in_fresh_process(fill, HOLDFAST.name, place, MESSAGES)
                measured[way].append(in_fresh_process(keep, way, place, MESSAGES, seconds))
    return _result(measured, MESSAGES)


def keep(way: str, place: Place, messages: int, seconds: float) -> Kept:
    """Renew leases and return the figures."""
    if way == KEEPER:
        return keep_with_keeper(place, messages, seconds)
    return keep_with_threads(place, messages, seconds)


def keep_with_keeper(place: Place, messages: int, seconds: float) -> Kept:
    """Renew with one keeper thread."""
    queue = SQSQueue(place.url, BenchTask, lease_seconds=VISIBILITY_SECONDS)
    with LeaseKeeper() as keeper:
        held: list[BenchTask] = []
        while len(held) < messages:
            for message in queue.poll():
                keeper.hold(get_lease(message))
                held.append(message)
            _wait_for_the_next(messages)
        return _watched(
            place, seconds, lambda: sum(not get_lease(message).live for message in held)
        )


def keep_with_threads(place: Place, messages: int, seconds: float) -> Kept:
    """Renew with a thread for each message, as handwritten code does, with small stacks."""
    client = place.client(max_pool_connections=50)
    lost: list[str] = []
    stack_size(256 * 1024)
    begun = 0
    while begun < messages:
        answer = client.receive_message(
            QueueUrl=place.url, VisibilityTimeout=VISIBILITY_SECONDS
        )
        for raw in answer.get("Messages", []):
            args = (client, place.url, raw["ReceiptHandle"], lost)
            Thread(target=_beat, args=args, daemon=True).start()
            begun += 1
        _wait_for_the_next(messages)
    return _watched(place, seconds, lambda: len(lost))


def _wait_for_the_next(messages: int) -> None:
    """Receive messages one after another over an interval, so that they are due in order."""
    sleep(INTERVAL_SECONDS * 0.9 / messages)


def _watched(place: Place, seconds: float, lost: Callable[[], int]) -> Kept:
    """Skip the first renewals, because they create the connections."""
    sleep(INTERVAL_SECONDS)
    renewed = place.figures().renewed
    used = cpu_seconds()
    sleep(seconds)
    used = cpu_seconds() - used
    return Kept(place.figures().renewed - renewed, used, lost())


def _beat(client: Any, url: str, handle: str, lost: list[str]) -> None:
    while True:
        sleep(INTERVAL_SECONDS)
        try:
            client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=VISIBILITY_SECONDS
            )
        except client.exceptions.ClientError:
            lost.append(handle)
            return


def _result(measured: Measured, messages: int) -> Result:
    costs = {way: [run.milliseconds_each for run in kept] for way, kept in measured.items()}
    lost = sum(run.lost for run in measured[KEEPER])
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "messages held", "renewals", "CPU per renewal", "lost"),
        rows=[
            [
                way,
                f"{messages:,}",
                f"{sum(run.renewals for run in kept):,}",
                f"{median(costs[way]):.3f} ms",
                f"{sum(run.lost for run in kept):,}",
            ]
            for way, kept in measured.items()
        ],
        bars=[
            Bar(
                "at least 15 × less CPU than a boto3 call for each message in threads",
                ratio(costs[THREADS], costs[KEEPER]),
                15.0,
                "×",
            ),
            Bar("no lease lost", lost, 0, "", at_least=False),
        ],
        notes=(
            f"Each message is renewed every {INTERVAL_SECONDS:g} s for "
            f"{VISIBILITY_SECONDS} s, and due by itself. CPU of the holding process alone, "
            "without its start. The keeper renews ten in a call; the threads share one boto3 "
            "client.",
        ),
    )
