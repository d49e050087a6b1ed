"""Searching messages by the fields of their bodies and by their errors.

SQLite selects the rows with its JSON functions, and queue/search.py decides about each
of them. So a condition here may let too much pass, but nothing too little: SQLite reads some
numbers less exactly than Python, for example.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from holdfast.queue.info import MessageInfo, MessageState
from holdfast.queue.operator import Progress
from holdfast.queue.search import contains_text, has_fields, list_paths
from holdfast.queues.sqlite import inspection
from holdfast.store.rows import Row
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.rows import decode_text, read_rows

# Messages that one transaction looks at. A longer one would keep the log from being
# truncated while it lasts.
_PAGE = 1000

# A body as text, because SQLite may take a blob for its own binary form of JSON.
_BODY = "CAST(body AS TEXT)"
_ERROR = """
(has_error(CAST(reason AS BLOB)) OR EXISTS (
    SELECT 1 FROM attempts
    WHERE attempts.message_no = messages.message_no
    AND has_error(CAST(attempts.reason AS BLOB))))
"""
_NUMBER_TOLERANCE = 1e-9  # SQLite promises 15 significant digits
_MAX_DOTS = 20  # SQLite joins at most 64 tables


class Condition:
    """A condition of a WHERE clause, with the values of its parameters."""

    def __init__(self, sql: str = "TRUE", values: tuple[Any, ...] = ()) -> None:
        self.sql, self.values = sql, values

    def __and__(self, other: "Condition") -> "Condition":
        return Condition(f"{self.sql} AND {other.sql}", self.values + other.values)


def search(
    database: Database,
    queue_no: int,
    state: MessageState | None,
    where: Mapping[str, str],
    error: str | None,
    on_progress: Progress,
) -> Iterator[MessageInfo]:
    """Yield messages that have these fields and this error, in the order of their pushes.

    The numbers of messages do not change, so none is yielded twice or missed.
    """
    # The + keeps SQLite from using the index of states, in which a page is not together.
    scope = Condition("+queue_no = ?", (queue_no,))
    if state is None:
        scope &= Condition("+state IN (0, 1, 2, 3)")
    else:
        scope &= Condition("+state = ?", (inspection.STATES.index(state),))
    wanted = scope
    if error is not None:
        wanted &= Condition(_ERROR)
    for name, text in where.items():
        wanted &= _make_field_condition(name, text)
    first = _find_first(database, scope, 0)
    while first is not None:
        page = Condition("message_no BETWEEN ? AND ?", (first, first + _PAGE - 1))
        count, rows = _read_page(database, page & scope, page & wanted, error)
        for info in inspection.make_infos(database, rows, deep=False):
            if has_fields(info.body, where):
                yield info
        on_progress(count)
        first = _find_first(database, scope, first + _PAGE)


def _find_first(database: Database, scope: Condition, at_least: int) -> int | None:
    """Return the lowest number from there on, because a purge may have left a large gap."""
    [row] = database.query(
        f"SELECT min(message_no) AS number FROM messages WHERE message_no >= ? AND {scope.sql}",
        (at_least, *scope.values),
    )
    number: int | None = row["number"]
    return number


def _read_page(
    database: Database, scope: Condition, wanted: Condition, error: str | None
) -> tuple[int, Sequence[Row]]:
    """Return how many messages of the page are in scope, and the rows that are wanted."""
    with database.begin_read() as connection:
        if error is not None:  # SQLite itself knows upper and lower case only in ASCII
            connection.create_function(
                "has_error",
                1,
                lambda reason: reason is not None and contains_text(decode_text(reason), error),
                deterministic=True,
            )
        statement = f"SELECT count(*) FROM messages WHERE {scope.sql}"
        [count] = connection.execute(statement, scope.values).fetchone()
        statement = f"{inspection.MESSAGE} WHERE {wanted.sql} ORDER BY message_no"
        return count, read_rows(connection.execute(statement, wanted.values))


def _make_field_condition(name: str, text: str) -> Condition:
    """Return the condition that a body has a field with this value.

    A body that SQLite cannot read passes, because Python may be able to read it.
    """
    if not (_is_comparable(name) and _is_comparable(text)) or name.count(".") > _MAX_DOTS:
        return Condition()
    readings = [_make_path_condition(path, text) for path in list_paths(name)]
    either = " OR ".join(reading.sql for reading in readings)
    values = tuple(value for reading in readings for value in reading.values)
    return Condition(f"CASE WHEN json_valid({_BODY}) THEN {either} ELSE TRUE END", values)


def _make_path_condition(path: list[str], text: str) -> Condition:
    """Return the condition that these keys lead to this value, each in the object before.

    The keys are values of the statement, and not a JSON path, in which quotes, dots and `$`
    would have a meaning.
    """
    sources = [f"json_each({_BODY}) AS field0"]
    for level in range(1, len(path)):
        outer = f"field{level - 1}"
        sources.append(
            f"json_each(CASE {outer}.type WHEN 'object' THEN {outer}.value END) AS field{level}"
        )
    keys = " AND ".join(f"field{level}.key = ?" for level in range(len(path)))
    value = _make_value_condition(f"field{len(path) - 1}", text)
    return Condition(
        f"EXISTS (SELECT 1 FROM {', '.join(sources)} WHERE {keys} AND {value.sql})",
        (*path, *value.values),
    )


def _make_value_condition(field: str, text: str) -> Condition:
    if text in ("true", "false", "null"):
        return Condition(f"({field}.type = ? OR {field}.atom = ?)", (text, text))
    number = _parse_number(text)
    if number is None:
        return Condition(f"({field}.type = 'text' AND {field}.atom = ?)", (text,))
    return Condition(
        f"CASE WHEN {field}.type = 'text' THEN {field}.atom = ? "
        f"ELSE ifnull(abs({field}.atom - ?) <= ?, TRUE) END",
        (text, number, abs(number) * _NUMBER_TOLERANCE),
    )


def _parse_number(text: str) -> float | None:
    try:
        number = json.loads(text)
        return float(number) if isinstance(number, int | float) else None
    except OverflowError:
        return inf
    except (ValueError, RecursionError):
        return None


def _is_comparable(text: str) -> bool:
    """Return whether SQLite compares this text as Python does: it may end a text at NUL."""
    return inspection.is_text(text) and "\0" not in text
