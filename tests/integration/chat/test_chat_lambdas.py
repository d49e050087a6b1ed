"""The three functions of conversations, each called as Lambda calls it, on moto: what they
answer, what they store, and what they never tell (MS-24, I-MS-8, I-MS-9)."""

import hmac
import json
import logging
import re
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from threading import enumerate as enumerate_threads
from threading import stack_size
from traceback import format_exception
from typing import Any
from urllib.parse import urlencode

import boto3
import pytest
from botocore.client import BaseClient
from moto import mock_aws

from holdfast.aws.lambdas.batch import EntryPoint
from holdfast.chat.dynamodb import DynamoDBConversations, create_tables
from holdfast.chat.errors import TransientError
from holdfast.chat.lambdas import ChatRuntime, source_settings
from holdfast.chat.lambdas.webhook import StagingFunction
from holdfast.chat.messages import Trigger
from holdfast.chat.model import Conversation, ConversationKey, digest_texts
from holdfast.errors import HoldfastError, QueueUnavailable, StoreUnavailable
from holdfast.lease.clock import SYSTEM_CLOCK
from support.aws.event_source import LambdaContext, delete_records, receive_event
from support.paths import ROOT
from support.telemetry.emf_lines import find_lines, get_labels, get_values

TOKEN = "canary-twilio-token"
SHOP = "whatsapp:+4930999888"
WEBHOOK = "https://chat.example.org/twilio"  # the URL configured at Twilio, in front of …
INTERNAL = "abc.lambda-url.example.com"
SECRET = {"account_sid": "AC123", "auth_token": TOKEN}
QUEUES = ("dead", "whatsapp", "sms", "email", "inbound")
_POLICY = {
    "deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead",
    "maxReceiveCount": "20",
}
REDRIVEN = {"RedrivePolicy": json.dumps(_POLICY), "VisibilityTimeout": "3600"}
PAGE = (ROOT / "docs/how-to/answer-customers.md").read_text()


# -- the environment of the functions, on moto in this process


def time_left(seconds: float = 900.0) -> LambdaContext:
    return LambdaContext(SYSTEM_CLOCK, seconds)


def failed(answer: Any) -> list[str]:
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def signature_of(data: dict[str, str], url: str = WEBHOOK, token: str = TOKEN) -> str:
    """Sign as Twilio's documentation describes it, without its library."""
    signed = url + "".join(name + data[name] for name in sorted(data))
    return b64encode(hmac.digest(token.encode(), signed.encode(), "sha1")).decode()


def post(
    data: dict[str, str],
    *,
    signature: str | None = None,
    body: str | None = None,
    base64: bool = False,
    path: str = "/twilio",
    query: str = "",
    content_type: str = "application/x-www-form-urlencoded; charset=UTF-8",
) -> dict[str, Any]:
    """Return a POST as an HTTP API or a function URL passes it to Lambda."""
    text = urlencode(data) if body is None else body
    return {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": query,
        "headers": {
            "content-type": content_type,
            "host": INTERNAL,
            "x-twilio-signature": signature_of(data) if signature is None else signature,
        },
        "requestContext": {
            "domainName": INTERNAL,
            "http": {"method": "POST", "path": path},
        },
        "body": b64encode(text.encode()).decode() if base64 else text,
        "isBase64Encoded": base64,
    }


