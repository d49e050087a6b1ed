"""Searching messages by the fields of their bodies and by their errors, page by page.

SQLite calls the rules of queue/search.py for each row that contains the texts searched for.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from holdfast.queue.info import MessageInfo, MessageState
from holdfast.queue.operator import Progress
from holdfast.queue.search import contains_text, has_fields
from holdfast.queues.sqlite.inspection import MESSAGE, STATES, is_text, make_infos, parse_body
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.rows import decode_text, read_rows

# Messages that one transaction looks at. A longer one would keep the log from being
# truncated while it lasts.
_PAGE = 1000
_ERROR = """
(has_error(CAST(reason AS BLOB)) OR EXISTS (
    SELECT 1 FROM attempts
    WHERE attempts.message_no = messages.message_no
    AND has_error(CAST(attempts.reason AS BLOB))))
"""
# A body without this text cannot have it as a value, unless it has escapes or is not UTF-8.
_MAY_HAVE_TEXT = """
(instr(CAST(body AS BLOB), ?) OR instr(CAST(body AS BLOB), x'5C')
    OR instr(CAST(body AS BLOB), x'00'))
"""


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
    states = "0, 1, 2, 3" if state is None else STATES.index(state)
    scope = f"+queue_no = {queue_no} AND +state IN ({states})"
    conditions = [f"message_no BETWEEN ? AND ? AND {scope}"]
    if error is not None:
        conditions.append(_ERROR)
    texts = [text.encode() for text in where.values() if _is_written_as_it_is(text)]
    conditions += [_MAY_HAVE_TEXT] * len(texts)
    if where:
        conditions.append("has_fields(CAST(body AS BLOB))")
    wanted = " AND ".join(conditions)
    first = _find_first(database, scope, 0)
    while first is not None:
        page = (first, first + _PAGE - 1)
        with database.begin_read() as connection:
            create_function = partial(connection.create_function, narg=1, deterministic=True)
            create_function("has_error", func=lambda reason: _has_error(reason, error))
            create_function("has_fields", func=lambda body: has_fields(parse_body(body), where))
            statement = f"SELECT count(*) FROM messages WHERE {conditions[0]}"
            [count] = connection.execute(statement, page).fetchone()
            statement = f"{MESSAGE} WHERE {wanted} ORDER BY message_no"
            rows = read_rows(connection.execute(statement, (*page, *texts)))
        yield from make_infos(database, rows, deep=False)
        on_progress(count)
        first = _find_first(database, scope, first + _PAGE)


def _find_first(database: Database, scope: str, at_least: int) -> int | None:
    """Return the lowest number from there on, because a purge may have left a large gap."""
    statement = (
        f"SELECT min(message_no) AS number FROM messages WHERE message_no >= ? AND {scope}"
    )
    [row] = database.query(statement, (at_least,))
    number: int | None = row["number"]
    return number


def _is_written_as_it_is(text: str) -> bool:
    """Return whether a body without escapes must contain this text to have it as a value."""
    try:
        float(text)
    except ValueError:
        return is_text(text)
    return text.isdecimal()  # other numbers can be written in many ways


def _has_error(reason: bytes | None, error: str | None) -> bool:
    """Return whether a reason contains the text; SQLite knows cases only of ASCII letters."""
    return reason is not None and contains_text(decode_text(reason), error or "")
