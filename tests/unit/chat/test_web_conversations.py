"""The pages of conversations: their states, what is masked, and what a person may decide."""

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from tools.example_console import fill_example_chat

from holdfast.chat.building import ChatApp, build_chat
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    LockAcquired,
    ParkedBatch,
    Status,
)
from holdfast.chat.outbox import SendingReply, UnclearReply, WriterAnswer
from holdfast.chat.pages import PAGE_ROWS, make_reference
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.testing import ManualClock, MemoryConversations
from holdfast.web import web_app
from support.web.conversations import (
    ANSWER,
    ANSWERED,
    EVIL,
    LOCKED,
    NUMBER,
    PARKED_ID,
    QUESTION,
    WAITING,
    answer,
    fill_chat,
    make_environment,
    park,
    stage,
)
from support.web.pages import HOST, ORIGIN, open_console, post_form, read_page

CHAT = f"/conversations/conversation?ref={make_reference(ANSWERED)}"
BATCH = f"/conversations/batch?id={PARKED_ID}"
PRIVATE = (NUMBER, NUMBER[3:], QUESTION, ANSWER, "+4930111222333", "ada@example.org")

HOSTILE = ("<script>alert", "\x1b", "\u202e")


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[ChatApp]:
    with fill_chat(tmp_path) as app:
        yield app


def decide(client: TestClient, decision: str, **form: str) -> Any:
    form = {"id": PARKED_ID, "decision": decision, **form}
    return post_form(client, "/conversations/batch", **form)


# -- what is shown


def test_the_example_has_a_parked_batch_with_a_reply_and_one_without() -> None:
    store = MemoryConversations()
    fill_example_chat(store, SYSTEM_CLOCK.time())
    replies = {batch.key.conversation_id: batch.outbox for batch in store.parked()}
    assert isinstance(replies["33612345678"], SendingReply)
    assert replies["14155550142"] is None


def test_conversations_are_listed_with_windows_locks_and_replies(chat: ChatApp) -> None:
    page = read_page(open_console(chat=chat), "/conversations")
    assert "Waiting for a reply" in page
    assert "its trigger is not sent yet" in page
    assert "being answered" in page
    assert "lock ends in" in page
    assert "being sent, 1 part accepted" in page
    assert "needs a decision" in page


def test_a_conversation_is_shown_with_its_parked_batch(chat: ChatApp) -> None:
    client = open_console(chat=chat)
    read_page(client, "/conversations")
    page = client.get(CHAT).text
    assert "1 parked batch needs a decision" in page
    assert "412 read, 37 written" in page
    assert "whatsapp:+49…78" in page


def test_an_answered_conversation_with_new_messages_is_waiting(chat: ChatApp) -> None:
    assert ">answered<" in read_page(open_console(chat=chat), "/conversations")
    stage(chat.store, ANSWERED, "sid-new", SYSTEM_CLOCK.time())
    for page in (
        read_page(open_console(chat=chat), "/conversations"),
        open_console(chat=chat).get(CHAT).text,
    ):
        assert ">waiting<" in page
        assert ">answered<" not in page


def test_a_conversation_shows_its_batch_among_many_that_are_parked(chat: ChatApp) -> None:
    park(chat.store, SYSTEM_CLOCK.time() - 60, *(f"early-{n}" for n in range(PAGE_ROWS)))
    client = open_console(chat=chat)
    read_page(client, "/conversations")
    assert PARKED_ID not in client.get("/conversations/parked").text
    assert "1 parked batch needs a decision" in client.get(CHAT).text


@pytest.mark.parametrize("show_bodies", [True, False])
def test_numbers_and_texts_are_masked(chat: ChatApp, show_bodies: bool) -> None:
    client = open_console(chat=chat, allow_actions=True, show_bodies=show_bodies)
    read_page(client, "/conversations")
    others = [
        f"/conversations/conversation?ref={make_reference(key)}" for key in (WAITING, LOCKED)
    ]
    for path in ("/conversations?", "/conversations/parked?", BATCH, CHAT, *others):
        for address in (path, f"{path}&part=1"):
            response = client.get(address)
            assert response.status_code == 200
            assert [text for text in (*PRIVATE, *HOSTILE) if text in response.text] == []


