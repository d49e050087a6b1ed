"""The commands and the query on the page of the SQLite queue, run on a queue in use."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast import AnyMessage, open_queue
from support.paths import ROOT

PAGE = (ROOT / "docs/how-to/sqlite-queue.md").read_text()


def test_the_query_reads_dead_letters_and_their_reasons(tmp_path: Path) -> None:
    [query] = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    with open_queue(f"sqlite:{tmp_path}/work.db/acme/enrich", env={}) as queue:
        queue.push_many(AnyMessage(id=id) for id in ("a", "b"))
        first, _ = queue.poll(2)
        queue.dead_letter(first, "no website")
        uri = f"file:{tmp_path}/work.db?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as shell:
            rows = shell.execute(query).fetchall()
    assert rows == [("acme/enrich", "a", 1, "no website")]


def test_a_backup_of_a_queue_in_use_has_every_message(tmp_path: Path) -> None:
    [statement] = re.findall(r'sqlite3 work\.db "(VACUUM INTO \'copy\.db\')"', PAGE)
    with open_queue(f"sqlite:{tmp_path}/work.db", env={}) as queue:
        queue.push_many(AnyMessage(id=f"{n}") for n in range(10))
        held = queue.poll(3)
        with closing(sqlite3.connect(tmp_path / "work.db")) as shell:
            shell.execute(statement.replace("copy.db", f"{tmp_path}/copy.db"))
        queue.ack_many(held)
    with open_queue(f"sqlite:{tmp_path}/copy.db", env={}, create=False) as copy:
        assert (copy.stats().ready, copy.stats().leased, copy.stats().completed) == (7, 3, 0)