@dataclass
class Place:
    """Tables, queues and the secret.

    `env` is the environment of the functions. After `begin`, `customer` is used by no other
    test.
    """

    sqs: Any
    dynamodb: Any
    secrets: Any
    env: dict[str, str]
    number: int = 4915112340000

    def begin(self) -> None:
        """Start with empty queues, a new customer and the usual token."""
        self.number += 1
        for name in QUEUES:
            self.delete(self.receive(name))
        self.rotate(TOKEN)

    @property
    def customer(self) -> str:
        return f"whatsapp:+{self.number}"

    @property
    def key(self) -> ConversationKey:
        return ConversationKey(self.customer, digest_texts(SHOP, self.customer))

    def form(self, sid: str = "SM1", **fields: str) -> dict[str, str]:
        """Return a form as Twilio sends it, with used and unused fields."""
        usual = {
            "MessageSid": sid,
            "From": self.customer,
            "To": SHOP,
            "Body": "hello",
            "NumMedia": "0",
            "AccountSid": "AC123",
            "ProfileName": "Ada",
        }
        return usual | fields

    @property
    def store(self) -> DynamoDBConversations:
        return DynamoDBConversations(client=self.dynamodb)

    def conversation(self) -> Conversation | None:
        return self.store.get(self.key)

    def staged(self) -> list[str]:
        return sorted(
            record.message_sid for record in self.store.staged(self.key.conversation_id)
        )

    def sent(self) -> list[str]:
        """Return the replies to the customer in the outbox, in order."""
        folder = Path(self.env["HOLDFAST_CHAT_OUTBOX"])
        texts = (file.read_text() for file in sorted(folder.rglob("*")) if file.is_file())
        return [text for text in texts if str(self.number) in text]

    def rotate(self, token: str) -> None:
        text = json.dumps(SECRET | {"auth_token": token})
        self.secrets.put_secret_value(SecretId="twilio", SecretString=text)

    def url(self, name: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=name)["QueueUrl"])

    def send(self, body: str, queue: str = "whatsapp") -> None:
        self.sqs.send_message(QueueUrl=self.url(queue), MessageBody=body)

    def receive(self, queue: str = "whatsapp") -> dict[str, Any]:
        """Return an event with all visible messages, like an event source mapping."""
        return receive_event(self.sqs, self.url(queue))

    def invoke(self, function: Any, event: dict[str, Any], seconds: float = 900) -> list[str]:
        """Invoke the function, delete what did not fail, and return the failures."""
        answer = function(event, time_left(seconds))
        assert set(answer) == {"batchItemFailures"}
        failures = failed(answer)
        self.delete(event, keep=failures)
        return failures

    def delete(self, event: dict[str, Any], keep: Iterable[str] = ()) -> None:
        for record in event["Records"][:1]:  # all are from one queue
            url = self.url(record["eventSourceARN"].rpartition(":")[2])
            delete_records(self.sqs, url, event, keep)

    def count(self, queue: str) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)