@pytest.mark.parametrize("path", [CHAT, BATCH])
def test_the_number_and_the_texts_of_one_conversation_are_shown_on_request(
    chat: ChatApp, path: str
) -> None:
    client = open_console(chat=chat)
    link = re.search(r'href="([^"]+)">Show the number', client.get(path).text)
    assert link is not None
    page = client.get(link[1].replace("&amp;", "&")).text
    assert all(text in page for text in (NUMBER, QUESTION, ANSWER))
    assert [text for text in HOSTILE if text in page] == []
    title = re.search("<title>(.*)</title>", page)
    assert title is not None
    assert NUMBER not in title[1]  # a browser keeps the titles of pages


def test_no_bodies_forbids_numbers_and_texts(chat: ChatApp) -> None:
    client = open_console(chat=chat, show_bodies=False)
    for path in (CHAT, BATCH):
        page = client.get(f"{path}&texts=1").text
        assert [text for text in PRIVATE if text in page] == []
        assert "--no-bodies" in page


def test_no_address_of_a_page_contains_a_number(chat: ChatApp) -> None:
    client = open_console(chat=chat, allow_actions=True)
    read_page(client, "/conversations")
    for path in ("/conversations", f"{CHAT}&texts=1", "/conversations/parked", BATCH):
        links = re.findall(r'(?:href|action|value|id)="([^"]+)"', client.get(path).text)
        assert [link for link in links if NUMBER[1:] in link] == []


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    with build_chat(make_environment(tmp_path)) as app:
        client = open_console(chat=app)
        assert "No customer has written yet" in read_page(client, "/conversations")
        assert "No batch waits for a decision" in client.get("/conversations/parked").text


def test_a_missing_store_is_reported_and_not_created(tmp_path: Path) -> None:
    store = tmp_path / "none.db"
    client = open_console(chat=str(store))
    assert "there is no conversation store" in read_page(client, "/conversations")
    for path in ("/conversations/parked", BATCH, CHAT):
        assert "there is no conversation store" in client.get(path).text
    assert not store.exists()


def test_a_wrong_setting_is_shown_until_it_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_chat(tmp_path).close()
    monkeypatch.setenv("HOLDFAST_CHAT_LOCK_SECONDS", "soon")
    client = open_console(chat=str(tmp_path / "chat.db"))
    assert "HOLDFAST_CHAT_LOCK_SECONDS" in client.get("/conversations/parked").text
    monkeypatch.delenv("HOLDFAST_CHAT_LOCK_SECONDS")
    assert PARKED_ID in client.get("/conversations/parked").text


def test_a_console_without_a_store_has_no_page_of_conversations() -> None:
    client = TestClient(web_app([]), base_url=HOST)
    assert client.get("/conversations").status_code == 404
    assert "Conversations" not in client.get("/").text


def test_a_console_without_queues_begins_with_its_stores(chat: ChatApp) -> None:
    client = open_console(chat=chat)
    assert client.get("/").headers["location"] == "/conversations"
    assert ">Queues<" not in read_page(client, "/conversations")
    both = TestClient(web_app([], jobs="jobs.db", chat=chat), base_url=HOST)
    assert both.get("/", follow_redirects=False).headers["location"] == "/jobs"


def test_a_list_has_one_page_of_rows(tmp_path: Path) -> None:
    with build_chat(make_environment(tmp_path)) as app:
        for number in range(PAGE_ROWS + 5):
            app.store.create(
                Conversation(ConversationKey(f"a{number}@b.example", f"c{number}"))
            )
        page = read_page(open_console(chat=app), "/conversations")
    assert page.count('<tr id="chat-') == PAGE_ROWS
    assert "Find others by their id" in page


class CountedConversations(MemoryConversations):
    """A store that counts the rows that its lists hand out."""

    handed_out = 0

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        for conversation in super().conversations(conversation_id):
            self.handed_out += 1
            yield conversation


def test_a_list_reads_no_more_than_it_shows(tmp_path: Path) -> None:
    store = CountedConversations()
    for number in range(PAGE_ROWS * 2):
        store.create(Conversation(ConversationKey("a@b.example", f"c{number}")))
    client = open_console(chat=replace(build_chat(make_environment(tmp_path)), store=store))
    assert "c9" in read_page(client, "/conversations")
    assert store.handed_out == PAGE_ROWS + 1


def test_a_conversation_is_found_after_a_restart(chat: ChatApp) -> None:
    # This console listed nothing before.
    assert open_console(chat=chat).get(CHAT).status_code == 200
    unknown = open_console(chat=chat).get("/conversations/conversation?ref=unknown")
    assert unknown.status_code == 404


# -- finding one


