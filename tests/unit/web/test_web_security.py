"""The console's guard: hosts, origins, sessions, headers, and hostile text."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from holdfast import AnyMessage, ConfigError, SQLiteQueue
from holdfast.testing import ManualClock
from holdfast.web import web_app
from support.web.pages import HOST, ORIGIN, open_console, post_form

TOKEN = "a-token-of-twenty-chars"
EVIL = "<script>alert(1)</script>\x1b[2J\u202e\"'&{{7*7}}"


@pytest.fixture
def queue(tmp_path: Path) -> SQLiteQueue[AnyMessage]:
    queue: SQLiteQueue[AnyMessage] = SQLiteQueue(tmp_path / "q.db", queue="enrich")
    queue.push_many(AnyMessage(id=id, note=EVIL) for id in ("a", "b", EVIL))
    for message in queue.poll(3):
        queue.dead_letter(message, f"{message.id} failed: {EVIL}", detail=EVIL)
    queue.push(AnyMessage(id="waiting"))
    return queue


DEAD = "/queues/enrich/dead"


def redrive_all(client: TestClient, headers: Any = ORIGIN, **changes: str) -> Any:
    form = {"verb": "redrive", "scope": "all", **changes}
    return client.post(DEAD, data=form, headers=headers)


# -- who may open it


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.1:80"])
def test_a_host_that_is_not_the_console_is_refused(queue: Any, host: str) -> None:
    client = open_console(queue)
    for path in ("/", "/queues/enrich", "/static/console.js"):
        assert client.get(path, headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:1", "[::1]:8765", "LOCALHOST"])
def test_the_loopback_has_several_names(queue: Any, host: str) -> None:
    assert open_console(queue).get("/", headers={"Host": host}).status_code == 200


def test_another_host_needs_a_token(queue: Any) -> None:
    with pytest.raises(ConfigError, match=r"console\.example without a login: give a token"):
        web_app([queue], hosts=["console.example"])
    web_app([queue], hosts=["console.example"], protected=True)


def test_a_short_token_is_refused(queue: Any) -> None:
    with pytest.raises(ConfigError, match="16 characters or more, it has 5"):
        web_app([queue], token="short")


@pytest.mark.parametrize(
    "path",
    ["/", "/queues/enrich", "/queues/enrich/dead", "/queues/enrich/message?id=a", "/none"],
)
def test_without_the_token_no_page_is_shown(queue: Any, path: str) -> None:
    client = open_console(queue, token=TOKEN)
    for query in ({}, {"part": "1"}):
        response = client.get(path, params=query or None)
        assert (response.status_code, response.headers["location"]) == (303, "/login")
        assert "set-cookie" not in response.headers


def test_the_token_is_exchanged_for_a_cookie(queue: Any) -> None:
    client = open_console(queue, token=TOKEN)
    wrong = client.post("/login", data={"token": "wrong"}, headers=ORIGIN)
    assert wrong.status_code == 403
    assert "set-cookie" not in wrong.headers
    right = client.post("/login", data={"token": TOKEN}, headers=ORIGIN)
    assert (right.status_code, right.headers["location"]) == (303, "/")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/queues/enrich").status_code == 200


@pytest.mark.parametrize("cookie", ["x", "x.y", ".", "WyJhIiwgIiIsIDBd.00", "é"])
def test_a_forged_cookie_is_ignored(queue: Any, cookie: str) -> None:
    client = open_console(queue, token=TOKEN)
    header = f"holdfast_console_80={cookie}".encode()
    assert client.get("/", headers={"Cookie": header}).status_code == 303


def test_consoles_on_two_ports_have_cookies_of_their_own(queue: Any) -> None:
    names = set()
    for port in (8765, 8766):
        address = f"{HOST}:{port}"
        client = TestClient(web_app([queue], token=TOKEN), base_url=address)
        origin = {"Origin": address}
        client.post("/login", data={"token": TOKEN}, headers=origin)
        names |= client.cookies.keys()
    assert names == {"holdfast_console_8765", "holdfast_console_8766"}


def test_a_cookie_of_another_token_is_ignored(queue: Any) -> None:
    first = open_console(queue, token=TOKEN)
    cookie = first.post("/login", data={"token": TOKEN}, headers=ORIGIN).headers["set-cookie"]
    second = open_console(queue, token=TOKEN + "2")
    assert second.get("/", headers={"Cookie": cookie.partition(";")[0]}).status_code == 303


def test_a_cookie_ends_after_twelve_hours(queue: Any) -> None:
    clock = ManualClock()
    client = open_console(queue, token=TOKEN, clock=clock)
    client.post("/login", data={"token": TOKEN}, headers=ORIGIN)
    clock.advance(12 * 3600 - 1)
    assert client.get("/queues/enrich").status_code == 200
    clock.advance(2)
    assert client.get("/queues/enrich").status_code == 303


# -- actions


def test_a_console_is_read_only_unless_actions_are_allowed(queue: Any) -> None:
    client = open_console(queue)
    page = client.get("/queues/enrich/dead").text
    assert "Redrive" not in page
    response = client.post("/queues/enrich/dead", data={"verb": "redrive"}, headers=ORIGIN)
    assert response.status_code == 403
    assert "--allow-actions" in response.text


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://127.0.0.1:9", "http://127.0.0.1.x"]
)
def test_a_form_of_another_origin_is_refused(queue: Any, origin: str) -> None:
    client = open_console(queue, allow_actions=True)
    response = redrive_all(client, headers={"Origin": origin})
    assert response.status_code == 403
    assert queue.stats().failed == 3


def test_an_action_is_logged_with_its_author(
    queue: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = open_console(queue, allow_actions=True, token=TOKEN)
    client.post("/login", data={"token": TOKEN, "author": "Ada\n\x1b"}, headers=ORIGIN)
    with caplog.at_level(logging.WARNING, "holdfast.web"):
        assert redrive_all(client).status_code == 303
    [first, *_] = caplog.messages
    assert first.startswith("redrive dead letters author='Ada")
    assert "queue='enrich'" in first
    assert "\n" not in first
    assert "\x1b" not in first


@pytest.mark.parametrize("choice", ["../../etc/passwd 1 1 a", "1", "1 x 1 a", "1/2 1 1 a"])
def test_a_form_cannot_name_what_is_not_a_key(queue: Any, choice: str) -> None:
    client = open_console(queue, allow_actions=True)
    assert redrive_all(client, scope="", choice=choice).status_code == 400


def test_a_huge_form_is_refused(queue: Any) -> None:
    client = open_console(queue, allow_actions=True)
    assert redrive_all(client, text="x" * 2_000_000).status_code == 413


# -- pages


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/queues/enrich",
        "/queues/enrich/messages?state=failed",
        "/queues/enrich/dead",
        "/queues/enrich/dead?text=<script>alert(1)</script>&kind=<script>alert(1)</script>",
        "/queues/enrich/message?id=a&body=1",
        "/queues/<script>alert(1)</script>",
        "/queues/enrich/message?id=<script>alert(1)</script>",
    ],
)
def test_hostile_text_is_escaped_and_headers_are_strict(queue: Any, path: str) -> None:
    response = open_console(queue, allow_actions=True).get(path)
    assert "<script>alert" not in response.text
    assert "\x1b" not in response.text
    assert "\u202e" not in response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert " style=" not in response.text
    assert not re.search(r"\son\w+=", response.text)


def test_a_body_is_shown_on_request_and_only_its_beginning(tmp_path: Path) -> None:
    queue: SQLiteQueue[AnyMessage] = SQLiteQueue(tmp_path / "q.db", queue="enrich")
    queue.push(AnyMessage(id="large", text="x" * 1_000_000))
    client = open_console(queue)
    assert "xxx" not in client.get("/queues/enrich/message?id=large").text
    page = client.get("/queues/enrich/message?id=large&body=1").text
    assert 60_000 < page.count("x") < 70_000
    assert "Only the beginning of 1.0 MB" in page


def test_bodies_can_be_forbidden(queue: Any) -> None:
    page = open_console(queue, show_bodies=False).get(
        "/queues/enrich/message?id=waiting&body=1"
    )
    assert page.status_code == 200
    assert "created_at" not in page.text
    assert "--no-bodies" in page.text


def test_it_can_be_mounted_in_another_application(queue: Any) -> None:
    console = web_app([queue], allow_actions=True, token=TOKEN)
    app = Starlette(routes=[Mount("/hold", console)])
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    login = post_form(client, "/hold/login", token=TOKEN)
    assert "Path=/hold;" in login.headers["set-cookie"]
    links = re.findall(r'(?:href|src|action)="([^"]+)"', client.get("/hold/queues/enrich").text)
    assert all(link.startswith(("/hold/", "#")) for link in links)
    assert client.get("/hold/static/console.css").status_code == 200
    response = post_form(client, f"/hold{DEAD}", verb="redrive", scope="all")
    assert response.headers["location"] == "/hold/operations/1"


def test_the_page_and_all_that_it_loads_weigh_less_than_60_kb(queue: Any) -> None:
    client = open_console(queue)
    total = 0
    for path in ("/", "/static/console.css", "/static/console.js", "/static/icon.svg"):
        with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as response:
            total += sum(len(chunk) for chunk in response.iter_raw())
    assert total < 60_000