def make_environment(outbox: str) -> dict[str, str]:
    channel = {"provider": "outbox", "whatsapp_credentials_id": "twilio"}
    profile = {"channel_config": channel, "ai_config": {"provider": "echo"}}
    return {
        "HOLDFAST_CHAT_STORE": "dynamodb:",
        "HOLDFAST_CHAT_WHATSAPP_QUEUE": "sqs:whatsapp",
        "HOLDFAST_CHAT_SMS_QUEUE": "sqs:sms",
        "HOLDFAST_CHAT_EMAIL_QUEUE": "sqs:email",
        "HOLDFAST_CHAT_INBOUND_QUEUE": "sqs:inbound",
        "HOLDFAST_CHAT_TWILIO_SECRET": "twilio",
        "HOLDFAST_CHAT_WEBHOOK_URL": WEBHOOK,
        "HOLDFAST_CHAT_PROFILES": json.dumps({"*": profile}),
        "HOLDFAST_CHAT_OUTBOX": outbox,
        "HOLDFAST_CHAT_WINDOW_SECONDS": "0",
        "HOLDFAST_CHAT_QUIET_SECONDS": "0",
        "HOLDFAST_CHAT_MAX_WAIT_SECONDS": "0",
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patched, mock_aws():
        patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
        clients = (boto3.client(name) for name in ("sqs", "dynamodb", "secretsmanager"))
        place = Place(*clients, env=make_environment(str(tmp_path_factory.mktemp("outbox"))))
        create_tables(place.dynamodb)
        for name in QUEUES:
            attributes = {"VisibilityTimeout": "0"} if name == "dead" else REDRIVEN
            place.sqs.create_queue(QueueName=name, Attributes=attributes)
        place.secrets.create_secret(Name="twilio", SecretString=json.dumps(SECRET))
        yield place


@pytest.fixture
def around(world: Place) -> Place:
    world.begin()
    return world


@pytest.fixture(scope="module")
def messaging(world: Place) -> EntryPoint:
    return ChatRuntime(world.env).answer_batch


@pytest.fixture(scope="module")
def staging(world: Place) -> StagingFunction:
    return StagingFunction(ChatRuntime(world.env))


def status(function: StagingFunction, event: Any) -> int:
    return int(function(event, None)["statusCode"])


def read_logs(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> str:
    """Return everything that was logged or printed, including tracebacks."""
    out, err = capsys.readouterr()
    return out + err + caplog.text


MEASURED = {"HOLDFAST_EMF_NAMESPACE": "shop"}


def count_webhooks(printed: str) -> dict[str, float]:
    """Return the counts of webhooks: the totals by their names, the others by reason."""
    return {
        get_labels(line).get("reason", name): value
        for line in find_lines(printed)
        for name, value in get_values(line).items()
        if name.startswith("chat.webhook")
    }


# -- staging: the webhook


def test_a_signed_request_is_staged_and_answered_with_an_empty_response(
    around: Place, staging: StagingFunction
) -> None:
    assert staging(post(around.form()), None) == {
        "statusCode": 200,
        "headers": {"Content-Type": "text/xml"},
        "body": '<?xml version="1.0" encoding="UTF-8"?><Response></Response>',
        "isBase64Encoded": False,
    }
    assert around.staged() == ["SM1"]
    [record] = around.receive()["Records"]
    trigger = json.loads(record["body"])
    assert trigger["conversation_id"] == around.key.conversation_id
    assert trigger["primary_channel"] == around.customer
    window = around.store.window(around.key.conversation_id)
    assert window is not None
    assert window.trigger_id == trigger["id"]


@pytest.mark.requirement("R002-010")
def test_only_the_first_of_a_window_sends_a_trigger_and_a_webhook_may_come_twice(
    around: Place, staging: StagingFunction
) -> None:
    for sid in ("SM1", "SM1", "SM2"):
        assert status(staging, post(around.form(sid), base64=True)) == 200
    assert around.staged() == ["SM1", "SM2"]
    assert len(around.receive()["Records"]) == 1


def test_the_url_is_that_of_the_request_where_none_is_set(around: Place) -> None:
    env = {k: v for k, v in around.env.items() if k != "HOLDFAST_CHAT_WEBHOOK_URL"}
    staging, data = StagingFunction(ChatRuntime(env)), around.form()
    signature = signature_of(data, f"https://{INTERNAL}/hook?a=1")
    event = post(data, signature=signature, path="/hook", query="a=1")
    assert status(staging, event | {"rawQueryString": ""}) == 403
    assert status(staging, event) == 200


def test_an_unsigned_request_is_refused_without_a_reason_and_not_stored(
    around: Place, staging: StagingFunction
) -> None:
    data = around.form()
    for event in (
        post(data, signature=""),
        post(data, signature="forged"),
        post(data, signature=signature_of(data, token="another-token")),
        post(data, signature=signature_of(data, url="https://another.example.org/")),
        post(data | {"Body": "changed"}, signature=signature_of(data)),
        # After a 503 Twilio would repeat these, and call the fallback URL.
        *(post(data, signature=odd) for odd in ("\ud800", "ä" * 28, "s" * 1_000_000)),
    ):
        answer = staging(event, None)
        assert (answer["statusCode"], answer["body"]) == (403, "")
    assert around.staged() == []
    assert around.conversation() is None
    assert around.receive()["Records"] == []


def test_a_rotated_token_is_good_at_once(around: Place) -> None:
    staging = StagingFunction(ChatRuntime(around.env))
    assert status(staging, post(around.form())) == 200
    around.rotate("another")
    data = around.form("SM2")
    assert status(staging, post(data, signature=signature_of(data, token="another"))) == 200
    assert around.staged() == ["SM1", "SM2"]


def test_media_alone_is_staged_and_an_empty_message_is_thanked_for(
    around: Place, staging: StagingFunction, capsys: Any, caplog: Any
) -> None:
    assert status(staging, post(around.form(Body=""))) == 200
    assert "inbound_refused" in read_logs(capsys, caplog)
    assert around.staged() == []
    picture = around.form("SM2", Body="", NumMedia="1", MediaContentType0="image/png")
    assert status(staging, post(picture)) == 200
    assert around.staged() == ["SM2"]


@pytest.mark.requirement("R002-007")
def test_an_unanswerable_message_is_refused_and_not_stored(
    around: Place, staging: StagingFunction
) -> None:
    data = around.form()
    without_sid = {name: data[name] for name in data if name != "MessageSid"}
    events: list[Any] = [
        post(data, body="no form at all"),
        post(data, content_type="application/json"),
        post(data) | {"isBase64Encoded": True},
        post(data, body="Body=1&Body=2"),
        post(data, body="Body=%ff"),
        post(without_sid),
        post(data | {"MessageSid": "SM\x00"}),
        post(data | {"Body": "x" * 64_001}),
        post(data | {"NumMedia": "99"}),
        {"requestContext": {"http": {"method": "POST"}}, "body": 7},
        None,
        "text",
        {"httpMethod": ["POST"]},
    ]
    assert [status(staging, event) for event in events] == [400] * len(events)
    assert around.staged() == []
    assert around.conversation() is None


def test_incomplete_characters_in_a_request_are_refused_and_not_logged(
    around: Place, staging: StagingFunction, capsys: Any, caplog: Any
) -> None:
    half, good = "\ud800", post(around.form())
    events = [
        post(around.form(), path=f"/{half}", signature="forged"),
        post(around.form(), content_type=half),
        good | {"body": half},
        good | {"body": half, "isBase64Encoded": True},
        good | {"requestContext": {"http": {"method": half}}},
    ]
    assert [status(staging, event) for event in events] == [403, 400, 400, 400, 405]
    logs = read_logs(capsys, caplog)
    assert "webhook_failed" not in logs
    assert around.customer not in logs
    assert around.staged() == []


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("HOLDFAST_CHAT_TWILIO_SECRET", "no-such-secret", "secret_unavailable"),
        ("HOLDFAST_CHAT_TWILIO_SECRET", "", "configuration"),
        ("HOLDFAST_CHAT_STORE", "dynamodb:none-", "configuration"),
        ("HOLDFAST_CHAT_WHATSAPP_QUEUE", "sqs:no-such-queue", "configuration"),
        ("HOLDFAST_CHAT_WINDOW_SECONDS", "1000", "configuration"),
    ],
)
def test_an_unavailable_or_misconfigured_service_is_503_logged_and_counted(
    around: Place, setting: str, value: str, reason: str, capsys: Any, caplog: Any
) -> None:
    """Lambda counts no error, so without these metrics no alarm would ring."""
    staging = StagingFunction(ChatRuntime(around.env | MEASURED | {setting: value}))
    assert status(staging, post(around.form())) == 503
    logs = read_logs(capsys, caplog)
    assert "webhook_failed" in logs
    assert value or setting in logs, "what is not set is named"
    assert count_webhooks(logs) == {"chat.webhooks_failed.total": 1, reason: 1}
    assert around.staged() == (["SM1"] if "QUEUE" in setting else [])


