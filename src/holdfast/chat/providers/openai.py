"""Replies written by OpenAI, or by a service with the same API.

A thread is a Conversation, and a reply is one Response in it. (OpenAI removed Assistants from
the API in August 2026.) OpenAI adds question and answer to the conversation together, when
the answer is complete. So a repeated request first inspects the items after the thread's
mark, which all come from earlier attempts at the same batch:

    question and answer      return that answer; nothing is asked or paid for again. Its
                             tokens count as 0, because they were lost with the response
    only the question        have it answered without adding it again: `input` may be omitted
    nothing                  ask

ai_config: model, instructions, max_output_tokens, base_url. Secret: api_key.

OpenAI's errors are translated by this table. Codes are matched, never texts. Errors and logs
contain only codes, because the vendor's texts repeat keys and bodies.

    401 403                          AuthenticationFailed
    conversation_locked              TransientError: an earlier attempt is still running
    408 409 429 5xx, no response     TransientError
    insufficient_quota               TransientError, because the account can be topped up
    no such conversation             ThreadGone
    any other 4xx                    PermanentError, with its code
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    ThreadGone,
    TransientError,
)
from holdfast.chat.model import digest_texts
from holdfast.chat.outbox import WriterAnswer
from holdfast.chat.ports import ReplyRequest, Secret
from holdfast.chat.providers import silence_vendor_logs
from holdfast.errors import HoldfastError
from holdfast.version import format_install_command

_CONNECT_SECONDS = 5.0
_OPEN_SECONDS = 20.0
_PAGE = 100  # items; the maximum that OpenAI returns at once
_CODE = re.compile(r"[a-z][a-z_]{1,59}")

# The status is not enough: OpenAI returns 400 while another run uses the thread.
_TRANSIENT_CODES = frozenset({"conversation_locked", "rate_limit_exceeded", "server_error"})
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})


class OpenAIWriter:
    """A writer that uses OpenAI. It is safe for threads and for forked processes.

    Each process has connections of its own.
    """

    secret_fields: tuple[str, ...] = ("api_key",)

    def __init__(self) -> None:
        try:
            import openai
            import openai.resources.conversations
            import openai.resources.responses  # everything that a call would import
        except ImportError:
            text = f"replies by OpenAI need its library: {format_install_command('openai')}"
            raise PermanentError(text) from None
        silence_vendor_logs("openai", "httpx", "httpx2", "httpcore", "httpcore2")
        self._sdk = openai
        self._clients: dict[int, Any] = {}
        self._lock = Lock()

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """Create a conversation at OpenAI and return its id."""
        _get_model(config)  # checked first, or an unused thread would be left behind
        client = self._client(config, secret, _OPEN_SECONDS)
        with self._translate_errors():
            return str(client.conversations.create().id)

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        """Return OpenAI's reply, or the one that an earlier attempt left in the thread."""
        request = _build_request(question, config)
        if not question.thread_id:
            raise ThreadGone("there is no thread to write in")
        client = self._client(config, secret, timeout_seconds)
        if question.again:
            earlier = self._find_earlier(client, question)
            if earlier.text is not None:
                return WriterAnswer(_clean(earlier.text), earlier.newest)
            if earlier.asked:
                del request["input"]
        with self._translate_errors(client, question.thread_id):
            return _parse_response(client.responses.create(**request), question)

    # -- the calls

    def _client(self, config: Mapping[str, Any], secret: Secret, seconds: float) -> Any:
        """Return a client that does not retry.

        Its retries would exceed the timeout, and Holdfast's retries respect the lock.
        """
        options: dict[str, Any] = {"api_key": _check_key(secret)}
        if address := config.get("base_url"):
            options["base_url"] = address
        connect = min(_CONNECT_SECONDS, seconds)
        with self._lock:
            if (shared := self._clients.get(os.getpid())) is None:
                shared = self._clients[os.getpid()] = self._sdk.OpenAI(
                    api_key="-", max_retries=0
                )
        timeout = self._sdk.Timeout(seconds, connect=connect)
        return shared.with_options(**options, timeout=timeout)

    @contextmanager
    def _translate_errors(self, client: Any = None, thread_id: str = "") -> Iterator[None]:
        try:
            yield
        except self._sdk.OpenAIError as error:
            if client and _is_unclear_404(error) and self._is_gone(client, thread_id):
                raise ThreadGone("OpenAI does not know this conversation") from None
            raise _translate_error(error) from None
        except (ValueError, TypeError, AttributeError):
            # The answer may be in the thread, where the next attempt looks for it.
            raise TransientError("OpenAI's response cannot be read") from None

    def _is_gone(self, client: Any, thread_id: str) -> bool:
        try:
            client.conversations.retrieve(thread_id)
        except self._sdk.APIStatusError as error:
            return error.status_code in (400, 404)
        except self._sdk.OpenAIError:
            return False
        return False

    def _find_earlier(self, client: Any, question: ReplyRequest) -> "_Earlier":
        position = {"after": question.thread_mark} if question.thread_mark else {}
        items = client.conversations.items
        try:
            with self._translate_errors():
                pages = items.list(question.thread_id, order="asc", limit=_PAGE, **position)
                return _Earlier.from_items(list(pages), question.text)
        except (PermanentError, ThreadGone):
            if self._is_gone(client, question.thread_id):
                raise ThreadGone("OpenAI does not know this conversation") from None
            # The mark no longer exists. Without it an older answer might be returned.
            return _Earlier()


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What earlier attempts left in the thread."""

    asked: bool = False
    text: str | None = field(default=None, repr=False)
    newest: str = ""

    @classmethod
    def from_items(cls, items: list[Any], wanted: str) -> "_Earlier":
        """Return the result of the last time this text was asked."""
        asked, answers = False, list[str]()
        for item in items:
            if item.type != "message" or item.status == "in_progress":
                continue
            if item.role == "user":
                asked, answers = _join_text(item) == wanted, []
            elif item.role == "assistant" and asked:
                answers.append(_join_text(item))
        return cls(asked, "".join(answers) if answers else None, items[-1].id if items else "")


def _join_text(message: Any) -> str:
    kinds = ("input_text", "output_text", "text")
    return "".join(item.text for item in message.content if item.type in kinds)


def _build_request(question: ReplyRequest, config: Mapping[str, Any]) -> dict[str, Any]:
    request = {
        "model": _get_model(config),
        "input": [{"role": "user", "content": question.text}],
        "conversation": question.thread_id,
        "store": True,
        "metadata": {"holdfast_batch": digest_texts(question.thread_mark, question.text)},
    }
    if instructions := config.get("instructions"):
        request["instructions"] = str(instructions)
    if (max_tokens := config.get("max_output_tokens")) is not None:
        request["max_output_tokens"] = _to_count("max_output_tokens", max_tokens)
    return request


def _get_model(config: Mapping[str, Any]) -> str:
    model = config.get("model")
    if isinstance(model, str) and model.strip():
        return model.strip()
    if config.get("assistant_id"):
        raise PermanentError(
            "ai_config has an assistant_id and no model: OpenAI removed Assistants; "
            "set model, and instructions to those of the assistant"
        )
    raise PermanentError("ai_config has no model")


def _to_count(name: str, value: Any) -> int:
    """Convert a number, which stores may return as text or as a decimal."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise PermanentError(f"ai_config: {name} must be a whole number above 0")
    return number