def test_a_conversation_is_found_by_its_id_without_allowing_actions(chat: ChatApp) -> None:
    client = open_console(chat=chat)
    for name in (NUMBER, NUMBER[:6], ANSWERED.log_name):
        response = post_form(client, "/conversations", id=name)
        assert (response.status_code, response.headers["location"]) == (303, CHAT)
    for name in ("", "nothing-has-this", EVIL):
        response = post_form(client, "/conversations", id=name)
        assert response.status_code == 404
        assert "No id begins so" in response.text


# -- decisions


def test_a_read_only_console_decides_nothing(chat: ChatApp) -> None:
    client = open_console(chat=chat)
    assert "Answer after all" not in client.get(BATCH).text
    assert "Assign to" not in client.get(CHAT).text
    for decision in ("retry", "sent", "drop"):
        assert decide(client, decision, confirmed="yes").status_code == 403
    form = {"ref": make_reference(ANSWERED), "to": "person"}
    response = post_form(client, "/conversations/conversation", **form)
    assert response.status_code == 403
    assert len(list(chat.store.parked())) == 1


def test_a_retried_batch_is_staged_and_triggered(chat: ChatApp) -> None:
    response = decide(open_console(chat=chat, allow_actions=True), "retry")
    assert response.headers["location"] == "/conversations/parked?done=retry"
    assert list(chat.store.parked()) == []
    assert [row.message_sid for row in chat.store.staged(NUMBER)] == ["sid-parked"]
    assert chat.queues[ANSWERED.channel].stats().ready == 1


def test_a_reply_is_recorded_as_sent(chat: ChatApp) -> None:
    assert decide(open_console(chat=chat, allow_actions=True), "sent").status_code == 303
    assert list(chat.store.parked()) == []
    assert [message.seq for message in chat.store.history(ANSWERED)] == [1, 2, 3, 4]


def test_a_drop_is_confirmed_first(chat: ChatApp) -> None:
    client = open_console(chat=chat, allow_actions=True)
    question = decide(client, "drop")
    assert question.status_code == 200
    assert "Drop 1 message without a reply?" in question.text
    assert [text for text in PRIVATE if text in question.text] == []
    assert len(list(chat.store.parked())) == 1
    assert decide(client, "drop", confirmed="yes").status_code == 303
    assert list(chat.store.parked()) == []
    assert chat.store.staged(NUMBER) == []


def test_decisions_work_where_the_console_is_mounted(chat: ChatApp) -> None:
    console = web_app([], chat=chat, allow_actions=True)
    app = Starlette(routes=[Mount("/hold", console)])
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    for path in ("/conversations", CHAT, "/conversations/parked", BATCH):
        page = client.get(f"/hold{path}").text
        links = re.findall(r'(?:href|src|action)="([^"]+)"', page)
        assert [link for link in links if not link.startswith(("/hold/", "#"))] == []
    form = {"id": PARKED_ID, "decision": "retry"}
    response = post_form(client, "/hold/conversations/batch", **form)
    assert response.headers["location"] == "/hold/conversations/parked?done=retry"


def test_a_batch_that_another_person_decided_is_not_found(chat: ChatApp) -> None:
    client = open_console(chat=chat, allow_actions=True)
    chat.operator.drop(PARKED_ID)
    for decision in ("retry", "sent", "drop"):
        assert decide(client, decision).status_code == 404
    assert client.get(BATCH).status_code == 404


def test_a_decision_that_must_wait_is_reported_and_changes_nothing(
    chat: ChatApp, caplog: pytest.LogCaptureFixture
) -> None:
    now = SYSTEM_CLOCK.time()
    chat.store.acquire(ANSWERED, owner="o", trigger_id="t", now=now, expires_at=now + 60)
    client = open_console(chat=chat, allow_actions=True)
    with caplog.at_level(logging.WARNING, "holdfast.web"):
        response = decide(client, "sent")
    assert response.status_code == 409
    assert "try again in a minute" in response.text
    assert "sent parked batch failed" in caplog.messages[-1]
    assert len(list(chat.store.parked())) == 1


def test_an_unknown_decision_is_refused(chat: ChatApp) -> None:
    client = open_console(chat=chat, allow_actions=True)
    assert decide(client, "send").status_code == 400
    form = {"ref": make_reference(ANSWERED), "to": "robot"}
    response = post_form(client, "/conversations/conversation", **form)
    assert response.status_code == 400


