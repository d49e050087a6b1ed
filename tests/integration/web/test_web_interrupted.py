"""A console that is killed while it redrives leaves every message in one state."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from starlette.testclient import TestClient

from holdfast import AnyMessage, MessageState, SQLiteQueue
from holdfast.web import web_app
from support.waiting import wait_until

COUNT = 4000
DEAD = "/queues/q-db-enrich/dead"


def start_console(url: str) -> tuple["subprocess.Popen[str]", str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "web", url, "--port=0", "--allow-actions"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    return process, re.findall(r"http://[^\s/]+", process.stderr.readline())[0]


def redrive_all(client: Any) -> str:
    """Start to redrive all dead letters, and return the path of the operation."""
    form = {"verb": "redrive", "scope": "all"}
    origin = str(client.base_url).rstrip("/")
    response = client.post(DEAD, data=form, headers={"Origin": origin}, follow_redirects=False)
    return str(response.headers["location"])


def list_states(queue: SQLiteQueue[AnyMessage]) -> Counter[str]:
    return Counter(
        message.id for state in MessageState for message in queue.peek(state, COUNT + 1)
    )


def test_a_console_killed_while_it_redrives_leaves_nothing_half_done(tmp_path: Path) -> None:
    queue: SQLiteQueue[AnyMessage] = SQLiteQueue(tmp_path / "q.db", queue="enrich")
    queue.push_many(AnyMessage(id=str(number)) for number in range(COUNT))
    with queue._database.begin_write() as connection:  # one by one would take seconds
        connection.execute("UPDATE messages SET state = 3, claims = 1, reason = 'no answer'")
    url = f"sqlite:{tmp_path}/q.db/enrich"
    process, address = start_console(url)
    with httpx.Client(base_url=address) as client:
        redrive_all(client)
    wait_until(lambda: queue.stats().failed < COUNT)
    process.kill()
    process.communicate()
    left = queue.stats()
    assert 0 < left.failed < COUNT  # it was killed in the middle
    assert (left.ready + left.failed, left.leased) == (COUNT, 0)
    assert set(list_states(queue).values()) == {1}

    # A new console knows nothing of the first, and does the rest.
    other = TestClient(web_app([url], allow_actions=True), base_url="http://127.0.0.1")
    operation = redrive_all(other)
    wait_until(lambda: f"{left.failed:,} dead letters redriven." in other.get(operation).text)
    assert (queue.stats().ready, queue.stats().failed) == (COUNT, 0)
    past = queue.find("0")[0].past
    assert [entry.outcome for entry in past] == ["redriven"]
    queue.close()
