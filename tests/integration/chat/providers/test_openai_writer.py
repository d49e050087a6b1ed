"""The OpenAI writer, against a local server with the same API.

What an earlier try
brought about is neither asked nor paid twice, and each refusal is what it is: passing,
permanent, or a thread gone (MS-21, MS-22)."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    ThreadGone,
    TransientError,
)
from holdfast.chat.outbox import WriterAnswer
from holdfast.chat.ports import NO_SECRET, ReplyRequest, Secret
from holdfast.chat.providers.local import EchoWriter
from holdfast.chat.providers.openai import OpenAIWriter
from support.vendors import Fault, VendorServer

SECRET = Secret("key", {"api_key": "sk-good"})
WAIT = 20.0


@pytest.fixture
def vendors() -> Iterator[VendorServer]:
    with VendorServer() as server:
        yield server


@pytest.fixture(scope="module")
def writer() -> OpenAIWriter:
    return OpenAIWriter()


def config(vendors: VendorServer, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-5", "base_url": vendors.openai, **more}


def ask(
    writer: OpenAIWriter,
    vendors: VendorServer,
    question: ReplyRequest,
    seconds: float = WAIT,
    **more: Any,
) -> WriterAnswer:
    return writer.write(question, config(vendors, **more), SECRET, timeout_seconds=seconds)


@pytest.mark.requirement("R002-052", "R002-053", "R002-054", "R002-055")
def test_a_question_is_answered_in_its_thread(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    thread = writer.open_thread(config(vendors), SECRET)
    text = "Grüße 👋🏽\nשלום"
    terms = {"instructions": "Be brief.", "max_output_tokens": "300"}
    answer = ask(writer, vendors, ReplyRequest(thread, "", text), **terms)
    assert answer.text == f"Re: {text}"
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 4)
    assert answer.thread_mark == vendors.books.conversations[thread][-1]["id"]
    (asked,) = vendors.books.asked("openai.write")
    assert asked.user == "sk-good"
    assert asked.body["input"] == [{"role": "user", "content": text}]
    assert asked.body["conversation"] == thread
    assert asked.body["instructions"] == "Be brief."
    assert asked.body["max_output_tokens"] == 300
    assert asked.body["metadata"]["holdfast_batch"]


def test_the_address_may_come_from_the_environment(
    vendors: VendorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", vendors.openai)
    assert OpenAIWriter().open_thread({"model": "gpt-5"}, SECRET).startswith("conv_")


@pytest.mark.requirement("R002-091")
def test_a_lost_response_is_found_in_the_thread_and_not_requested_again(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    """The connection is lost after OpenAI has answered (MS-21)."""
    thread = writer.open_thread(config(vendors), SECRET)
    first = ask(writer, vendors, ReplyRequest(thread, "", "one"))
    vendors.books.order("openai.write", Fault(how="close", acted=True))
    question = ReplyRequest(thread, first.thread_mark, "two")
    with pytest.raises(TransientError):
        ask(writer, vendors, question)

    again = ReplyRequest(thread, first.thread_mark, "two", again=True)
    answer = ask(writer, vendors, again)
    assert answer.text == "Re: two"
    assert (answer.prompt_tokens, answer.completion_tokens) == (0, 0)
    assert answer.thread_mark == vendors.books.conversations[thread][-1]["id"]
    assert len(vendors.books.asked("openai.write")) == 2


def test_an_answer_is_found_behind_many_items(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    """Every page of the thread is read."""
    thread = writer.open_thread(config(vendors), SECRET)
    items = vendors.books.conversations[thread]
    for _ in range(130):
        items.append(vendors.books._message("user", "other"))
    ask(writer, vendors, ReplyRequest(thread, "", "wanted"))
    answer = ask(writer, vendors, ReplyRequest(thread, "", "wanted", again=True))
    assert answer.text == "Re: wanted"
    assert len(vendors.books.asked("openai.write")) == 1
    assert len(vendors.books.asked("openai.list")) == 2


def test_the_same_words_of_an_earlier_batch_are_asked_anew(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    """Two equal messages get two replies, because only items after the mark count."""
    thread = writer.open_thread(config(vendors), SECRET)
    before = ask(writer, vendors, ReplyRequest(thread, "", "ok"))
    answer = ask(writer, vendors, ReplyRequest(thread, before.thread_mark, "ok", again=True))
    assert len(vendors.books.asked("openai.write")) == 2
    assert answer.thread_mark != before.thread_mark


def test_a_mark_that_is_gone_leads_to_no_older_answer(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    thread = writer.open_thread(config(vendors), SECRET)
    ask(writer, vendors, ReplyRequest(thread, "", "ok"))
    ask(writer, vendors, ReplyRequest(thread, "msg_deleted", "ok", again=True))
    assert len(vendors.books.asked("openai.write")) == 2


def test_a_question_that_is_there_without_an_answer_is_not_added_again(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    """The thread contains each message of the customer once (MS-21)."""
    thread = writer.open_thread(config(vendors), SECRET)
    items = vendors.books.conversations[thread]
    items.append(vendors.books._message("user", "hello"))
    answer = ask(writer, vendors, ReplyRequest(thread, "", "hello", again=True))
    assert answer.text == "Re: hello"
    assert [item["role"] for item in items] == ["user", "assistant"]


def test_the_first_try_does_not_look_at_the_thread(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    thread = writer.open_thread(config(vendors), SECRET)
    ask(writer, vendors, ReplyRequest(thread, "", "hello"))
    assert vendors.books.asked("openai.list") == []


REFUSALS = [
    (Fault(status=401, code="invalid_api_key"), AuthenticationFailed, "invalid_api_key"),
    (Fault(status=403), AuthenticationFailed, "403"),
    (Fault(status=429, code="rate_limit_exceeded"), TransientError, "rate_limit_exceeded"),
    (Fault(status=429, code="insufficient_quota"), TransientError, "insufficient_quota"),
    (
        Fault(status=400, code="conversation_locked", param="conversation"),
        TransientError,
        "locked",
    ),
    (Fault(status=408), TransientError, "408"),
    (Fault(status=409), TransientError, "409"),
    (Fault(status=500), TransientError, "500"),
    (Fault(status=503), TransientError, "503"),
    (Fault(how="close"), TransientError, "did not respond"),
    (Fault(how="cut"), TransientError, "did not respond"),
    (Fault(how="garbage"), TransientError, "cannot be read"),
    (
        Fault(status=400, code="context_length_exceeded", param="input"),
        PermanentError,
        "context_",
    ),
    (
        Fault(status=404, code="model_not_found", param="model"),
        PermanentError,
        "model_not_found",
    ),
    (Fault(status=422), PermanentError, "422"),
]


@pytest.mark.requirement("R002-057")
@pytest.mark.parametrize(("fault", "kind", "words"), REFUSALS)
def test_each_refusal_is_translated_and_not_retried_here(
    writer: OpenAIWriter,
    vendors: VendorServer,
    fault: Fault,
    kind: type[Exception],
    words: str,
) -> None:
    """The client's own retries would take longer than the lock (MS-22)."""
    thread = writer.open_thread(config(vendors), SECRET)
    vendors.books.order("openai.write", fault, times=3)
    with pytest.raises(Exception, match=words) as caught:
        ask(writer, vendors, ReplyRequest(thread, "", "hello"))
    assert type(caught.value) is kind
    assert len(vendors.books.asked("openai.write")) == 1