def test_a_conversation_is_assigned_to_a_person_and_back(chat: ChatApp) -> None:
    client = open_console(chat=chat, allow_actions=True)
    for to, status in (("person", Status.WITH_PERSON), ("writer", Status.REPLY_SENT)):
        form = {"ref": make_reference(ANSWERED), "to": to}
        response = post_form(client, "/conversations/conversation", **form)
        assert response.headers["location"] == CHAT
        conversation = chat.store.get(ANSWERED)
        assert conversation is not None
        assert conversation.status == status
    form = {"ref": "https://evil.example", "to": "person"}
    unknown = post_form(client, "/conversations/conversation", **form)
    assert unknown.status_code == 404


def test_decisions_are_logged_with_their_author_and_without_numbers(
    chat: ChatApp, caplog: pytest.LogCaptureFixture
) -> None:
    token = "a-token-of-twenty-chars"
    client = open_console(chat=chat, allow_actions=True, token=token)
    client.post("/login", data={"token": token, "author": "Ada"}, headers=ORIGIN)
    with caplog.at_level(logging.WARNING, "holdfast.web"):
        decide(client, "retry")
        form = {"ref": make_reference(ANSWERED), "to": "person"}
        post_form(client, "/conversations/conversation", **form)
    begun, done, assigned = caplog.messages
    assert begun.startswith("retry parked batch author='Ada from ")
    assert f"batch='{PARKED_ID}'" in begun
    assert f"conversation='{ANSWERED.log_name}'" in done
    assert assigned.startswith("assign conversation to person author='Ada from ")
    assert [text for text in PRIVATE if text in caplog.text] == []


def test_a_retry_whose_trigger_cannot_be_sent_says_where_the_batch_is(
    tmp_path: Path, chat: ChatApp
) -> None:
    (tmp_path / "queues").write_text("a file where the queues should be")
    response = decide(open_console(chat=chat, allow_actions=True), "retry")
    assert response.status_code == 409
    assert "The lists of conversations show" in response.text
    assert [row.message_sid for row in chat.store.staged(NUMBER)] == ["sid-parked"]


def test_a_long_history_has_pages(chat: ChatApp) -> None:
    for number in range(PAGE_ROWS):
        answer(chat.store, f"sid-{number}", SYSTEM_CLOCK.time())
    client, seen = open_console(chat=chat), 0
    address: str | None = CHAT
    while address:
        page = client.get(address).text
        count = page.count('class="speech ')
        assert 0 < count <= PAGE_ROWS
        seen += count
        link = re.search(r'href="([^"]+)">Earlier messages', page)
        address = link[1].replace("&amp;", "&") if link else None
    assert seen == 2 * (PAGE_ROWS + 1)


class HurryingClock(ManualClock):
    """A clock on which every look takes a second."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def test_a_search_in_a_large_store_ends(chat: ChatApp) -> None:
    client = open_console(chat=chat, clock=HurryingClock())
    for number in range(10):
        chat.store.create(Conversation(ConversationKey("a@b.example", f"c{number}")))
    unknown = client.get("/conversations/conversation?ref=unknown").text
    assert "too large to be searched in 2 s" in unknown


def test_many_staged_messages_are_cut(chat: ChatApp) -> None:
    for number in range(PAGE_ROWS + 3):
        stage(chat.store, WAITING, f"more-{number}", 1.0 + number)
    reference = make_reference(WAITING)
    page = open_console(chat=chat).get(f"/conversations/conversation?ref={reference}").text
    assert page.count('class="speech ') == PAGE_ROWS
    assert "5 more are staged" in page


def test_a_reply_with_an_unclear_answer_may_have_been_sent(chat: ChatApp) -> None:
    """So it is shown in its conversation, among the parked batches, and with its batch."""
    store, now = chat.store, SYSTEM_CLOCK.time()
    locked = store.acquire(WAITING, owner="o", trigger_id="t", now=now, expires_at=now + 600)
    assert isinstance(locked, LockAcquired)
    reply = UnclearReply(("sid-0",), WriterAnswer(ANSWER), (), now, 1)
    store.note(locked.grant, reply, "")
    client = open_console(chat=chat)
    page = f"/conversations/conversation?ref={make_reference(WAITING)}"
    assert "may have been sent" in read_page(client, page)
    for batch in list(store.parked()):
        store.unpark(batch.parked_id, back_to_stage=False, now=now, expires_at=now)
    rows = tuple(store.staged(WAITING.conversation_id))
    parked = ParkedBatch("p2", WAITING, "no answer", now, rows, reply)
    store.park(locked.grant, parked, remember_until=now)
    assert "may have been sent" in read_page(client, "/conversations/parked")
    assert "unknown whether the customer" in read_page(client, "/conversations/batch?id=p2")
