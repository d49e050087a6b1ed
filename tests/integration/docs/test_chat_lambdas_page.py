"""docs/how-to/answer-customers.md matches the code: names, numbers, permissions."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient

from holdfast.chat.lambdas.runtime import RESERVE_SECONDS, ChatRuntime, max_batch_seconds
from holdfast.chat.lambdas.webhook import StagingFunction
from holdfast.chat.policy import ConversationPolicy
from holdfast.chat.settings import ChatSettings
from holdfast.settings import read_settings
from support.chat.chat_environment import Place, place, post
from support.paths import ROOT

PAGE = (ROOT / "docs/how-to/answer-customers.md").read_text()
SETTINGS, PROFILES, POLICY = (
    json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)
)


def test_its_settings_and_profiles_are_such(tmp_path: Path) -> None:
    (tmp_path / "profiles.json").write_text(json.dumps(PROFILES))
    settings = read_settings(
        ChatSettings, SETTINGS | {"HOLDFAST_CHAT_PROFILES": str(tmp_path / "profiles.json")}
    )
    assert [address for address, _ in settings.profiles] == list(PROFILES)
    read = {name: getattr(settings, name) for name in type(settings).model_fields}
    named = {name.removeprefix("HOLDFAST_CHAT_").lower() for name in SETTINGS}
    assert named <= read.keys()


def test_its_handlers_are_there() -> None:
    from importlib import import_module

    named = set(re.findall(r"holdfast\.lambdas\.(\w+)\.handler", PAGE))
    assert named == {"staging", "messaging", "sweeping"}
    assert all(callable(import_module(f"holdfast.lambdas.{name}").handler) for name in named)


def test_its_timeouts_are_those_of_the_code() -> None:
    policy = ConversationPolicy()
    needed = max_batch_seconds(policy) + RESERVE_SECONDS
    assert f"({needed:.0f} by default)" in PAGE
    more = needed - policy.writer_seconds - policy.sender_seconds
    assert f"`HOLDFAST_CHAT_SENDER_SECONDS` + {more:.0f}" in PAGE
    [timeout] = re.findall(r"messaging\.handler\n    Timeout: (\d+)", PAGE)
    assert int(timeout) > needed
    visibility = f"six times the timeout of messaging: {6 * int(timeout)} with {timeout}"
    assert visibility in PAGE


def test_every_call_of_the_functions_is_in_the_policy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with place(str(tmp_path)) as around, record_actions() as calls:
        run_everything(around)
    allowed = {action for item in POLICY["Statement"] for action in item["Action"]}
    assert calls
    assert calls - allowed == set()
    larger = {
        "dynamodb:ConditionCheckItem"
    }  # used only for larger batches, which are parked in parts
    assert allowed - calls <= larger


def run_everything(around: Place) -> None:
    chat = ChatRuntime(around.env | {"HOLDFAST_CHAT_GRACE_SECONDS": "0.001"})
    staging, messaging = StagingFunction(chat), chat.answer_batch
    for sid in ("SM1", "SM2"):
        assert staging(post(around.form(sid)), None)["statusCode"] == 200
    around.send("no JSON")
    event = around.receive()
    with count_calls():
        messaging(event, None)
        assert staging(post(around.form("SM1")), None)["statusCode"] == 200  # once more
    event = around.receive()
    with count_calls():
        messaging(event, None)
        no_profiles = {"HOLDFAST_CHAT_PROFILES": "{}"}
        StagingFunction(ChatRuntime(around.env | no_profiles))(
            post(around.form(From="+4915777")), None
        )
    event = around.receive("sms")
    with count_calls():
        messaging(event, None)
        staging(post(around.form("SM3")), None)
        chat.sweep({}, None)
    around.send(json.dumps({"message_sid": "SM4"}), "inbound")
    event = around.receive("inbound")
    with count_calls():
        staging(event, None)


_counting: list[bool] = []


@contextmanager
def count_calls() -> Iterator[None]:
    """Count the calls in this block, which the functions make."""
    _counting.append(True)
    try:
        yield
    finally:
        _counting.pop()


@contextmanager
def record_actions() -> Iterator[set[str]]:
    """Record the IAM actions of the calls that botocore makes."""
    seen: set[str] = set()
    call = BaseClient._make_api_call

    def noted(self: Any, operation: str, arguments: dict[str, Any]) -> Any:
        if _counting:
            service = self.meta.service_model.service_name
            seen.update(f"{service}:{action}" for action in _actions(operation, arguments))
        return call(self, operation, arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BaseClient, "_make_api_call", noted)
        yield seen


def _actions(operation: str, arguments: dict[str, Any]) -> set[str]:
    """A transaction needs the permissions of its parts, and an SQS batch that of one call."""
    if operation == "TransactWriteItems":
        kinds = {kind for item in arguments["TransactItems"] for kind in item}
        return {f"{kind}Item" for kind in kinds}
    sqs = ("ChangeMessageVisibilityBatch", "DeleteMessageBatch", "SendMessageBatch")
    return {operation.removesuffix("Batch") if operation in sqs else operation}