def test_telemetry_that_is_misconfigured_does_not_hide_that_a_webhook_failed(
    around: Place, capsys: Any, caplog: Any
) -> None:
    staging = StagingFunction(
        ChatRuntime(around.env | {"HOLDFAST_EMF_NAMESPACE": "AWS/Lambda"})
    )
    assert status(staging, post(around.form())) == 503
    logs = read_logs(capsys, caplog)
    assert "webhook_failed" in logs
    assert "begin with AWS/" in logs


def test_a_refused_request_is_counted_by_its_reason(around: Place, capsys: Any) -> None:
    """A scanner's request has no signature. It is not counted where the alarm looks."""
    staging, data = StagingFunction(ChatRuntime(around.env | MEASURED)), around.form()
    get = post(data)
    get["requestContext"]["http"]["method"] = "GET"
    other = post(data, signature=signature_of(data, url="https://example.org/"))
    for reason, code, event in (
        ("signature", 403, other),
        ("malformed", 400, post(data, body="no form at all")),
        ("method", 405, get),
        ("unanswerable", 400, post(data | {"NumMedia": "99"})),
    ):
        assert status(staging, event) == code
        counts = count_webhooks(capsys.readouterr().out)
        assert counts == {"chat.webhooks_refused.total": 1, reason: 1}
        event["headers"].pop("x-twilio-signature")
        status(staging, event)
        assert count_webhooks(capsys.readouterr().out) == {"unsigned": 1}
    assert status(staging, post(data)) == 200
    assert count_webhooks(capsys.readouterr().out) == {}


