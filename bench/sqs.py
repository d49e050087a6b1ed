"""sqs: drain an SQS queue with an empty handler, and count the calls."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median

from bench.session import Session, in_fresh_process
from bench.sqs_ground import CONCURRENCY, Ground, serving, wait_until_drained, working
from bench.sqs_players import BARE, HOLDFAST, PEERS, Job, Player, fill, work
from bench.sqs_server import Figures
from bench.verdict import Bar, Chart, Result, ratio, spread

NAME = "sqs"
TITLE = "SQS: drained with an empty handler"
VISIBILITY_SECONDS = 60
WAIT_TIMEOUT_SECONDS = 60.0
PACKAGES = ("boto3", "ministack", "celery", "kombu", "dramatiq-sqs", "taskiq-aio-sqs")
PLAYERS = (BARE, HOLDFAST, *PEERS)


@dataclass(frozen=True, slots=True)
class Drain:
    """The figures of one drained queue."""

    per_second: float
    sends: float  # calls per message, as are the next three
    receives: float
    deletes: float
    others: float
    twice: int
    busy: float  # the server, in cores

    @property
    def calls(self) -> float:
        """Return the calls per message."""
        return self.sends + self.receives + self.deletes + self.others


Measured = Mapping[Player, Sequence[Drain]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    count = session.size(2_000, 500)
    measured: dict[Player, list[Drain]] = defaultdict(list)
    with serving() as ground:
        for player in session.interleaved(TITLE, PLAYERS):
            measured[player].append(_drain(ground, player, count))
    return _result(measured, count)


def _drain(ground: Ground, player: Player, count: int) -> Drain:
    with ground.place(VISIBILITY_SECONDS) as place:
        in_fresh_process(fill, player.name, place, count)
        place.await_sent(count)
        with working(work, player.name, place, Job()):
            return _summed_up(wait_until_drained(place, count, WAIT_TIMEOUT_SECONDS))


def _summed_up(figures: Figures) -> Drain:
    assert figures.deleted, "nothing was deleted: did the worker start?"
    sends = _calls(figures, "SendMessage")
    receives = _calls(figures, "ReceiveMessage")
    deletes = _calls(figures, "DeleteMessage")
    others = sum(figures.calls.values()) - sends - receives - deletes
    return Drain(
        per_second=figures.deleted / figures.seconds,
        sends=sends / figures.sent,
        receives=receives / figures.deleted,
        deletes=deletes / figures.deleted,
        others=others / figures.deleted,
        twice=figures.delivered - figures.deleted,
        busy=figures.cpu_seconds / figures.seconds,
    )


def _calls(figures: Figures, action: str) -> int:
    return figures.calls.get(action, 0) + figures.calls.get(f"{action}Batch", 0)


def _result(measured: Measured, count: int) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=(
            "",
            "messages/s",
            "lowest to highest",
            "API calls per message",
            "send",
            "receive",
            "delete",
            "other",
            "server busy",
        ),
        rows=[_row(player, measured[player]) for player in _by_speed(measured)],
        bars=_bars(measured),
        notes=_notes(count),
        charts=[_chart(measured)],
    )


def _notes(count: int) -> tuple[str, ...]:
    return (
        f"{count:,} messages of 300 bytes and one worker process, {CONCURRENCY} at a time, on "
        "one server (ministack) that serves all contenders, one after another. Calls and "
        "times are counted by the server: from the first receive that brought something to "
        "the answer to the last delete. Sending is not in the time, but in the calls.",
        "Set up for throughput, as each documentation says: "
        + "; ".join(f"{player}: {player.setup}" for player in PLAYERS)
        + ". celery's default polling_interval of 1 s is waited whenever the prefetch is full, "
        "and without acks_late it deletes a message before the work, so that a kill loses it.",
        "Only Holdfast and the bare calls delete by the batch; the peers delete one by one. "
        "celery and dramatiq-sqs send one by one.",
        "The server is on this machine, answers in a millisecond or two and always fills a "
        "receive of ten, so much of the time is the server's and the SDK's (see: server busy). "
        "Amazon's answers take longer and may bring fewer: with every call more expensive, a "
        "client that needs fewer calls gains more.",
        ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    )


def speeds(drains: Sequence[Drain]) -> list[float]:
    """Return the rates of some measurements."""
    return [drain.per_second for drain in drains]


def _by_speed(measured: Measured) -> list[Player]:
    return sorted(measured, key=lambda player: -median(speeds(measured[player])))


def _row(player: Player, drains: Sequence[Drain]) -> list[str]:
    parts = ("calls", "sends", "receives", "deletes", "others")
    per_message = [median(getattr(drain, part) for drain in drains) for part in parts]
    return [
        player.name,
        f"{median(speeds(drains)):,.0f}",
        spread(speeds(drains)),
        *(f"{figure:.3f}" for figure in per_message),
        f"{median(drain.busy for drain in drains) * 100:.0f} % of a core",
    ]


def _bars(measured: Measured) -> list[Bar]:
    holdfast = measured[HOLDFAST]
    bare = ratio(speeds(measured[BARE]), speeds(holdfast))
    calls = max(drain.calls for drain in holdfast)
    return [
        *(
            Bar(f"ahead of {peer}", ratio(speeds(holdfast), speeds(measured[peer])), 1.0, "×")
            for peer in PEERS
        ),
        Bar("API calls per message, send included", calls, 0.35, "", at_least=False),
        Bar("within 1.25 × of the bare boto3 loop", bare, 1.25, "×", at_least=False),
        Bar(
            "nothing delivered twice",
            sum(drain.twice for drain in holdfast),
            0,
            "",
            at_least=False,
        ),
    ]


def _chart(measured: Measured) -> Chart:
    values = {str(p): [median(speeds(measured[p]))] for p in _by_speed(measured)}
    return Chart(TITLE, "messages per second", [""], values)
