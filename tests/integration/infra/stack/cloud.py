"""An account on ministack with a stack for each part, used by what runs there."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.components import make_server_settings
from stack.deployment import (
    CODE_BUCKET,
    CODE_KEY,
    DeployedStack,
    get_client,
    upload_code,
)
from support.cli.commands import Cli
from support.sqs.calls import count_messages, send
from support.vendors import VendorServer
from support.waiting import wait_until

if TYPE_CHECKING:
    from support.ministack_server import Ministack

WORK = """
from holdfast import Context, QueueMessage, Reject, Retry
from holdfast.lambdas import sqs_batch


class Task(QueueMessage):
    kind: str


def handle(task: Task, ctx: Context):
    if task.kind == "reject":
        return Reject("not wanted")
    if task.kind == "retry" and ctx.attempt == 1:
        return Retry(after_seconds=0)


lambda_handler = sqs_batch(handle)
"""
SHOP = {"whatsapp": "whatsapp:+4930111", "sms": "+4930222", "email": "shop@example.org"}
TOKEN, WEBHOOK = "a-token-of-twilio", "https://chat.example.org/twilio"
CODE = {"CodeBucket": CODE_BUCKET, "CodeKey": CODE_KEY}
SERVICE = {
    "Image": "holdfast:1",
    "Subnets": "subnet-12345678",
    "SecurityGroups": "sg-12345678",
}
# No customer is quiet for so long, so every batch waits once more, for another trigger.
CHAT_SETTINGS = {
    "HOLDFAST_CHAT_WINDOW_SECONDS": "1",
    "HOLDFAST_CHAT_QUIET_SECONDS": "40",
    "HOLDFAST_CHAT_MAX_WAIT_SECONDS": "2",
}


@dataclass(frozen=True)
class Cloud:
    """The account. `stacks` has the parts by name, and `desk`, a queue with a service."""

    server: "Ministack"
    folder: Path
    calls: Path
    vendors: VendorServer
    cli: Cli
    stacks: dict[str, DeployedStack]

    def count_messages(self, queue: str) -> int:
        """Count the messages of a queue in any state."""
        return sum(count_messages(*self._find_queue(queue)))

    def send_garbage(self, queue: str) -> None:
        """Send what is not a message, and wait until it is a dead letter."""
        send(*self._find_queue(queue), "not JSON")
        wait_until(lambda: self.count_messages(queue) == 0)

    def _find_queue(self, name: str) -> tuple[Any, str]:
        sqs = get_client(self.server, "sqs")
        return sqs, sqs.get_queue_url(QueueName=name)["QueueUrl"]

    def read_chat_settings(self) -> dict[str, str]:
        """Return the environment of the functions of conversations, for a command here."""
        client = get_client(self.server, "lambda")
        configuration = client.get_function_configuration(FunctionName="shop-staging")
        profiles = {"HOLDFAST_CHAT_PROFILES": json.dumps(make_profiles(self.vendors))}
        return {**configuration["Environment"]["Variables"], **profiles}


@contextmanager
def open_cloud(folder: Path, cli: Cli) -> Iterator[Cloud]:
    """Run ministack, deploy every part, and store the secrets that they need."""
    from support.ministack_server import run_ministack  # late, because it is a pytest plugin

    calls = folder / "calls"
    calls.mkdir()
    settings = make_server_settings(calls, **CHAT_SETTINGS)
    with VendorServer() as vendors, run_ministack(folder, **settings) as server:
        (folder / "tasks.py").write_text(WORK)
        profiles = json.dumps(make_profiles(vendors))
        upload_code(server, {"tasks.py": WORK, "profiles.json": profiles})
        secrets = get_client(server, "secretsmanager")
        twilio = json.dumps({"account_sid": "AC1", "auth_token": TOKEN})
        secrets.create_secret(Name="shop/twilio", SecretString=twilio)
        get_client(server, "s3").create_bucket(Bucket="shop-files")
        yield Cloud(server, folder, calls, vendors, cli, _deploy_parts(server))


def _deploy_parts(server: "Ministack") -> dict[str, DeployedStack]:
    wanted = {
        "queue": {"Consumer": "function", **CODE},
        "exports": {"Bucket": "shop-files", **SERVICE},
        "conversations": {"WebhookUrl": WEBHOOK, **CODE},
    }
    stacks = {
        part: DeployedStack.deploy(server, f"shop-{part}", part, Name="shop", **parameters)
        for part, parameters in wanted.items()
    }
    handler = {"Consumer": "service", "Handler": "tasks:handle"}
    desk = DeployedStack.deploy(server, "desk", "queue", Name="desk", **handler, **SERVICE)
    return {**stacks, "desk": desk}


def make_profiles(vendors: VendorServer) -> dict[str, Any]:
    """Return a profile for each channel."""
    whatsapp = {"whatsapp_credentials_id": "shop/twilio", "base_url": vendors.twilio}
    sms = {"sms_credentials_id": "shop/twilio", "base_url": vendors.twilio}
    echo = {"provider": "echo"}
    return {
        SHOP["whatsapp"]: {"channel_config": whatsapp, "ai_config": echo},
        SHOP["sms"]: {"channel_config": sms, "ai_config": echo},
        SHOP["email"]: {"channel_config": {"provider": "outbox"}, "ai_config": echo},
    }