# -- staging: the queue


def inbound(around: Place, sid: str, **fields: str) -> str:
    usual = {"message_sid": sid, "from": around.customer, "to": SHOP, "body": "hello"}
    return json.dumps(usual | fields)


def test_inbound_messages_of_a_queue_are_staged_and_bad_ones_are_dead_letters(
    around: Place, staging: StagingFunction
) -> None:
    around.send(inbound(around, "SM1"), "inbound")
    around.send(inbound(around, "SM2", body=""), "inbound")
    around.send("no JSON", "inbound")
    assert around.invoke(staging, around.receive("inbound")) == []
    assert around.staged() == ["SM1"]
    assert around.count("dead") == 2


# -- messaging


@pytest.mark.requirement("R002-082", "R002-098")
def test_a_whole_turn_leaves_one_reply_and_no_failure(
    around: Place, staging: StagingFunction, messaging: EntryPoint
) -> None:
    for sid, body in (("SM1", "one"), ("SM2", "two")):
        assert status(staging, post(around.form(sid, Body=body))) == 200
    event = around.receive()
    assert messaging(event, time_left()) == {"batchItemFailures": []}
    [user, assistant] = around.store.history(around.key)
    assert user.body == "one\ntwo"
    assert "one\ntwo" in assistant.body
    assert around.staged() == []
    assert around.invoke(messaging, event) == []  # delivered again
    assert len(around.sent()) == 1


def test_a_function_without_threads_reports_its_records_and_locks_nothing(
    around: Place, staging: StagingFunction, messaging: EntryPoint
) -> None:
    assert status(staging, post(around.form())) == 200
    event = around.receive()
    before = stack_size(1 << 46)  # no machine has this much memory, so no thread can start
    try:
        failures = failed(messaging(event, time_left()))
    finally:
        stack_size(before)
    assert failures == [item["messageId"] for item in event["Records"]]
    row = around.conversation()
    assert row is not None
    assert not row.is_locked(time.time())
    assert around.invoke(messaging, event) == []
    assert len(around.sent()) == 1


def test_between_two_events_no_thread_is_left(
    around: Place, staging: StagingFunction, messaging: EntryPoint
) -> None:
    """A frozen function renews nothing, and the next event starts the keeper again."""
    before = set(enumerate_threads())
    for sid in ("SM1", "SM2"):
        staging(post(around.form(sid)), None)
        assert messaging(around.receive(), time_left()) == {"batchItemFailures": []}
        assert set(enumerate_threads()) <= before
        # An earlier test may have left a keeper behind, which would then be in `before`.
        assert "holdfast-keeper" not in {thread.name for thread in enumerate_threads()}
    assert len(around.sent()) == 2


@pytest.mark.requirement("R002-006", "R002-013")
def test_a_trigger_as_the_seed_writes_it_is_understood(
    around: Place, staging: StagingFunction, messaging: EntryPoint
) -> None:
    staging(post(around.form()), None)
    around.receive()  # the trigger is lost
    body = {
        "conversation_id": around.key.conversation_id,
        "primary_channel": around.customer,
    }
    around.send(json.dumps(body))
    assert around.invoke(messaging, around.receive()) == []
    assert len(around.sent()) == 1


MALFORMED = ["no JSON", "[]", '{"conversation_id": "c"}', '{"primary_channel": "+49"}']


def batch_with_malformed(around: Place, staging: StagingFunction) -> dict[str, Any]:
    staging(post(around.form()), None)
    for body in MALFORMED:
        around.send(body)
    event = around.receive()
    assert len(event["Records"]) == 5
    return event


@pytest.mark.requirement("R002-016", "R002-017", "R002-018")
def test_malformed_triggers_are_dead_letters_and_cost_the_others_nothing(
    around: Place, staging: StagingFunction, messaging: EntryPoint
) -> None:
    """Replaced: no retry helps, so they are dead-lettered with the reason,
    instead of being reported as failed."""
    event = batch_with_malformed(around, staging)
    assert around.invoke(messaging, event) == []
    assert around.count("dead") == 4
    assert len(around.sent()) == 1


