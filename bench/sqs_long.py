"""sqs_long: count what is handled twice if handlers take three visibility timeouts."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bench.session import Session, in_fresh_process
from bench.sqs_ground import CONCURRENCY, Ground, serving, wait_until_drained, working
from bench.sqs_players import HOLDFAST, PEERS, TASKIQ_BEATING, Job, Player, fill, work
from bench.verdict import Bar, Result

NAME = "sqs_long"
TITLE = "SQS: handlers of three times the visibility timeout"
TIMES = 3
PROCESSES = 2  # the second can receive what is redelivered
PLAYERS = (HOLDFAST, *PEERS, TASKIQ_BEATING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run."""

    begun: int
    twice: int
    undone: int
    renewals: int  # calls


Measured = Mapping[Player, Sequence[Outcome]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    visibility = session.size(4, 3)
    measured: dict[Player, list[Outcome]] = defaultdict(list)
    with serving() as ground:
        rounds = min(session.rounds, session.size(2, 1))
        for player in session.interleaved(TITLE, PLAYERS, rounds=rounds):
            ledger = session.scratch / f"sqs-long-{uuid4().hex}"
            measured[player].append(_work_long(ground, player, visibility, ledger))
    return _result(measured, visibility)


def _work_long(ground: Ground, player: Player, visibility: int, ledger: Path) -> Outcome:
    count, seconds = CONCURRENCY, float(TIMES * visibility)
    job = Job(seconds, ledger)
    with ground.place(visibility) as place:
        in_fresh_process(fill, player.name, place, count)
        place.await_sent(count)
        with working(work, player.name, place, job, processes=PROCESSES):
            # Twice the needed time and the start, because some peers never finish.
            figures = wait_until_drained(place, count, 2 * seconds + 5)
    begun = Counter(ledger.read_text().splitlines())
    changes = ("ChangeMessageVisibility", "ChangeMessageVisibilityBatch")
    return Outcome(
        begun=begun.total(),
        twice=begun.total() - len(begun),
        undone=count - figures.deleted,
        renewals=sum(figures.calls.get(action, 0) for action in changes),
    )


def _result(measured: Measured, visibility: int) -> Result:
    twice = sum(outcome.twice for outcome in measured[HOLDFAST])
    undone = sum(outcome.undone for outcome in measured[HOLDFAST])
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "handlers begun", "of them again", "never deleted", "renewal calls"),
        rows=[_row(player, outcomes) for player, outcomes in measured.items()],
        bars=[
            Bar("no handler begun twice", twice, 0, "", at_least=False),
            Bar("all deleted in the end", undone, 0, "", at_least=False),
        ],
        notes=(
            f"{len(measured[HOLDFAST])} × {CONCURRENCY} messages, a visibility timeout of "
            f"{visibility} s, handlers of {TIMES * visibility} s, {PROCESSES} worker processes "
            f"of {CONCURRENCY} each, watched for twice the handlers' time.",
            "celery's and dramatiq-sqs's way out is a visibility timeout longer than any "
            "handler (their defaults: 30 minutes and 12 hours), which is also how long a "
            "killed worker's message stays away. celery's default of deleting before the work "
            "loses the message with the worker. taskiq-aio-sqs has a heartbeat, off by "
            "default.",
            "A message that comes back before its handler ends gets a new receipt, and the old "
            "one deletes nothing, so it can come back again and again.",
        ),
    )


def _row(player: Player, outcomes: Sequence[Outcome]) -> list[str]:
    return [
        player.name,
        *(
            f"{sum(getattr(outcome, part) for outcome in outcomes):,}"
            for part in ("begun", "twice", "undone", "renewals")
        ),
    ]
