"""Requests that no browser sends: hostile numbers, headers and forms."""

import asyncio
import getpass
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from holdfast import AnyMessage, SQLiteQueue, SQSQueue, open_queue
from holdfast.queue.info import QueueStats
from holdfast.queue.manager import QueueManager
from holdfast.testing import ManualClock, MemoryQueue, SimulatedSqs
from holdfast.web import actions, web_app
from support.web.pages import HOST, open_console, post_form

DEAD = "/queues/enrich/dead"
DIGITS = "9" * 5000  # int() refuses more than 4,300
LONG = "x" * 60_000


@pytest.fixture
def queue(tmp_path: Path) -> SQLiteQueue[AnyMessage]:
    queue: SQLiteQueue[AnyMessage] = SQLiteQueue(tmp_path / "q.db", queue="enrich")
    queue.push(AnyMessage(id="a"))
    [message] = queue.poll()
    queue.dead_letter(message, "why")
    return queue


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/queues/enrich/dead?seen={DIGITS}", 200),
        (f"/operations/{DIGITS}", 404),
        ("/operations/x", 404),
        (f"/queues/enrich/message?id={DIGITS}", 404),
        (f"/queues/enrich/message?key={DIGITS}", 404),
        (f"/queues/enrich/messages?state=failed&after={DIGITS}-{DIGITS}", 200),
        ("/queues/enrich/messages?state=%00", 404),
        ("/queues/enrich/message?id=%00%ff%ed%a0%80", 404),
        ("/queues/enrich/dead?field=%00%3D%00&text=%ff&kind=%00", 200),
        (f"/queues/enrich/dead?field={'a.' * 5000}=1", 200),
        ("/queues/enrich/dead?field=novalue", 400),
        (f"/queues/enrich/dead?text={LONG}", 200),
        (f"/{LONG}", 404),
        ("/static/..%2fapp.py", 404),
        ("/static/%2e%2e/%2e%2e/app.py", 404),
        ("/static//etc/passwd", 404),
    ],
)
def test_no_address_makes_the_console_fail(queue: Any, path: str, status: int) -> None:
    response = open_console(queue).get(path)
    assert response.status_code == status
    assert "default-src 'none'" in response.headers["content-security-policy"]


@pytest.mark.parametrize("origin", [b"http://[", b"http://127.0.0.1\xe9", b"//", b"\xff"])
def test_an_origin_that_is_not_an_address_is_foreign(queue: Any, origin: bytes) -> None:
    client = open_console(queue, allow_actions=True)
    response = client.post("/queues/enrich/dead", data={}, headers={b"Origin": origin})
    assert (response.status_code, response.text) == (403, "The form is that of another site.\n")


@pytest.mark.parametrize(
    "host", ["localhost.", "127.0.0.1:", "127.1", "[::1", "127.0.0.1@evil.example", "::1"]
)
def test_a_host_that_only_looks_like_the_loopback_is_refused(queue: Any, host: str) -> None:
    assert open_console(queue).get("/", headers={"Host": host}).status_code == 400


def test_a_page_about_a_bug_has_the_headers_of_the_guard() -> None:
    class BrokenQueue(MemoryQueue[AnyMessage]):
        def find(self, message_id: str) -> Any:
            raise RuntimeError("a secret")

    response = open_console(BrokenQueue(name="broken")).get("/queues/broken/message?id=a")
    assert response.status_code == 500
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["cache-control"] == "no-store"
    assert "a secret" not in response.text


def test_a_redirect_cannot_carry_a_header(queue: Any) -> None:
    client = open_console(queue, allow_actions=True)
    response = post_form(client, DEAD, verb="drop", text="a\r\nSet-Cookie: b=1")
    assert response.status_code == 303
    assert "%0D%0A" in response.headers["location"]
    assert "b=1" not in response.headers.get("set-cookie", "")


def test_a_log_line_of_hostile_ids_is_short_and_one_line(
    queue: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = open_console(queue, allow_actions=True)
    choice = "1 1 1 %0A%1B%E2%80%AE" + "y" * 500_000
    with caplog.at_level(logging.WARNING, "holdfast.web"):
        post_form(client, DEAD, verb="redrive", choice=choice)
    line = caplog.messages[0]
    assert len(line) < 20_000
    assert line.isprintable()


def test_a_user_without_a_name_can_act(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", fail)
    client = open_console(queue, allow_actions=True)
    response = post_form(client, DEAD, verb="redrive", scope="all")
    assert response.status_code == 303


def test_a_worker_card_is_hostile_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b\u202e\"'"
    with open_queue(f"{tmp_path}/acme/enrich") as queue:
        queue.push(AnyMessage(id="a"))
        queue.poll()
        [card] = tmp_path.rglob("workers/*.json")
        card.write_text(json.dumps({**json.loads(card.read_text()), "host": evil}))
        with open_queue(f"{tmp_path}/acme/enrich") as viewer:
            page = open_console(viewer).get("/queues/acme-enrich").text
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


# -- slow clients


async def post_nothing(app: Any, path: str) -> int:
    """Send the head of a form but no body, and return the status of the response."""
    statuses: list[int] = []
    headers = {"host": "127.0.0.1", "origin": HOST}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    await app(scope, receive, send)
    return statuses[0]


def test_a_form_that_never_arrives_is_given_up(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "FORM_TIMEOUT_SECONDS", 0.05)
    app = web_app([queue], allow_actions=True)
    assert asyncio.run(asyncio.wait_for(post_nothing(app, DEAD), 10)) == 408


# -- reading a queue must not change it


def test_an_open_page_of_a_message_on_sqs_reads_its_dead_letters_once() -> None:
    """Each read hides the dead letters from others for a while."""
    clock = ManualClock()
    sqs = SimulatedSqs(clock).client()
    sqs.create_queue(QueueName="enrich")
    queue: SQSQueue[AnyMessage] = SQSQueue("enrich", client=sqs, clock=clock)
    queue.push(AnyMessage(id="a"))
    [message] = queue.poll()
    queue.dead_letter(message, "no answer")
    client = open_console(queue)
    page = client.get("/queues/sqs-enrich/message?id=a")
    assert "no answer" in page.text
    assert "data-live" not in page.text
    assert client.get("/queues/sqs-enrich/message?id=a&part=1").status_code == 404


def test_a_queue_that_fails_is_a_problem_on_its_page_and_not_an_error(queue: Any) -> None:
    class GoneQueue(MemoryQueue[AnyMessage]):
        def stats(self) -> QueueStats:
            raise OSError("the disk is gone")

    gone: QueueManager[AnyMessage] = GoneQueue(name="gone")
    client = open_console(queue, gone)
    page = client.get("/").text
    assert "unavailable" in page
    assert "the disk is gone" in client.get("/queues/gone").text
