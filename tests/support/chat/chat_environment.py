"""The environment of the chat functions, on moto in this process.

It has tables, queues, a secret, requests with Twilio's signature, and the event source.
"""

import hmac
import json
import time
from base64 import b64encode
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import boto3
from moto import mock_aws

from holdfast.chat.dynamodb import DynamoDBConversations, create_tables
from holdfast.chat.model import Conversation, ConversationKey, digest_texts

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


class TimeLeft:
    """Lambda's context."""

    def __init__(self, seconds: float = 900.0) -> None:
        self._end = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return int((self._end - time.monotonic()) * 1000)


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
    env: dict[str, str] = field(default_factory=dict)
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
        records: dict[str, dict[str, Any]] = {}
        while received := self._receive(queue):
            fresh = {record["MessageId"]: _record(record, queue) for record in received}
            if fresh.keys() <= records.keys():  # those of `dead` are not hidden
                break
            records |= fresh
        return {"Records": list(records.values())}

    def _receive(self, queue: str) -> list[dict[str, Any]]:
        answer = self.sqs.receive_message(
            QueueUrl=self.url(queue), MaxNumberOfMessages=10, AttributeNames=["All"]
        )
        received: list[dict[str, Any]] = answer.get("Messages", [])
        return received

    def invoke(self, function: Any, event: dict[str, Any], seconds: float = 900) -> list[str]:
        """Invoke the function, delete what did not fail, and return the failures."""
        answer = function(event, TimeLeft(seconds))
        assert set(answer) == {"batchItemFailures"}
        failed = [record["itemIdentifier"] for record in answer["batchItemFailures"]]
        self.delete(event, but=failed)
        return failed

    def delete(self, event: dict[str, Any], but: Collection[str] = ()) -> None:
        for record in event["Records"]:
            if record["messageId"] not in but:
                url = self.url(record["eventSourceARN"].rpartition(":")[2])
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=record["receiptHandle"])

    def count(self, queue: str) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)


def _record(message: dict[str, Any], queue: str) -> dict[str, Any]:
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{queue}",
        "awsRegion": "us-east-1",
    }


@contextmanager
def place(outbox: str) -> Iterator[Place]:
    """Provide a place; a region must be set in the environment."""
    with mock_aws():
        clients = (boto3.client(name) for name in ("sqs", "dynamodb", "secretsmanager"))
        created = Place(*clients)
        create_tables(created.dynamodb)
        for name in QUEUES:
            attributes = {"VisibilityTimeout": "0"} if name == "dead" else REDRIVEN
            created.sqs.create_queue(QueueName=name, Attributes=attributes)
        created.secrets.create_secret(Name="twilio", SecretString=json.dumps(SECRET))
        created.env = environment(outbox)
        yield created


def environment(outbox: str) -> dict[str, str]:
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
