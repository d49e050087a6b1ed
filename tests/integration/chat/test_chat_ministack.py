"""From Twilio's webhook to the reply, in real functions: Lambda's Python runtime, a function
URL, DynamoDB tables, SQS with its delays, an event source mapping, Secrets Manager. Twilio
and OpenAI are servers on the loopback (MS-06, MS-24, I-MS-1, I-MS-2, I-MS-5, I-MS-6)."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from twilio.request_validator import RequestValidator

from holdfast.chat.dynamodb import DynamoDBConversations, create_tables
from holdfast.chat.model import Conversation, ConversationKey, digest_texts
from support.vendors import Fault, VendorServer
from support.waiting import wait_until

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

SECONDS = 90  # for what functions do
TOKEN = "a-token-of-twilio"
WEBHOOK = "https://chat.example.org/twilio"
SHOP, HELPDESK = "whatsapp:+4930111", "whatsapp:+4930222"
CHANNELS = ("whatsapp", "sms", "email")
WINDOW_SECONDS = 3  # three posts must fit into it on a busy machine


@dataclass(frozen=True, slots=True)
class Deployment:
    """The deployed service."""

    stack: "Ministack"
    name: str
    vendors: VendorServer
    store: DynamoDBConversations
    address: list[str] = field(default_factory=list)  # of the webhook

    def post(self, sid: str, body: str, customer: str, to: str, token: str = TOKEN) -> int:
        """Post a message like Twilio, and return the status."""
        data = {"MessageSid": sid, "From": customer, "To": to, "Body": body, "NumMedia": "0"}
        signature = RequestValidator(token).compute_signature(WEBHOOK, data)
        request = urllib.request.Request(
            self.address[0], urlencode(data).encode(), {"X-Twilio-Signature": signature}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.headers["Content-Type"] == "text/xml"
                assert b"<Response></Response>" in answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def conversation(self, key: ConversationKey) -> Conversation:
        row = self.store.get(key)
        assert row is not None
        return row

    def left(self) -> int:
        """Count triggers in any state, and dead letters."""
        sqs = self.stack.client("sqs")
        kinds = ("", "NotVisible", "Delayed")
        names = [f"ApproximateNumberOfMessages{kind}" for kind in kinds]
        total = 0
        for queue in (*CHANNELS, "dead"):
            url = sqs.get_queue_url(QueueName=f"{self.name}-{queue}")["QueueUrl"]
            response = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)
            total += sum(int(response["Attributes"][name]) for name in names)
        return total


@pytest.fixture(scope="module")
def deployment(ministack: "Ministack") -> Iterator[Deployment]:
    name = f"chat-{uuid4().hex[:8]}"
    with VendorServer() as vendors:
        dynamodb = ministack.client("dynamodb")
        create_tables(dynamodb, f"{name}-")
        store = DynamoDBConversations(f"{name}-", client=dynamodb)
        made = Deployment(ministack, name, vendors, store)
        _secrets(ministack, name)
        arns = _queues(ministack, name)
        env = _env(name, vendors)
        made.address.append(_staging(ministack, name, env))
        _messaging(ministack, name, env, arns)
        yield made


def _secrets(stack: "Ministack", name: str) -> None:
    client = stack.client("secretsmanager")
    twilio = json.dumps({"account_sid": "AC1", "auth_token": TOKEN})
    client.create_secret(Name=f"{name}-twilio", SecretString=twilio)
    client.create_secret(Name=f"{name}-openai", SecretString="sk-of-a-test")


def _queues(stack: "Ministack", name: str) -> list[str]:
    sqs = stack.client("sqs")
    arns = []
    dead = {"RedrivePolicy": ""}
    for queue in ("dead", *CHANNELS):
        attributes = {"VisibilityTimeout": "60", **({} if queue == "dead" else dead)}
        url = sqs.create_queue(QueueName=f"{name}-{queue}", Attributes=attributes)["QueueUrl"]
        response = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        arn = response["Attributes"]["QueueArn"]
        if queue == "dead":
            policy = {"deadLetterTargetArn": arn, "maxReceiveCount": "20"}
            dead["RedrivePolicy"] = json.dumps(policy)
        else:
            arns.append(arn)
    return arns


def _env(name: str, vendors: VendorServer) -> dict[str, str]:
    channel = {"whatsapp_credentials_id": f"{name}-twilio", "base_url": vendors.twilio}
    ai = {"ai_api_key_reference": f"{name}-openai", "base_url": vendors.openai, "model": "m"}
    profiles = {
        SHOP: {"channel_config": channel, "ai_config": {"provider": "echo"}},
        HELPDESK: {"channel_config": channel, "ai_config": ai},
    }
    queues = {
        f"HOLDFAST_CHAT_{queue.upper()}_QUEUE": f"sqs:{name}-{queue}" for queue in CHANNELS
    }
    return {
        **queues,
        "HOLDFAST_CHAT_STORE": f"dynamodb:{name}-",
        "HOLDFAST_CHAT_PROFILES": json.dumps(profiles),
        "HOLDFAST_CHAT_TWILIO_SECRET": f"{name}-twilio",
        "HOLDFAST_CHAT_WEBHOOK_URL": WEBHOOK,
        "HOLDFAST_CHAT_WINDOW_SECONDS": str(WINDOW_SECONDS),
        "HOLDFAST_CHAT_QUIET_SECONDS": "0.5",
        "HOLDFAST_CHAT_WRITER_SECONDS": "10",
        "HOLDFAST_CHAT_SENDER_SECONDS": "2",
    }


def _staging(stack: "Ministack", name: str, env: dict[str, str]) -> str:
    function = f"{name}-staging"
    stack.create_function(function, "holdfast.lambdas.staging.handler", env)
    config = stack.client("lambda").create_function_url_config(
        FunctionName=function, AuthType="NONE"
    )
    url_id = config["FunctionUrl"].removeprefix("https://").partition(".")[0]
    return f"{stack.url}/_aws/lambda-url/{url_id}/twilio"


def _messaging(stack: "Ministack", name: str, env: dict[str, str], arns: list[str]) -> None:
    function = f"{name}-messaging"
    stack.create_function(function, "holdfast.lambdas.messaging.handler", env)
    for arn in arns:
        stack.map_event_source(function, arn)


def customer_of(number: str, to: str) -> tuple[str, ConversationKey]:
    address = f"whatsapp:+49151{number}"
    return address, ConversationKey(address, digest_texts(to, address))


@pytest.mark.requirement(
    "R002-001",
    "R002-003",
    "R002-005",
    "R002-011",
    "R002-046",
    "R002-059",
    "R002-061",
    "R002-078",
)
def test_three_quick_messages_get_one_reply_and_leave_nothing_behind(
    deployment: Deployment,
) -> None:
    customer, key = customer_of("100001", SHOP)
    forged = deployment.post("SM0", "let me in", customer, SHOP, token="guessed")
    assert forged == 403
    assert deployment.store.get(key) is None

    began_at = time.monotonic()
    for number, body in enumerate(("one", "two", "three"), 1):
        assert deployment.post(f"SM{number}", body, customer, SHOP) == 200
    wait_until(lambda: deployment.conversation(key).status == "reply_sent", SECONDS)

    assert time.monotonic() - began_at >= WINDOW_SECONDS
    assert deployment.vendors.books.sent() == ["You said: one\ntwo\nthree"]
    [message] = deployment.vendors.books.messages
    assert (message["to"], message["from"]) == (customer, SHOP)
    [ask] = deployment.vendors.books.asked("twilio.send")
    assert ask.user == f"AC1:{TOKEN}"
    assert deployment.store.staged(key.conversation_id) == []
    assert deployment.store.window(key.conversation_id) is None
    user, assistant = deployment.store.history(key)
    assert (user.role, user.body, user.message_sid) == ("user", "one\ntwo\nthree", "SM1")
    assert (assistant.role, assistant.body) == ("assistant", "You said: one\ntwo\nthree")
    row = deployment.conversation(key)
    assert row.last_assistant_message_sid == assistant.message_sid == message["sid"]
    assert row.outbox is None
    wait_until(lambda: deployment.left() == 0, SECONDS)


@pytest.mark.requirement("R002-047")
def test_a_reply_that_was_throttled_and_then_unanswered_goes_out_once(
    deployment: Deployment,
) -> None:
    """Twilio returns 429, then 503 for a message that it accepted.

    Each time the trigger fails and is delivered again. The third attempt queries Twilio and
    sends nothing. OpenAI writes the reply once.
    """
    books = deployment.vendors.books
    sent_before, sends_before = len(books.messages), len(books.asked("twilio.send"))
    books.order("twilio.send", Fault(status=429))
    books.order("twilio.send", Fault(status=503, acted=True))
    customer, key = customer_of("100002", HELPDESK)

    assert deployment.post("SM9", "are you there?", customer, HELPDESK) == 200
    wait_until(lambda: deployment.conversation(key).status == "reply_sent", SECONDS)

    [message] = books.messages[sent_before:]
    assert message["body"] == "Re: are you there?"
    assert len(books.asked("twilio.send")) == sends_before + 2
    [question] = books.asked("openai.write")
    assert question.user == "sk-of-a-test"
    user, assistant = deployment.store.history(key)
    assert (user.body, assistant.message_sid) == ("are you there?", message["sid"])
    row = deployment.conversation(key)
    assert row.thread_id in books.conversations
    assert (row.prompt_tokens, row.completion_tokens) == (3, 4)
    assert deployment.store.staged(key.conversation_id) == []
    wait_until(lambda: deployment.left() == 0, SECONDS)
