"""sqlite: measure the SQLite queue beside its peers and raw SQLite, on each filesystem."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from bench.arena import Arena, FolderArena, ImageArena, find_obstacle
from bench.contender import Card, card_named
from bench.cycle import speeds
from bench.figures import CycleFigures
from bench.floor import SQLiteFloor, compile_sqlite_floor
from bench.holdfast import (
    BATCHED,
    HOLDFAST,
    SQLITE_HUNDRED,
    SQLITE_ONE,
    SQLITE_PREBUILT,
    SQLITE_TEN,
)
from bench.machine import filesystem
from bench.measure import filled, run_cycles
from bench.raw_sqlite import RAW_HUNDRED, RAW_ONE, RAW_TEN, RAW_TYPED, RAW_TYPED_ONE
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Chart, Result, ratio, spread

NAME = "sqlite"
TITLE = "SQLite queue: full cycle with 10,000 waiting"
WAITING = 10_000
PEERS = tuple(
    card_named(name) for name in ("dirq", "persist-queue", "litequeue", "huey SQLite")
)
ONE_BY_ONE = (SQLITE_ONE, HOLDFAST, RAW_ONE, RAW_TYPED_ONE, *PEERS)
CARDS = (*ONE_BY_ONE, SQLITE_HUNDRED, BATCHED, RAW_HUNDRED, RAW_TYPED)
MORE_CARDS = (SQLITE_PREBUILT, SQLITE_TEN, RAW_TEN)  # measured in the first place only
FLOORS = {
    "raw SQLite (C)": RAW_ONE,
    "raw SQLite (C), batches of 100": RAW_HUNDRED,
}

Measured = Mapping[tuple[str, str], Sequence[CycleFigures]]  # by place and contender


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    places, missing = _open_places(session)
    floor = compile_sqlite_floor(session.scratch)
    if floor is None:
        missing.append("raw SQLite in C, because sqlite3.h or libsqlite3 is not installed")
    measured: dict[tuple[str, str], list[CycleFigures]] = defaultdict(list)
    names = [card.name for card in (*CARDS, *MORE_CARDS)] + [*(FLOORS if floor else ())]
    rounds = session.rounds
    for place, arena in places.items():
        at_place = replace(session, arena=arena)
        for name in session.interleaved(f"{TITLE}, {place}", names, rounds=rounds):
            measured[place, name].append(_measure(at_place, floor, name))
        names, rounds = [card.name for card in CARDS], min(session.rounds, 3)
    return _result(measured, list(places), missing)


def _open_places(session: Session) -> tuple[dict[str, Arena], list[str]]:
    """Return the places to measure in, the main one first, and those that are missing."""
    run_folder = session.scratch.parent
    places: dict[str, Arena] = {}
    missing = []
    for kind in ("ext4", "xfs"):
        if obstacle := find_obstacle(run_folder, kind):
            missing.append(f"fresh {kind}, because {obstacle}")
        else:
            places[f"fresh {kind}"] = ImageArena(run_folder, kind)
    places[f"the disk as it is ({filesystem(run_folder)})"] = FolderArena(run_folder)
    return places, missing


def _measure(session: Session, floor: SQLiteFloor | None, name: str) -> CycleFigures:
    card = FLOORS.get(name) or card_named(name)
    # Batches are fast, so that the same time takes more messages.
    count = session.size(5_000, 1_000) * (1 if card.batch == 1 else 4)
    with session.arena.room(name) as path:
        queue = filled(session, card, path, WAITING)
        if name in FLOORS and floor:
            return floor.cycle(card, queue, count)
        return in_fresh_process(run_cycles, name, queue, count, session.max_seconds / 2)


def _result(measured: Measured, places: Sequence[str], missing: Sequence[str]) -> Result:
    main, *others = places
    return Result(
        name=NAME,
        title=TITLE,
        columns=(
            "",
            f"messages/s, {main}",
            "lowest to highest",
            "µs of CPU",
            "µs: push",
            "claim",
            "complete",
            *(f"messages/s, {place}" for place in others),
        ),
        rows=[
            _row(name, measured, places)
            for place, name in _sort_by_speed(measured, places)
            if place == main
        ],
        bars=_bars(measured, places),
        notes=(
            "Raw SQLite writes the same columns into the same tables with one connection, and "
            "moves finished JSON. The typed lines also build, serialise, parse and validate "
            "messages, as Holdfast does.",
            "The peers have no batches. persist-queue and huey sync every commit to the disk; "
            "the others, like Holdfast here, do not.",
            *(f"Not measured: {reason}." for reason in missing),
        ),
        charts=[_chart(measured, places)],
    )


def _sort_by_speed(measured: Measured, places: Sequence[str]) -> list[tuple[str, str]]:
    """Return the places, and in each its contenders, the fastest first."""
    return sorted(
        measured, key=lambda key: (places.index(key[0]), -median(speeds(measured[key])))
    )


def _rate(measured: Measured, place: str, name: str) -> float:
    return median(speeds(measured[place, name]))


def _row(name: str, measured: Measured, places: Sequence[str]) -> list[str]:
    """Return the figures of a contender in the main place, and its rates in the others."""
    main, *others = places
    figures = measured[main, name]
    parts = [
        f"{median(getattr(figure, part) / figure.cycles for figure in figures) * 1e6:,.1f}"
        for part in ("cpu", "push", "claim", "done")
    ]
    elsewhere = [
        f"{_rate(measured, place, name):,.0f}" if (place, name) in measured else ""
        for place in others
    ]
    rate = f"{_rate(measured, main, name):,.0f}"
    return [name, rate, spread(speeds(figures)), *parts, *elsewhere]


def _bars(measured: Measured, places: Sequence[str]) -> list[Bar]:
    def lead(place: str, card: Card, rival: Card) -> float:
        return ratio(speeds(measured[place, card.name]), speeds(measured[place, rival.name]))

    dirq, main = PEERS[0], places[0]
    bars = [
        Bar(
            f"one by one at least 1.3 × dirq on {main}",
            lead(main, SQLITE_ONE, dirq),
            1.3,
            "×",
            bound=_bound(lead(main, RAW_ONE, dirq), lead(main, RAW_TYPED_ONE, dirq)),
        )
    ]
    for place in places:
        best = max(
            (card for card in PEERS if card.survives),
            key=lambda card: _rate(measured, place, card.name),
        )
        bars.append(
            Bar(
                "one by one ahead of every peer that keeps a killed worker's message on "
                f"{place} (best: {best.name})",
                lead(place, SQLITE_ONE, best),
                1.0,
                "×",
                bound=_bound(lead(place, RAW_ONE, best), lead(place, RAW_TYPED_ONE, best)),
            )
        )
    for place in places:
        bars += [
            Bar(
                f"batches of 100 at least 6 × dirq on {place}",
                lead(place, SQLITE_HUNDRED, dirq),
                6.0,
                "×",
                aim=place != main,
                bound=_bound(lead(place, RAW_HUNDRED, dirq), lead(place, RAW_TYPED, dirq)),
            ),
            Bar(
                f"batches of 100 at most 1.6 × the time of raw SQLite on {place}",
                lead(place, RAW_HUNDRED, SQLITE_HUNDRED),
                1.6,
                "×",
                at_least=False,
                bound="raw SQLite with typed messages takes "
                f"{lead(place, RAW_HUNDRED, RAW_TYPED):.2f} ×",
            ),
        ]
    return bars


def _bound(raw: float, typed: float) -> str:
    return f"raw SQLite reaches {raw:.2f} ×, and with typed messages {typed:.2f} ×"


def _chart(measured: Measured, places: Sequence[str]) -> Chart:
    values = {
        card.name: [_rate(measured, place, card.name) for place in places]
        for card in ONE_BY_ONE
    }
    return Chart(f"{TITLE}, one by one", "cycles per second", places, values)