@pytest.mark.requirement("R002-016", "R002-017", "R002-018")
def test_malformed_triggers_fail_where_no_dead_letter_queue_can_be_had(
    around: Place, staging: StagingFunction
) -> None:
    """literally: they are among the failures, and the others are handled."""
    event = batch_with_malformed(around, staging)
    bad = [item["messageId"] for item in event["Records"] if item["body"] in MALFORMED]
    empty = {**event["Records"][0], "messageId": "without-a-body", "body": None}
    event["Records"].append(empty)
    queue = "sqs:whatsapp?dead_letters=sqs:no-such-queue"
    messaging = ChatRuntime(around.env | {"HOLDFAST_CHAT_WHATSAPP_QUEUE": queue}).answer_batch
    assert sorted(around.invoke(messaging, event)) == sorted([*bad, "without-a-body"])
    assert around.count("dead") == 0
    assert len(around.sent()) == 1


def test_without_a_redrive_policy_a_queue_for_dead_letters_is_made(
    around: Place, messaging: EntryPoint
) -> None:
    around.sqs.create_queue(QueueName="plain")
    around.send("no JSON", "plain")
    assert around.invoke(messaging, around.receive("plain")) == []
    assert around.count("plain-dead") == 1


@pytest.mark.requirement("R002-012", "R002-024", "R002-031", "R002-044")
def test_a_failed_turn_is_reported_and_answered_with_the_next_delivery(
    around: Place, staging: StagingFunction, messaging: EntryPoint
) -> None:
    staging(post(around.form()), None)
    event = around.receive()
    [record] = event["Records"]
    away = ChatRuntime(around.env | {"HOLDFAST_CHAT_STORE": "dynamodb:none-"}).answer_batch
    assert around.invoke(away, event) == [record["messageId"]]
    assert around.sent() == []
    assert around.invoke(messaging, event) == []
    assert len(around.sent()) == 1


def test_a_function_whose_timeout_is_too_short_says_so_and_begins_nothing(
    around: Place, staging: StagingFunction, messaging: EntryPoint, caplog: Any
) -> None:
    staging(post(around.form()), None)
    event = around.receive()
    [record] = event["Records"]
    assert around.invoke(messaging, event, 30) == [record["messageId"]]
    assert "set its timeout to 110 s or more" in caplog.text
    assert "HOLDFAST_CHAT_WRITER_SECONDS" in caplog.text
    assert around.sent() == []
    shorter = {"HOLDFAST_CHAT_WRITER_SECONDS": "2", "HOLDFAST_CHAT_SENDER_SECONDS": "1"}
    assert around.invoke(ChatRuntime(around.env | shorter).answer_batch, event, 60) == []
    assert len(around.sent()) == 1


STRANGE: list[Any] = [
    None,
    [],
    {},
    {"Records": None},
    {"Records": "text"},
    {"Records": [None, 3, {}, {"messageId": ""}, {"messageId": 5}]},
    {"Records": [{"messageId": "a"}, {"messageId": "a"}, {"messageId": "b"}]},
    {"Records": [{"messageId": "a"}, {}, {"messageId": "a"}, {"messageId": "b"}]},
    {"Records": [{"messageId": "a", "eventSourceARN": "arn:aws:s3:::bucket"}]},
    {"Records": [{"messageId": "a", "attributes": "x"}, {"messageId": "b", "body": {}}]},
]


@pytest.mark.requirement("R002-012", "R002-083", "R002-098")
@pytest.mark.parametrize("event", STRANGE, ids=range(len(STRANGE)))
def test_whatever_comes_only_ids_of_its_records_are_answered_and_each_once(
    messaging: EntryPoint, staging: StagingFunction, event: Any
) -> None:
    ids = {"a", "b"} & set(json.dumps(event).split('"'))
    answers = [messaging(event, time_left())]
    if isinstance(event, dict) and "Records" in event:
        answers.append(staging(event, time_left()))
    for answer in answers:
        assert sorted(failed(answer)) == sorted(ids)