@pytest.mark.requirement("R002-058")
def test_a_writer_that_does_not_answer_in_time_is_passing(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    thread = writer.open_thread(config(vendors), SECRET)
    vendors.books.order("openai.write", Fault(how="hang"))
    with pytest.raises(TransientError, match="Timeout"):
        ask(writer, vendors, ReplyRequest(thread, "", "hello"), seconds=0.2)


def test_an_unreachable_server_is_a_transient_error(writer: OpenAIWriter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(TransientError, match="cannot be reached"):
        writer.open_thread({"model": "m", "base_url": f"http://127.0.0.1:{port}/v1"}, SECRET)


@pytest.mark.parametrize("thread", ["conv_deleted", "thread_of_the_assistants", ""])
@pytest.mark.parametrize("again", [False, True])
def test_a_thread_that_is_gone_is_known_without_a_word_of_the_error_text(
    writer: OpenAIWriter, vendors: VendorServer, thread: str, again: bool
) -> None:
    """After a refusal the conversation itself is requested."""
    with pytest.raises(ThreadGone):
        ask(writer, vendors, ReplyRequest(thread, "", "hello", again))


def test_a_bare_404_of_something_else_keeps_the_thread(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    thread = writer.open_thread(config(vendors), SECRET)
    vendors.books.order("openai.write", Fault(status=404))
    with pytest.raises(PermanentError):
        ask(writer, vendors, ReplyRequest(thread, "", "hello"))


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({}, "no model"),
        ({"model": " "}, "no model"),
        ({"assistant_id": "asst_1"}, "OpenAI removed Assistants; set model"),
        ({"model": "m", "max_output_tokens": "many"}, "max_output_tokens"),
    ],
)
def test_a_config_that_cannot_work_is_refused_before_anything_is_asked(
    writer: OpenAIWriter, vendors: VendorServer, terms: dict[str, Any], words: str
) -> None:
    where = {"base_url": vendors.openai, **terms}
    with pytest.raises(PermanentError, match=words):
        writer.write(ReplyRequest("conv_1", "", "x"), where, SECRET, timeout_seconds=WAIT)
    if "model" not in terms:
        with pytest.raises(PermanentError, match=words):
            writer.open_thread(where, SECRET)
    assert vendors.books.asks == []


@pytest.mark.parametrize("key", ["", "sk-\nbad", "sk-ключ"])
def test_a_key_that_is_none_is_refused_before_it_goes_anywhere(
    writer: OpenAIWriter, vendors: VendorServer, key: str
) -> None:
    with pytest.raises(PermanentError, match="api_key"):
        writer.open_thread(config(vendors), Secret("key", {"api_key": key}))
    assert vendors.books.asks == []


def test_a_rotated_key_is_used_at_once(writer: OpenAIWriter, vendors: VendorServer) -> None:
    vendors.books.openai_key = "sk-new"
    with pytest.raises(AuthenticationFailed):
        writer.open_thread(config(vendors), SECRET)
    assert writer.open_thread(config(vendors), Secret("key", {"api_key": "sk-new"}))


def test_an_answer_that_was_cut_off_before_its_first_word_is_empty(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    thread = writer.open_thread(config(vendors), SECRET)
    vendors.books.shape = {"status": "incomplete", "output": []}
    answer = ask(writer, vendors, ReplyRequest(thread, "mark", "hello"))
    assert (answer.text, answer.thread_mark) == ("", "mark")


@pytest.mark.parametrize(
    ("code", "kind"), [("server_error", TransientError), ("invalid_prompt", PermanentError)]
)
def test_a_response_that_failed_is_no_answer(
    writer: OpenAIWriter, vendors: VendorServer, code: str, kind: type[Exception]
) -> None:
    thread = writer.open_thread(config(vendors), SECRET)
    error = {"code": code, "message": "words"}
    vendors.books.shape = {"status": "failed", "output": [], "error": error}
    with pytest.raises(kind, match=code):
        ask(writer, vendors, ReplyRequest(thread, "", "hello"))


def test_half_a_character_does_not_leave_the_writer(
    writer: OpenAIWriter, vendors: VendorServer
) -> None:
    """Such a text could be neither stored nor sent."""
    thread = writer.open_thread(config(vendors), SECRET)
    vendors.books.reply = "cut \ud83d{}".format
    for again in (False, True):
        answer = ask(writer, vendors, ReplyRequest(thread, "", "", again))
        assert answer.text == "cut ?"


def test_the_echo_writer_repeats_the_text_and_needs_no_service() -> None:
    echo = EchoWriter()
    assert echo.open_thread({}, NO_SECRET) == ""
    question = ReplyRequest("", "", "hi 👋", again=True)
    assert echo.write(question, {}, NO_SECRET, timeout_seconds=1) == WriterAnswer(
        "You said: hi 👋"
    )
