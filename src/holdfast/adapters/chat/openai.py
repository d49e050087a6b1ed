"""Replies written by OpenAI, or by a service that speaks as it does.

A thread is a Conversation, a reply one Response in it. (The Assistants of the seed are gone
from the API since August 2026.) OpenAI adds question and answer to the conversation together,
when the answer is there; so whoever asks again looks first at what came after the thread's
mark, which is all of earlier tries of the same batch:

    question and answer      that answer, nothing is asked or paid again
    the question alone       answered without adding it once more: `input` may be left out
    nothing                  asked

ai_config: model, instructions, max_output_tokens, base_url. Secret: api_key.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from holdfast.adapters.chat import openai_errors
from holdfast.adapters.chat.vendor_logs import silence_vendor_logs
from holdfast.conversations.errors import PermanentError, ThreadGone, TransientError
from holdfast.conversations.model import mark_of
from holdfast.conversations.outbox import WriterAnswer
from holdfast.conversations.ports import ReplyRequest
from holdfast.conversations.secret import Secret

_CONNECT_SECONDS = 5.0
_OPEN_SECONDS = 20.0
_PAGE = 100  # items; the most OpenAI gives at once


class OpenAIWriter:
    """Safe for threads, and for processes that were forked: each has its connections."""

    secret_fields: tuple[str, ...] = ("api_key",)

    def __init__(self) -> None:
        try:
            import openai
            import openai.resources.conversations
            import openai.resources.responses  # all that a call would import
        except ImportError:
            text = "OpenAI's replies need its library: pip install 'holdfast[openai]'"
            raise PermanentError(text) from None
        silence_vendor_logs("openai", "httpx", "httpx2", "httpcore", "httpcore2")
        self._sdk = openai
        self._clients: dict[int, Any] = {}
        self._lock = Lock()

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        _model(config)  # or a thread would be left behind that nothing is written in
        client = self._client(config, secret, _OPEN_SECONDS)
        with self._translated():
            return str(client.conversations.create().id)

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        order = _order(question, config)
        if not question.thread_id:
            raise ThreadGone("there is no thread to write in")
        client = self._client(config, secret, timeout_seconds)
        if question.again:
            earlier = self._earlier(client, question)
            if earlier.text is not None:
                return WriterAnswer(_clean(earlier.text), earlier.newest)
            if earlier.asked:
                del order["input"]
        with self._translated(client, question.thread_id):
            return _answer(client.responses.create(**order), question)

    # -- inside

    def _client(self, config: Mapping[str, Any], secret: Secret, seconds: float) -> Any:
        """No retries of its own: they would outlast the timeout, and ours know the lock."""
        options: dict[str, Any] = {"api_key": _key(secret)}
        if address := config.get("base_url"):
            options["base_url"] = address
        connect = min(_CONNECT_SECONDS, seconds)
        with self._lock:
            if (first := self._clients.get(os.getpid())) is None:
                first = self._clients[os.getpid()] = self._sdk.OpenAI(
                    api_key="-", max_retries=0
                )
        timeout = self._sdk.Timeout(seconds, connect=connect)
        return first.with_options(**options, timeout=timeout)

    @contextmanager
    def _translated(self, client: Any = None, thread_id: str = "") -> Iterator[None]:
        try:
            yield
        except self._sdk.OpenAIError as error:
            if client and openai_errors.unclear_404(error) and self._gone(client, thread_id):
                raise ThreadGone("OpenAI knows no such conversation") from None
            raise openai_errors.explained(error) from None
        except (ValueError, TypeError, AttributeError):
            # It may be in the thread all the same: asked again, it is looked for there.
            raise TransientError("OpenAI's answer cannot be read") from None

    def _gone(self, client: Any, thread_id: str) -> bool:
        try:
            client.conversations.retrieve(thread_id)
        except self._sdk.APIStatusError as error:
            return error.status_code in (400, 404)
        except self._sdk.OpenAIError:
            return False
        return False

    def _earlier(self, client: Any, question: ReplyRequest) -> "_Earlier":
        where = {"after": question.thread_mark} if question.thread_mark else {}
        items = client.conversations.items
        try:
            with self._translated():
                pages = items.list(question.thread_id, order="asc", limit=_PAGE, **where)
                return _Earlier.of(list(pages), question.text)
        except (PermanentError, ThreadGone):
            if self._gone(client, question.thread_id):
                raise ThreadGone("OpenAI knows no such conversation") from None
            # The mark is not there any more: without it an older answer might be taken.
            return _Earlier()


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What earlier tries left in the thread."""

    asked: bool = False
    text: str | None = field(default=None, repr=False)
    newest: str = ""

    @classmethod
    def of(cls, items: list[Any], wanted: str) -> "_Earlier":
        """Of the last time this text was asked."""
        asked, said = False, list[str]()
        for item in items:
            if item.type != "message" or item.status == "in_progress":
                continue
            if item.role == "user":
                asked, said = _text(item) == wanted, []
            elif item.role == "assistant" and asked:
                said.append(_text(item))
        return cls(asked, "".join(said) if said else None, items[-1].id if items else "")


def _text(message: Any) -> str:
    kinds = ("input_text", "output_text", "text")
    return "".join(one.text for one in message.content if one.type in kinds)


def _order(question: ReplyRequest, config: Mapping[str, Any]) -> dict[str, Any]:
    order = {
        "model": _model(config),
        "input": [{"role": "user", "content": question.text}],
        "conversation": question.thread_id,
        "store": True,
        "metadata": {"holdfast_batch": mark_of(question.thread_mark, question.text)},
    }
    if instructions := config.get("instructions"):
        order["instructions"] = str(instructions)
    if (most := config.get("max_output_tokens")) is not None:
        order["max_output_tokens"] = _whole("max_output_tokens", most)
    return order


def _model(config: Mapping[str, Any]) -> str:
    model = config.get("model")
    if isinstance(model, str) and model.strip():
        return model.strip()
    if config.get("assistant_id"):
        raise PermanentError(
            "ai_config has an assistant_id and no model: OpenAI's Assistants are gone; "
            "set model, and instructions to those of the assistant"
        )
    raise PermanentError("ai_config has no model")


def _whole(name: str, value: Any) -> int:
    """Stores give numbers back as texts or decimals."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise PermanentError(f"ai_config: {name} must be a whole number above 0")
    return number


def _key(secret: Secret) -> str:
    """Checked, as the HTTP client would print a header that it cannot send."""
    key = secret.reveal("api_key").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise PermanentError("the secret's api_key has characters that no key has")
    return key


def _answer(response: Any, question: ReplyRequest) -> WriterAnswer:
    """Half an answer is one: the model came to `max_output_tokens`."""
    if response.status not in ("completed", "incomplete"):
        raise openai_errors.failed(getattr(response.error, "code", None))
    newest, usage = question.thread_mark, response.usage
    if response.output:
        newest = str(response.output[-1].id)
    return WriterAnswer(
        _clean(response.output_text),
        newest,
        usage.input_tokens if usage else 0,
        usage.output_tokens if usage else 0,
    )


def _clean(text: str) -> str:
    """Half a character, as a model that is cut off may leave it, can be neither kept nor
    sent."""
    return text.encode("utf-8", "replace").decode()