def test_a_queue_is_held_with_the_settings_of_its_url(around: Place) -> None:
    queue = "https://sqs.us-east-1.amazonaws.com/123456789012/whatsapp?max_attempts=7"
    app = ChatRuntime(around.env | {"HOLDFAST_CHAT_WHATSAPP_QUEUE": queue}).app
    env = {"HOLDFAST_MAX_ATTEMPTS": "4", "HOLDFAST_LEASE_SECONDS": "33"}
    settings = source_settings(app, "whatsapp", env)
    assert (settings.max_attempts, settings.lease_seconds) == (7, 33)
    assert source_settings(app, "sms", env).max_attempts == 4
    assert source_settings(app, "inbound", env).max_attempts == 4
    assert source_settings(app, "another-queue", env).max_attempts == 4


# -- the start


@pytest.mark.parametrize("name", ["staging", "messaging", "sweeping"])
def test_nothing_is_put_together_before_the_first_event(
    around: Place, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: Any
) -> None:
    """A misconfigured function can be imported, and reports what is wrong."""
    monkeypatch.setenv("HOLDFAST_CHAT_LOCK_SECONDS", "-1")
    handler = import_module(f"holdfast.lambdas.{name}").handler
    if name == "sweeping":
        with pytest.raises(HoldfastError, match="HOLDFAST_CHAT_LOCK_SECONDS"):
            handler({}, None)
    elif name == "staging":
        assert status(handler, post(around.form())) == 503
        assert "HOLDFAST_CHAT_LOCK_SECONDS" in read_logs(capsys, caplog)
    else:
        assert failed(handler({"Records": [{"messageId": "a"}]}, time_left())) == ["a"]
        assert "HOLDFAST_CHAT_LOCK_SECONDS" in caplog.text


# -- sweeping


def test_a_sweep_replaces_a_lost_trigger_and_returns_its_counts(around: Place) -> None:
    soon = {"HOLDFAST_CHAT_GRACE_SECONDS": "0.001", "HOLDFAST_CHAT_LOCK_SECONDS": "0.001"}
    chat = ChatRuntime(around.env | soon)
    assert status(StagingFunction(chat), post(around.form())) == 200
    around.receive()  # lost
    counts = chat.sweep({"source": "aws.scheduler"}, time_left())
    assert set(counts) == {"waiting", "triggered", "parked", "oldest_seconds"}
    assert counts["triggered"] >= 1
    bodies = [json.loads(item["body"]) for item in around.receive()["Records"]]
    assert around.customer in [item["primary_channel"] for item in bodies]


def test_a_sweep_that_fails_is_an_error_of_the_function(around: Place) -> None:
    chat = ChatRuntime(around.env | {"HOLDFAST_CHAT_STORE": "dynamodb:none-"})
    with pytest.raises(HoldfastError):
        chat.sweep({}, None)


# -- what is never logged


def test_neither_texts_nor_numbers_tokens_or_signatures_are_logged_or_printed(
    around: Place, capsys: Any, caplog: Any
) -> None:
    """All loggers are at DEBUG, including those of the vendors (I-MS-9)."""
    caplog.set_level(logging.DEBUG)
    data = around.form(Body="canary-body", ProfileName="canary-name")
    good = signature_of(data)
    chat, away = (
        ChatRuntime(around.env),
        ChatRuntime(around.env | {"HOLDFAST_CHAT_STORE": "dynamodb:none-"}),
    )
    staging, messaging = StagingFunction(chat), chat.answer_batch
    events = [
        post(data),
        post(data, signature="canary-signature"),
        post(data | {"Body": "canary-changed"}, signature=good),
        post(data | {"MessageSid": "canary\x00"}),
        post(data | {"NumMedia": "canary"}),
        post(data, body="canary-no-form"),
        post(data) | {"isBase64Encoded": True},
        {"httpMethod": "POST", "headers": "canary", "body": ["canary"]},
    ]
    assert [status(staging, event) for event in events] == [200, 403, 403] + [400] * 5
    around.send('{"conversation_id": "canary-malformed"')
    around.send(json.dumps({"conversation_id": "canary", "primary_channel": "+49\x00"}))
    event = around.receive()
    [record] = around.invoke(away.answer_batch, event)
    event["Records"] = [item for item in event["Records"] if item["messageId"] == record]
    assert status(StagingFunction(away), post(data)) == 503
    assert around.invoke(messaging, event) == []
    assert len(around.sent()) == 1
    around.send(inbound(around, "SM7", body="canary"), "inbound")
    around.send(inbound(around, "canary\x00"), "inbound")
    assert around.invoke(staging, around.receive("inbound")) == []
    chat.sweep({}, None)

    logs = read_logs(capsys, caplog)
    for word in ("fragment_staged", "webhook_refused", "turn_finished", "webhook_failed"):
        assert word in logs
    secrets = ("canary", str(around.number), SHOP.removeprefix("whatsapp:"), good, TOKEN)
    leaks = [line for line in logs.splitlines() if any(secret in line for secret in secrets)]
    assert leaks == []


