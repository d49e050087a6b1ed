"""Use the deployed conversations: replies, repeats, parked batches and lost triggers."""

import json
import time
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from twilio.request_validator import RequestValidator

from holdfast.chat.building import ChatApp, build_chat
from holdfast.chat.messages import Inbound
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    Fragment,
    LockAcquired,
    Status,
    digest_texts,
)
from stack.cloud import CHAT_SETTINGS, SHOP, TOKEN, WEBHOOK, Cloud
from stack.deployment import get_client
from support.waiting import wait_until

_HOUR, _DAY = 3_600, 86_400
CHANNELS = ("whatsapp", "sms", "email")
CUSTOMERS = {
    "whatsapp": "whatsapp:+49151100001",
    "sms": "+49151100002",
    "email": "short@b.example",
    "long": "long@b.example",
}
KEYS = {
    name: ConversationKey(customer, digest_texts(SHOP.get(name, SHOP["email"]), customer))
    for name, customer in CUSTOMERS.items()
}
# Each fills a row of its own, and so many rows do not fit into one transaction.
_LARGE = tuple(f"image/{'x' * 250}" for _ in range(1_000))
_LARGE_COUNT = 9


def use_conversations(cloud: Cloud) -> None:
    """Customers write on every channel, and every message is answered or parked."""
    with build_chat({**cloud.read_chat_settings(), **CHAT_SETTINGS}) as app:
        for sid in ("L1", "L2"):  # two batches, of which the second needs another trigger
            stage_email(app, sid, sid * 30_000, "long")
        answer_every_channel(cloud, app)
        answer_again(cloud, app)
        sweep(cloud, app)
        park(cloud, app)
        cloud.send_garbage("shop-whatsapp")
        assert cloud.count_messages("shop-chat-dead") == 1
        wait_for_reply(app, "long")
        assert len(app.store.history(KEYS["long"])) == 4


def answer_every_channel(cloud: Cloud, app: ChatApp) -> None:
    """Every channel has a queue of its own."""
    post(cloud, "SM1", "hello", "whatsapp")
    post(cloud, "SM2", "hello", "sms")
    stage_email(app, "E1", "hello")
    wait_for_reply(app, *CHANNELS)
    assert cloud.vendors.books.sent() == ["You said: hello"] * 2


def answer_again(cloud: Cloud, app: ChatApp) -> None:
    """A message is delivered twice; rows are without a history, or with that of the seed."""
    post(cloud, "SM1", "hello", "whatsapp")
    wait_until(lambda: not app.store.staged(KEYS["whatsapp"].conversation_id))
    change_row(cloud, "sms", "REMOVE messages, message_count")
    post(cloud, "SM3", "again", "sms")
    old = {"role": {"S": "user"}, "body": {"S": "from another program"}}
    change_row(cloud, "email", "SET messages = :old REMOVE message_count", [{"M": old}])
    stage_email(app, "E2", "again")
    wait_for_reply(app, "sms", "email")
    assert len(cloud.vendors.books.sent()) == 3


def sweep(cloud: Cloud, app: ChatApp) -> None:
    """Messages without a trigger get one, or are parked after three days."""
    for channel in CHANNELS:
        stage_row(app, channel, f"lost-{channel}", _HOUR)
    assert invoke_sweeper(cloud)["triggered"] == len(CHANNELS)
    wait_for_reply(app, *CHANNELS)
    stage_row(app, "whatsapp", "SM1", 4 * _DAY)  # was answered
    for number in range(_LARGE_COUNT):
        stage_row(app, "whatsapp", f"late-{number}", 4 * _DAY, _LARGE)
    swept = invoke_sweeper(cloud)
    assert swept["parked"] == _LARGE_COUNT, swept
    assert app.store.staged(KEYS["whatsapp"].conversation_id) == []
    stage_row(app, "whatsapp", "held", 4 * _DAY)
    now = time.time()
    held = app.store.acquire(
        KEYS["whatsapp"], owner="test", trigger_id="t", now=now, expires_at=now + 600
    )
    assert isinstance(held, LockAcquired)
    swept = invoke_sweeper(cloud)
    assert swept["parked"] == 0, swept
    app.store.drop_staged(KEYS["whatsapp"].conversation_id, ["held"])
    app.store.release(held.grant, None)


