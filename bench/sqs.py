"""sqs: drain an SQS queue with an empty handler; measure the CPU, and count the calls."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median

from bench.session import Session, in_fresh_process
from bench.sqs_ground import CONCURRENCY, Ground, serving, wait_until_drained, working
from bench.sqs_players import BARE, HOLDFAST, HOLDFAST_ONE, PEERS, Job, Player, fill, work
from bench.sqs_server import Figures
from bench.verdict import Bar, Chart, Result, ratio, spread

NAME = "sqs"
TITLE = "SQS: drained with an empty handler"
VISIBILITY_SECONDS = 60
WAIT_TIMEOUT_SECONDS = 60.0
PACKAGES = ("boto3", "ministack", "celery", "kombu", "dramatiq-sqs", "taskiq-aio-sqs")
PLAYERS = (BARE, HOLDFAST, HOLDFAST_ONE, *PEERS)


@dataclass(frozen=True, slots=True)
class Drain:
    """The figures of one drained queue."""

    microseconds: float  # CPU of the worker per message
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
    assert figures.worker_seconds_each, "the server did not measure the worker's CPU"
    return Drain(
        microseconds=figures.worker_seconds_each * 1e6,
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
            "CPU per message",
            "lowest to highest",
            "of the bare loop",
            "messages/s",
            "API calls per message",
            "send",
            "receive",
            "delete",
            "other",
            "server busy",
        ),
        rows=[_row(player, measured) for player in _by_cpu(measured)],
        bars=_bars(measured),
        notes=_notes(count),
        charts=_charts(measured),
    )


def _notes(count: int) -> tuple[str, ...]:
    return (
        f"{count:,} messages of 300 bytes and one worker process, {CONCURRENCY} at a time, on "
        "one server (ministack) that serves all contenders, one after another. The server "
        "counts calls and times, from the first receive to the answer to the last delete. "
        "Sending is not in the time, but in the calls.",
        "CPU is the user and system time of all threads of the worker process between the "
        "answers to the first and the last delete, so its start is not in it.",
        "Set up for throughput, as each documentation says: "
        + "; ".join(f"{player}: {player.setup}" for player in PLAYERS)
        + ".",
        "Holdfast parses and validates each message. The bare boto3 loop does not, and renews "
        "nothing. Only these two delete by the batch; celery and dramatiq-sqs also send one by "
        "one. Amazon's answers take longer than those of this server and may bring fewer "
        "messages, so a client that needs fewer calls gains more there.",
        ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    )


def _costs(drains: Sequence[Drain]) -> list[float]:
    return [drain.microseconds for drain in drains]


def _speeds(drains: Sequence[Drain]) -> list[float]:
    return [drain.per_second for drain in drains]


def _by_cpu(measured: Measured) -> list[Player]:
    return sorted(measured, key=lambda player: median(_costs(measured[player])))


def _row(player: Player, measured: Measured) -> list[str]:
    drains = measured[player]
    parts = ("calls", "sends", "receives", "deletes", "others")
    per_message = [median(getattr(drain, part) for drain in drains) for part in parts]
    return [
        player.name,
        f"{median(_costs(drains)):,.0f} µs",
        spread(_costs(drains)),
        f"{ratio(_costs(drains), _costs(measured[BARE])):.2f} ×",
        f"{median(_speeds(drains)):,.0f}",
        *(f"{figure:.3f}" for figure in per_message),
        f"{median(drain.busy for drain in drains) * 100:.0f} % of a core",
    ]


def _bars(measured: Measured) -> list[Bar]:
    ten, one, bare = (measured[player] for player in (HOLDFAST, HOLDFAST_ONE, BARE))
    calls = max(drain.calls for drain in (*ten, *one))
    twice = sum(drain.twice for drain in (*ten, *one))
    return [
        _cpu_bar("10 threads", ratio(_costs(ten), _costs(bare)), 0.6),
        _cpu_bar("1 thread", ratio(_costs(one), _costs(bare)), 0.7),
        *(
            Bar(
                f"{peer} needs at least 4 × Holdfast's CPU",
                ratio(_costs(measured[peer]), _costs(ten)),
                4.0,
                "×",
            )
            for peer in PEERS
        ),
        Bar(
            "at least as fast as the bare boto3 loop",
            ratio(_speeds(ten), _speeds(bare)),
            1.0,
            "×",
        ),
        *(
            Bar(f"faster than {peer}", ratio(_speeds(ten), _speeds(measured[peer])), 1.0, "×")
            for peer in PEERS
        ),
        Bar("API calls per message, send included", calls, 0.35, "", at_least=False),
        Bar("nothing delivered twice", twice, 0, "", at_least=False),
    ]


def _cpu_bar(threads: str, figure: float, limit: float) -> Bar:
    promise = f"{threads}: CPU at most {limit} × that of the bare boto3 loop"
    return Bar(promise, figure, limit, "×", at_least=False)


def _charts(measured: Measured) -> list[Chart]:
    players = _by_cpu(measured)
    cpu = {str(player): [median(_costs(measured[player]))] for player in players}
    speed = {str(player): [median(_speeds(measured[player]))] for player in players}
    return [
        Chart(TITLE, "CPU per message, µs", [""], cpu),
        Chart(TITLE, "messages per second", [""], speed),
    ]
