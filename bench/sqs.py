"""sqs: drain a queue with an empty handler. sqs_long: handlers of three visibility timeouts."""

from collections import Counter
from functools import partial
from uuid import uuid4

from bench.report import Bar, Chart, Result, at_most
from bench.session import Figures, Session, in_fresh_process, running
from bench.sqs_players import (
    BARE,
    CONCURRENCY,
    HOLDFAST,
    HOLDFAST_ONE,
    PEERS,
    TASKIQ_BEATING,
    Job,
    Player,
    work,
)
from bench.sqs_server import MakePlace, serving_sqs

VISIBILITY_SECONDS = 60
TIMES = 3  # the visibility timeout


def run_sqs(session: Session) -> Result:
    """Measure the CPU and the calls of each message."""
    title = "SQS: drained with an empty handler"
    count = session.size(2_000, 500)
    players = (BARE, HOLDFAST, HOLDFAST_ONE, *PEERS)
    with serving_sqs() as make_place:
        measured = session.measure(
            title,
            {player.name: partial(_drain, make_place, player, count) for player in players},
        )
    own, one, bare = HOLDFAST.name, HOLDFAST_ONE.name, BARE.name
    calls = max(max(measured.read(name, "calls")) for name in (own, one))
    twice = sum(measured.sum(name, "twice") for name in (own, one))
    order = sorted(measured.rounds, key=lambda name: measured.median(name, "cpu"))
    return Result(
        title,
        ("", "CPU per message", "messages/s", "API calls per message"),
        measured.make_rows(
            ("cpu", "{:,.0f} µs"), ("rate", "{:,.0f}"), ("calls", "{:.3f}"), names=order
        ),
        [
            *(
                at_most(
                    f"{name}: CPU at most {limit} × that of the bare boto3 loop",
                    measured.ratio(name, bare, "cpu"),
                    limit,
                    "×",
                )
                for name, limit in ((own, 0.6), (one, 0.7))
            ),
            *(
                Bar(
                    f"{peer.name} needs at least 4 × Holdfast's CPU",
                    measured.ratio(peer.name, own, "cpu"),
                    4.0,
                    "×",
                )
                for peer in PEERS
            ),
            *(
                Bar(f"as fast as {peer.name}", measured.ratio(own, peer.name), 1.0, "×")
                for peer in (BARE, *PEERS)
            ),
            at_most("API calls per message, send included", calls, 0.35),
            at_most("nothing delivered twice", twice, 0),
        ],
        measured,
        f"One worker process, {CONCURRENCY} messages at a time, on ministack, which counts the "
        "calls and reads the CPU clock of the worker. Holdfast parses and validates each "
        "message; the bare loop does not, and renews nothing.",
        [
            Chart(title, axis, [""], {name: [measured.median(name, figure)] for name in order})
            for axis, figure in (
                ("CPU per message, µs", "cpu"),
                ("messages per second", "rate"),
            )
        ],
    )


def _drain(make_place: MakePlace, player: Player, count: int) -> Figures:
    with make_place(VISIBILITY_SECONDS) as place:
        in_fresh_process(player.fill, place, count)
        place.await_figure("sent", count)
        with running(work, player, place, Job()):
            figures = place.await_figure("deleted", count)
    assert figures.deleted, "nothing was deleted: did the worker start?"
    assert figures.worker_seconds_each, "the server did not measure the worker's CPU"
    calls = Counter(figures.calls)
    sends = calls["SendMessage"] + calls["SendMessageBatch"]
    return {
        "cpu": figures.worker_seconds_each * 1e6,
        "rate": figures.deleted / figures.seconds,
        "calls": sends / figures.sent + (calls.total() - sends) / figures.deleted,
        "sends": sends / figures.sent,
        "receives": calls["ReceiveMessage"] / figures.deleted,
        "twice": figures.delivered - figures.deleted,
        "server_cores": figures.cpu_seconds / figures.seconds,
    }


def run_sqs_long(session: Session) -> Result:
    """Count what is handled twice."""
    title = "SQS: handlers of three times the visibility timeout"
    visibility = session.size(4, 3)
    players = (HOLDFAST, *PEERS, TASKIQ_BEATING)
    with serving_sqs() as make_place:
        measured = session.measure(
            title,
            {
                player.name: partial(_work_long, session, make_place, player, visibility)
                for player in players
            },
            rounds=min(session.rounds, session.size(2, 1)),
        )
    figures = ("begun", "twice", "undone", "renewals")
    own = HOLDFAST.name
    return Result(
        title,
        ("", "handlers begun", "of them again", "never deleted", "renewal calls"),
        [
            [name, *(f"{measured.sum(name, figure):,.0f}" for figure in figures)]
            for name in measured.rounds
        ],
        [
            at_most("no handler begun twice", measured.sum(own, "twice"), 0),
            at_most("all deleted in the end", measured.sum(own, "undone"), 0),
        ],
        measured,
        "The way out of celery and dramatiq-sqs is a visibility timeout longer than any "
        "handler, for which a killed worker's message then stays away.",
    )


def _work_long(
    session: Session, make_place: MakePlace, player: Player, visibility: int
) -> Figures:
    seconds, ledger = float(TIMES * visibility), session.scratch / f"long-{uuid4().hex}"
    ledger.touch()  # a player may begin nothing in time
    with make_place(visibility) as place:
        in_fresh_process(player.fill, place, CONCURRENCY)
        place.await_figure("sent", CONCURRENCY)
        # Two processes, because the second can receive what is redelivered.
        with running(work, player, place, Job(seconds, ledger), processes=2):
            # Twice the needed time and the start, because some peers never finish.
            figures = place.await_figure("deleted", CONCURRENCY, 2 * seconds + 5)
    begun = Counter(ledger.read_text().splitlines())
    changes = ("ChangeMessageVisibility", "ChangeMessageVisibilityBatch")
    return {
        "begun": begun.total(),
        "twice": begun.total() - len(begun),
        "undone": CONCURRENCY - figures.deleted,
        "renewals": sum(figures.calls.get(action, 0) for action in changes),
    }
