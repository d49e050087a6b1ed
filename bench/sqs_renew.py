"""sqs_renew: the CPU a renewed lease costs, beside a thread for each message."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from threading import Event, Thread, stack_size
from time import sleep
from typing import Any

from bench.figures import cpu_seconds
from bench.payload import BenchTask
from bench.session import Session, in_fresh_process
from bench.sqs_ground import Place, serving
from bench.sqs_players import HOLDFAST, fill
from bench.verdict import Bar, Result, ratio
from holdfast.adapters.aws.sqs import SQSQueue
from holdfast.core.events import Event as HoldfastEvent
from holdfast.core.events import LeaseRenewed
from holdfast.core.keeper import LeaseKeeper
from holdfast.core.message import lease_of

NAME = "sqs_renew"
TITLE = "SQS: CPU per renewed lease"
KEEPER = "Holdfast: one keeper thread"
THREADS = "a thread and a call for each message"
VISIBILITY_SECONDS = 9
INTERVAL_SECONDS = VISIBILITY_SECONDS / 3


@dataclass(frozen=True, slots=True)
class Kept:
    renewals: int
    seconds: float  # of CPU
    lost: int

    @property
    def milliseconds_each(self) -> float:
        return self.seconds / self.renewals * 1000


Measured = Mapping[str, Sequence[Kept]]


def run(session: Session) -> Result:
    messages = session.size(200, 100)
    seconds = session.size(4, 2) * INTERVAL_SECONDS
    measured: dict[str, list[Kept]] = defaultdict(list)
    with serving() as ground:
        for way in session.interleaved(TITLE, [KEEPER, THREADS], rounds=min(session.rounds, 3)):
            with ground.place(VISIBILITY_SECONDS) as place:
                in_fresh_process(fill, HOLDFAST.name, place, messages)
                measured[way].append(in_fresh_process(keep, way, place, messages, seconds))
    return _result(measured, messages)


def keep(way: str, place: Place, messages: int, seconds: float) -> Kept:
    if way == KEEPER:
        return keep_with_keeper(place, messages, seconds)
    return keep_with_threads(place, messages, seconds)


def keep_with_keeper(place: Place, messages: int, seconds: float) -> Kept:
    renewed = 0

    def note(event: HoldfastEvent) -> None:
        nonlocal renewed
        renewed += isinstance(event, LeaseRenewed)

    queue = SQSQueue(place.url, BenchTask, lease_seconds=VISIBILITY_SECONDS)
    queue.events.subscribe(note)
    with LeaseKeeper(events=queue.events) as keeper:
        held = []
        while len(held) < messages:
            for message in queue.poll(10):
                keeper.hold(lease_of(message))
                held.append(message)
            sleep(INTERVAL_SECONDS * 0.9 * 10 / messages)  # claimed over the interval
        sleep(INTERVAL_SECONDS)
        began, used = renewed, cpu_seconds()
        sleep(seconds)
        kept = renewed - began, cpu_seconds() - used
    lost = sum(not lease_of(message).live for message in held)
    return Kept(*kept, lost)


def keep_with_threads(place: Place, messages: int, seconds: float) -> Kept:
    """What is written by hand around a long handler; small stacks, to be fair to it."""
    client, stop = place.client(max_pool_connections=50), Event()
    renewed: list[str] = []
    lost: list[str] = []
    stack_size(256 * 1024)
    threads: list[Thread] = []
    while len(threads) < messages:
        answer = client.receive_message(
            QueueUrl=place.url, MaxNumberOfMessages=10, VisibilityTimeout=VISIBILITY_SECONDS
        )
        for raw in answer.get("Messages", []):
            args = (client, place.url, raw["ReceiptHandle"], stop, renewed, lost)
            thread = Thread(target=_beat, args=args, daemon=True)
            thread.start()
            threads.append(thread)
        sleep(INTERVAL_SECONDS * 0.9 * 10 / messages)
    sleep(INTERVAL_SECONDS)
    began, used = len(renewed), cpu_seconds()
    sleep(seconds)
    kept = len(renewed) - began, cpu_seconds() - used
    stop.set()
    for thread in threads:
        thread.join()
    return Kept(*kept, len(lost))


def _beat(
    client: Any, url: str, handle: str, stop: Event, renewed: list[str], lost: list[str]
) -> None:
    while not stop.wait(INTERVAL_SECONDS):
        try:
            client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=VISIBILITY_SECONDS
            )
        except client.exceptions.ClientError:
            lost.append(handle)
            return
        renewed.append(handle)


def _result(measured: Measured, messages: int) -> Result:
    costs = {way: [one.milliseconds_each for one in kept] for way, kept in measured.items()}
    lost = sum(one.lost for one in measured[KEEPER])
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "messages held", "renewals", "CPU per renewal", "lost"),
        rows=[
            [
                way,
                f"{messages:,}",
                f"{sum(one.renewals for one in kept):,}",
                f"{median(costs[way]):.3f} ms",
                f"{sum(one.lost for one in kept):,}",
            ]
            for way, kept in measured.items()
        ],
        bars=[
            Bar(
                "at least 8 × less CPU than a thread for each message",
                ratio(costs[THREADS], costs[KEEPER]),
                8.0,
                "×",
            ),
            Bar("no lease lost", lost, 0, "", at_least=False),
        ],
        notes=(
            f"Each message is renewed every {INTERVAL_SECONDS:g} s for "
            f"{VISIBILITY_SECONDS} s, spread over the interval. CPU of the holding process "
            "alone, without its start. The threads share one client.",
        ),
    )