def park(cloud: Cloud, app: ChatApp) -> None:
    """A person has taken over, so the messages wait for the person."""
    assert app.operator.assign_to_person(KEYS["sms"])
    for number in range(_LARGE_COUNT):
        stage_row(app, "sms", f"person-{number}", 0, _LARGE)
    post(cloud, "SM4", "hello?", "sms")
    wait_until(lambda: not app.store.staged(KEYS["sms"].conversation_id))
    assert {len(batch.staged) for batch in app.store.parked()} == {
        _LARGE_COUNT,
        _LARGE_COUNT + 1,
    }


def find_function_url(cloud: Cloud) -> str:
    """Return the URL at which ministack serves the function that Twilio calls."""
    functions = get_client(cloud.server, "lambda")
    config = functions.get_function_url_config(FunctionName="shop-staging")
    url_id = config["FunctionUrl"].removeprefix("https://").partition(".")[0]
    return f"{cloud.server.url}/_aws/lambda-url/{url_id}/twilio"


def post(cloud: Cloud, sid: str, body: str, channel: str) -> None:
    """Post a message to the function URL, as Twilio does."""
    addresses = {"From": CUSTOMERS[channel], "To": SHOP[channel]}
    data = {"MessageSid": sid, "Body": body, "NumMedia": "0", **addresses}
    signature = RequestValidator(TOKEN).compute_signature(WEBHOOK, data)
    request = urllib.request.Request(
        find_function_url(cloud),
        urlencode(data).encode(),
        {"X-Twilio-Signature": signature},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def stage_email(app: ChatApp, sid: str, body: str, customer: str = "email") -> None:
    """Stage an email, as a program of the user does."""
    addresses = {"from": CUSTOMERS[customer], "to": SHOP["email"]}
    app.stager.stage(Inbound(message_sid=sid, body=body, **addresses))


def stage_row(
    app: ChatApp, channel: str, sid: str, age_seconds: float, media: Sequence[str] = ()
) -> None:
    """Stage a message whose trigger is lost."""
    then = time.time() - age_seconds
    fragment = Fragment(KEYS[channel], sid, "hello", then, then, tuple(media))
    assert app.store.stage(fragment, expires_at=time.time() + 20 * _DAY)


def wait_for_reply(app: ChatApp, *channels: str) -> None:
    """Wait until nothing is staged, and the last turn is finished."""

    def is_answered(channel: str) -> bool:
        conversation: Conversation | None = app.store.get(KEYS[channel])
        staged = app.store.staged(KEYS[channel].conversation_id)
        return (
            conversation is not None and conversation.status == Status.REPLY_SENT and not staged
        )

    for channel in channels:
        wait_until(lambda channel=channel: is_answered(channel))


def change_row(cloud: Cloud, channel: str, update: str, old: Sequence[Any] = ()) -> None:
    """Change the row of a conversation, as another program may."""
    key = KEYS[channel]
    get_client(cloud.server, "dynamodb").update_item(
        TableName="shop-conversations",
        Key={
            "primary_channel": {"S": key.primary_channel},
            "conversation_id": {"S": key.conversation_id},
        },
        UpdateExpression=update,
        **({"ExpressionAttributeValues": {":old": {"L": old}}} if old else {}),
    )


def invoke_sweeper(cloud: Cloud) -> Any:
    """Call the sweeper as its schedule does."""
    functions = get_client(cloud.server, "lambda")
    response = functions.invoke(FunctionName="shop-sweeping", Payload=b"{}")
    return json.loads(response["Payload"].read())
