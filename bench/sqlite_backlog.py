"""sqlite_backlog: measure the cycle of the SQLite queue with a million waiting."""

from bench.backlog import COLUMNS, FEW, Load, count_many, make_rows, measure_loads
from bench.cycle import speeds
from bench.holdfast import SQLITE_ONE
from bench.raw_sqlite import RAW_ONE
from bench.session import Session
from bench.verdict import Bar, Result, ratio

NAME = "sqlite_backlog"


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    many = count_many(session)
    title = f"SQLite queue: full cycle with {many:,} waiting"
    measured = measure_loads(session, title, (SQLITE_ONE.name, RAW_ONE.name))

    def kept(name: str) -> float:
        few = speeds(measured[Load(name, FEW)])
        return ratio(speeds(measured[Load(name, many)]), few) * 100

    return Result(
        name=NAME,
        title=title,
        columns=COLUMNS,
        rows=make_rows(measured),
        bars=[
            Bar(
                f"with {many:,} waiting at least 90 % of the rate with {FEW:,}",
                kept(SQLITE_ONE.name),
                90,
                "%",
                bound=f"raw SQLite keeps {kept(RAW_ONE.name):.0f} %",
            )
        ],
        notes=(
            f"The {many:,} are pushed once through the queue and kept through all rounds; "
            "every round is a new process.",
        ),
    )
