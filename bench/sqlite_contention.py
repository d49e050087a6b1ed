"""sqlite_contention: measure claim and complete by 1, 2 and 4 processes on one database."""

from bench.contention import COLUMNS, make_bars, make_chart, make_note, make_rows, race_all
from bench.holdfast import SQLITE_HUNDRED, SQLITE_ONE
from bench.raw_sqlite import RAW_ONE
from bench.session import Session
from bench.sqlite import ONE_BY_ONE, PEERS
from bench.verdict import Result

NAME = "sqlite_contention"
TITLE = "SQLite queue: claim and complete by competing processes"


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    max_seconds = session.max_seconds / 2
    cards = (*ONE_BY_ONE, SQLITE_HUNDRED)
    measured = race_all(session, TITLE, [card.name for card in cards], max_seconds)
    return Result(
        name=NAME,
        title=TITLE,
        columns=COLUMNS,
        rows=make_rows(measured),
        bars=make_bars(
            measured, SQLITE_ONE.name, [card.name for card in PEERS], bound=RAW_ONE.name
        ),
        notes=(
            make_note(session, max_seconds),
            "All claim and complete one by one, except the line of batches, which no bar uses.",
        ),
        charts=[make_chart(TITLE, measured)],
    )
