"""`holdfast chat doctor` tries the webhook: the real function behind a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.chat.checks import examine_conversations
from holdfast.chat.lambdas import ChatRuntime
from holdfast.chat.lambdas.webhook import StagingFunction
from holdfast.doctor.checks import CheckLevel, CheckResult
from support.http_server import Ask, LoopbackServer, Route, Wire, redirect, status

URL, SECRET = "HOLDFAST_CHAT_WEBHOOK_URL", "HOLDFAST_CHAT_TWILIO_SECRET"
TOKEN = "canary-token"


def make_secret(token: str) -> str:
    return json.dumps({"account_sid": "AC1", "auth_token": token})


class Webhook:
    """The staging function behind a URL, with settings that may differ from doctor's."""

    def __init__(self, server: LoopbackServer, folder: Path) -> None:
        self.env = {
            "HOLDFAST_DATA_DIR": str(folder),
            URL: f"{server.on('/twilio', self.answer)}?shop=1",
            SECRET: "env:TWILIO",
            "TWILIO": make_secret(TOKEN),
        }
        self.deployed: dict[str, str] = {}
        self.statuses: list[int] = []

    def answer(self, ask: Ask, wire: Wire) -> None:
        event = {
            "version": "2.0",
            "rawPath": ask.path,
            "rawQueryString": ask.query,
            "headers": ask.headers,
            "requestContext": {
                "domainName": "abc.lambda-url.example.com",
                "http": {"method": ask.method},
            },
            "body": ask.body.decode(),
        }
        response = StagingFunction(ChatRuntime(self.env | self.deployed))(event, None)
        self.statuses.append(response["statusCode"])
        body = response["body"].encode()
        wire.head(f"{response['statusCode']} x", f"Content-Length: {len(body)}")
        wire.send(body)

    def examine(self, **changes: Any) -> CheckResult:
        """Return what doctor says about the webhook. Each change is of its own environment."""
        env = {k: v for k, v in (self.env | changes).items() if v is not None}
        [result] = [
            each for each in examine_conversations("chat", env) if each.check == "webhook"
        ]
        assert "shop=1" not in result.found + result.remedy
        assert TOKEN not in result.found + result.remedy
        return result

    def require_failure(self, words: str, **changes: Any) -> None:
        result = self.examine(**changes)
        assert (result.level, words in result.found) == (CheckLevel.FAIL, True), result


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Webhook]:
    with LoopbackServer() as server:
        yield Webhook(server, tmp_path)


def test_a_signed_request_is_accepted_and_stages_nothing(
    webhook: Webhook, capsys: pytest.CaptureFixture[str]
) -> None:
    assert webhook.examine().level is CheckLevel.OK
    assert webhook.statuses == [200]
    assert "fragment_staged" not in capsys.readouterr().out


def test_doctor_says_whether_the_url_or_the_token_is_wrong(webhook: Webhook) -> None:
    webhook.deployed = {URL: "https://another.example.org/twilio"}
    webhook.require_failure("the URL is wrong: the function has this token")
    webhook.deployed = {"TWILIO": make_secret("another")}
    webhook.require_failure("the token is wrong")
    assert webhook.statuses == [403, 421, 403, 403]


def test_a_function_that_cannot_answer_is_a_failure(webhook: Webhook) -> None:
    webhook.deployed = {"TWILIO": "{}"}
    webhook.require_failure("the function answers 503")


@pytest.mark.parametrize(
    "route",
    [
        status("404 Not Found"),
        status("200 OK", body=b"<html>"),
        status("403 Forbidden", body=b"denied"),  # a firewall's, not the function's
        redirect("/"),
    ],
)
def test_a_url_of_something_else_is_a_failure(tmp_path: Path, route: Route) -> None:
    with LoopbackServer() as server:
        webhook = Webhook(server, tmp_path)
        server.on("/twilio", route)
        webhook.require_failure("the URL is wrong: its response")


def test_a_url_that_cannot_be_tried_is_a_warning_without_the_url(webhook: Webhook) -> None:
    for url in ("http://127.0.0.1:1", "https://host:port", "https://[", "http://127.0.0.1/a b"):
        assert webhook.examine(**{URL: f"{url}/?shop=1"}).level is CheckLevel.WARN


def test_a_token_that_is_missing_is_a_failure_and_no_webhook_is_none(webhook: Webhook) -> None:
    webhook.require_failure("has no 'auth_token'", TWILIO="{}")
    webhook.require_failure(f"{SECRET} is not, so", **{SECRET: None})
    assert webhook.examine(**{URL: None}).level is CheckLevel.OK
    assert webhook.examine(**{URL: None, SECRET: None}).found == "none is set"
    assert webhook.statuses == []
