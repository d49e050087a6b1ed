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
    any other 4xx                    ThreadGone if OpenAI no longer has the conversation,
                                     else PermanentError, with its code
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    SendUnclear,
    ThreadGone,
    TransientError,
)
from holdfast.chat.model import digest_texts
from holdfast.chat.outbox import WriterAnswer
from holdfast.chat.ports import ReplyRequest, Secret
from holdfast.chat.providers.vendor_http import VendorResponse, build_request, call_vendor
from holdfast.errors import HoldfastError

_ADDRESS = "https://api.openai.com/v1"
_OPEN_SECONDS = 20.0
_PAGE = 100  # items; the maximum that OpenAI returns at once
_CODE = re.compile(r"[a-z][a-z_]{1,59}")

# The status is not enough: OpenAI returns 400 while another run uses the thread.
_TRANSIENT_CODES = frozenset({"conversation_locked", "rate_limit_exceeded", "server_error"})
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})


class OpenAIWriter:
    """A writer that uses OpenAI. It is safe for threads and for forked processes."""

    secret_fields: tuple[str, ...] = ("api_key",)

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """Create a conversation at OpenAI and return its id."""
        _get_model(config)  # checked first, or an unused thread would be left behind
        with _reading():
            return str(_Api(config, secret, _OPEN_SECONDS).call("/conversations", {})["id"])

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
        api = _Api(config, secret, timeout_seconds, question.thread_id)
        with _reading():
            if question.again:
                earlier = _find_earlier(api, question)
                if earlier.text is not None:
                    return WriterAnswer(_clean(earlier.text), earlier.newest)
                if earlier.asked:
                    del request["input"]
            return _parse_response(api.call("/responses", request), question)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, ValueError, TypeError, AttributeError):
        # The answer may be in the thread, where the next attempt looks for it.
        raise TransientError("OpenAI's response cannot be read") from None


@dataclass(frozen=True, slots=True)
class _Api:
    """OpenAI's API for one request, which may be about one conversation."""

    config: Mapping[str, Any]
    secret: Secret
    timeout_seconds: float
    thread_id: str = ""

    @property
    def thread_path(self) -> str:
        """Return the path of the conversation."""
        return f"/conversations/{quote(self.thread_id, safe='')}"

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Post the body, or without one read, and return the response.

        After a refusal that may be about the conversation, it is asked whether OpenAI still
        has that. Raises the errors of the table above.
        """
        response = self._request(path, body)
        if response.is_success:
            return response.data
        error = _translate_refusal(response)
        if isinstance(error, PermanentError) and self.thread_id and self._is_gone():
            raise ThreadGone("OpenAI does not know this conversation")
        raise error

    def _is_gone(self) -> bool:
        return self._request(self.thread_path).status in (400, 404)

    def _request(self, path: str, body: Mapping[str, Any] | None = None) -> VendorResponse:
        address = self.config.get("base_url") or os.environ.get("OPENAI_BASE_URL") or _ADDRESS
        headers = {"Authorization": f"Bearer {_check_key(self.secret)}"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        request = build_request(str(address), path, headers, data)
        try:
            return call_vendor("OpenAI", request, self.timeout_seconds)
        except SendUnclear as error:
            raise TransientError(str(error)) from None


def _find_earlier(api: _Api, question: ReplyRequest) -> "_Earlier":
    items: list[Any] = []
    mark, has_more = question.thread_mark, True
    try:
        while has_more:
            query = {"order": "asc", "limit": _PAGE} | ({"after": mark} if mark else {})
            page = api.call(f"{api.thread_path}/items?{urlencode(query)}")
            items += page["data"]
            has_more = bool(page.get("has_more"))
            mark = page["last_id"] if has_more else ""
    except PermanentError:
        # The mark no longer exists. Without it an older answer might be returned.
        return _Earlier()
    return _Earlier.from_items(items, question.text)


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
            if item["type"] != "message" or item.get("status") == "in_progress":
                continue
            if item["role"] == "user":
                asked, answers = _join_text(item) == wanted, []
            elif item["role"] == "assistant" and asked:
                answers.append(_join_text(item))
        newest = items[-1]["id"] if items else ""
        return cls(asked, "".join(answers) if answers else None, newest)


def _join_text(message: Mapping[str, Any]) -> str:
    kinds = ("input_text", "output_text", "text")
    return "".join(item["text"] for item in message["content"] if item["type"] in kinds)


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


def _parse_response(response: Mapping[str, Any], question: ReplyRequest) -> WriterAnswer:
    """Return the answer, also if it is incomplete because of `max_output_tokens`."""
    if response["status"] not in ("completed", "incomplete"):
        raise _translate_failure((response.get("error") or {}).get("code"))
    output, usage = response["output"], response.get("usage") or {}
    messages = [item for item in output if item["type"] == "message"]
    return WriterAnswer(
        _clean("".join(map(_join_text, messages))),
        str(output[-1]["id"]) if output else question.thread_mark,
        int(usage.get("input_tokens", 0)),
        int(usage.get("output_tokens", 0)),
    )


def _clean(text: str) -> str:
    """Replace incomplete characters, which can be neither stored nor sent.

    A model whose output is cut off may leave one at the end.
    """
    return text.encode("utf-8", "replace").decode()


# -- errors


def _translate_refusal(response: VendorResponse) -> HoldfastError:
    """Return the Holdfast error for a response that is not a success."""
    details = response.data.get("error")
    status = response.status
    code = _show_code(details.get("code") if isinstance(details, dict) else None)
    text = f"OpenAI refused: {status} {code}".rstrip()
    if status in (401, 403):
        return AuthenticationFailed(text)
    if code == "insufficient_quota":
        return TransientError(f"{text}: the account has no credit left")
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUS or status >= 500:
        return TransientError(text)
    return PermanentError(text)


def _translate_failure(code: object) -> HoldfastError:
    """Return the error for a response that OpenAI accepted and then failed to write."""
    text = f"OpenAI failed to write: {_show_code(code) or 'no code'}"
    is_transient = code is None or code in _TRANSIENT_CODES
    return TransientError(text) if is_transient else PermanentError(text)


def _show_code(code: object) -> str:
    """Return the error's code, or '' if it does not look like one.

    Another service may put any text there, and that must not be shown.
    """
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""