def _check_key(secret: Secret) -> str:
    """Return the key, checked because the HTTP client would print a header it cannot send."""
    key = secret.reveal("api_key").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise PermanentError(
            "the secret's api_key has characters that are not allowed in a key"
        )
    return key


def _parse_response(response: Any, question: ReplyRequest) -> WriterAnswer:
    """Return the answer, also if it is incomplete because of `max_output_tokens`."""
    if response.status not in ("completed", "incomplete"):
        raise _translate_failure(getattr(response.error, "code", None))
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
    """Replace incomplete characters, which can be neither stored nor sent.

    A model whose output is cut off may leave one at the end.
    """
    return text.encode("utf-8", "replace").decode()


# -- errors


def _translate_error(error: Exception) -> HoldfastError:
    """Return the Holdfast error for an error of one call."""
    status, code = _get_status(error), _get_code(error)
    text = f"OpenAI refused: {status} {code}".rstrip()
    if status is None:
        return TransientError(f"OpenAI did not respond: {type(error).__name__}")
    if status in (401, 403):
        return AuthenticationFailed(text)
    if code == "insufficient_quota":
        return TransientError(f"{text}: the account has no credit left")
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUS or status >= 500:
        return TransientError(text)
    if _is_thread_missing(error, status, code):
        return ThreadGone(text)
    return PermanentError(text)


def _translate_failure(code: str | None) -> HoldfastError:
    """Return the error for a response that OpenAI accepted and then failed to write."""
    shown_code = code if code and _CODE.fullmatch(code) else "no code"
    text = f"OpenAI failed to write: {shown_code}"
    return (
        TransientError(text)
        if code is None or code in _TRANSIENT_CODES
        else PermanentError(text)
    )


def _is_unclear_404(error: Exception) -> bool:
    """Check whether a 404 does not say what is missing, the model or the conversation."""
    return _get_status(error) == 404 and not _get_code(error) and not _get_param(error)


def _is_thread_missing(error: Exception, status: int, code: str) -> bool:
    """Check for a deleted thread, or for a `thread_…` id of the former Assistants API."""
    names_thread = _get_param(error).startswith("conversation")
    if status == 404:
        return names_thread or code == "conversation_not_found"
    return status == 400 and names_thread and code == "invalid_value"


def _get_status(error: Exception) -> int | None:
    status: Any = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _get_code(error: Exception) -> str:
    """Return the error's code, or '' if it does not look like one.

    Another service may put any text there, and that must not be shown.
    """
    code: Any = getattr(error, "code", None)
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _get_param(error: Exception) -> str:
    param: Any = getattr(error, "param", None)
    return param if isinstance(param, str) else ""