class Broken(ChatRuntime):
    """Make an error happen, by default an unexpected one whose text contains secrets."""

    error: Exception = RuntimeError("canary")

    @property
    def app(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailable("no response"), "store_unavailable"),
        (QueueUnavailable("no response"), "queue_unavailable"),
        (TransientError("no response"), "secret_unavailable"),
        (RuntimeError("no response"), "unexpected"),
    ],
)
def test_a_webhook_that_fails_is_counted_by_the_kind_of_its_error(
    error: Exception, reason: str, capsys: Any
) -> None:
    chat = Broken(MEASURED)
    chat.error = error
    assert status(StagingFunction(chat), post({"Body": "hello"})) == 503
    counts = count_webhooks(capsys.readouterr().out)
    assert counts == {"chat.webhooks_failed.total": 1, reason: 1}


def test_an_unexpected_error_is_logged_by_its_type_only(capsys: Any, caplog: Any) -> None:
    chat = Broken({})
    assert status(StagingFunction(chat), post({"Body": "canary"})) == 503
    event = {"Records": [{"messageId": "a"}]}
    assert failed(chat.answer_batch(event, time_left())) == ["a"]
    assert failed(StagingFunction(chat)(event, time_left())) == ["a"]
    with pytest.raises(HoldfastError) as raised:
        chat.sweep({}, None)
    printed = "".join(format_exception(raised.value))  # as Lambda's runtime prints it
    logs = read_logs(capsys, caplog) + printed
    assert logs.count("RuntimeError") == 4
    assert "canary" not in logs


class FailingTurns(ChatRuntime):
    """Fail each turn with an error whose text quotes the message."""

    @property
    def app(self) -> Any:
        return replace(super().app, processor=fail_turn)


def fail_turn(message: Trigger) -> None:
    raise RuntimeError(f"canary {message.primary_channel}")


def test_a_handler_that_fails_is_logged_without_its_traceback(
    around: Place, staging: StagingFunction, capsys: Any, caplog: Any
) -> None:
    assert status(staging, post(around.form(Body="canary"))) == 200
    event = around.receive()
    assert len(around.invoke(FailingTurns(around.env).answer_batch, event)) == 1
    logs = read_logs(capsys, caplog)
    assert "RuntimeError" in logs
    for private in ("canary", str(around.number), "Traceback"):
        assert private not in logs


# -- metrics


def test_each_function_writes_the_metrics_that_the_environment_asks_for(
    around: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = ChatRuntime(around.env | MEASURED)
    before = set(enumerate_threads())
    assert status(StagingFunction(chat), post(around.form())) == 200
    staged = find_lines(capsys.readouterr().out)
    assert [(get_labels(line), get_values(line)) for line in staged] == [
        ({"channel": "whatsapp"}, {"chat.staged.total": 1})
    ]
    assert staged[0]["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "shop"
    chat.sweep({}, None)
    [swept] = find_lines(capsys.readouterr().out)
    assert get_values(swept)["chat.waiting"] >= 1  # other tests leave some waiting
    assert set(enumerate_threads()) - before == set()


# -- permissions


def test_every_call_of_the_functions_is_in_the_policy(around: Place) -> None:
    with record_actions() as calls:
        run_everything(around)
    *_, policy = re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)
    allowed = {action for item in json.loads(policy)["Statement"] for action in item["Action"]}
    assert calls
    assert calls - allowed == set()
    assert allowed - calls == set()


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
