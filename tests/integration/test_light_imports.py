"""A cold start imports only what it uses."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# Each takes milliseconds of a cold start, and a batch of messages needs none of them.
NEVER_NEEDED = [
    "asyncio",
    "boto3",  # when the first event comes, and not while a function is being published
    "concurrent.futures",
    "difflib",
    "holdfast.chat",
    "holdfast.cli",
    "holdfast.exports",
    "holdfast.queues.files",
    "holdfast.queues.sqlite",
    "holdfast.store",
    "multiprocessing",
    "prometheus_client",
    "rich",
    "sqlite3",
    "subprocess",
    "typer",
    "urllib.request",
]
AWS = ["holdfast.aws.json_client", "holdfast.queues.sqs", "ssl"]
# They take most of boto3's cold start. The environment is that of a Lambda function.
MODELS = ["boto3", "botocore.client", "botocore.loaders", "botocore.session", "urllib3"]
FIRST_POLL = [  # what is left is pydantic, the client, and the queue itself
    *NEVER_NEEDED,
    "botocore.exceptions",  # of a call that fails
    "holdfast.telemetry",
    "holdfast.process",
    "holdfast.queue.aio",
    "holdfast.queue.info",  # what operators see
    "holdfast.worker",
    "holdfast.testing",
]
PUBLIC = ["boto3", "pydantic", "holdfast.lease", "holdfast.queue", "holdfast.queues"]
PRODUCTS = ["holdfast.chat", "holdfast.exports", "asyncio"]

MAKE_BATCH = """
from holdfast.aws import sqs_batch
def handle(message, ctx): ...
lambda_handler = sqs_batch(handle)
"""
MAKE_TASK = """
from holdfast import Holdfast
app = Holdfast('sqlite:work.db')
@app.task(isolation='process', stall='60s')
def enrich(domain: str): ...
"""
CALL = """
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
import os

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.send_header("x-amzn-RequestId", "1")
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *_): ...

server = HTTPServer(("127.0.0.1", 0), Handler)
Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/1/letters"
os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="s", AWS_REGION="eu-west-1")
os.environ.update(AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
"""
HEARTBEAT = """
from holdfast.aws import SQSHeartbeat
heartbeat = SQSHeartbeat(url, "receipt", 1, 30, initial_beat=True)
heartbeat._change_visibility(30)
"""
QUEUE = """
from holdfast import SQSQueue
assert SQSQueue(url).poll(wait_seconds=0) == []
"""
TYPED_QUEUE = """
from holdfast import QueueMessage, SQSQueue
class Enrich(QueueMessage):
    domain: str
assert SQSQueue(url, Enrich).poll(wait_seconds=0) == []
"""


CASES = {
    "a batch function": ("import holdfast.aws.lambdas.batch", [*NEVER_NEEDED, *AWS]),
    "a batch function that is made": (MAKE_BATCH, [*NEVER_NEEDED, *AWS]),
    "a module of tasks": (
        MAKE_TASK,
        [*NEVER_NEEDED, *AWS, "holdfast.worker.worker", "holdfast.testing"],
    ),
    "the first event": (
        "import holdfast.queues.sqs.queue, holdfast.telemetry.logging",
        PRODUCTS,
    ),
    "holdfast": ("import holdfast", PUBLIC),
    "holdfast.aws": ("import holdfast.aws", PUBLIC),
    "holdfast.lambdas": ("import holdfast.lambdas", PUBLIC),
    "events": (
        "from holdfast.events import *",
        ["asyncio", "pydantic", "sqlite3", "boto3", "holdfast.queues", "holdfast.store"],
    ),
    "the first heartbeat": (
        CALL + HEARTBEAT,
        [*MODELS, "pydantic", "uuid", "botocore.exceptions", "holdfast.queues.sqs.queue"],
    ),
    "the first poll": (CALL + QUEUE, MODELS),
    "the first poll of a model": (CALL + TYPED_QUEUE, [*MODELS, *FIRST_POLL]),
}


def list_loaded(code: str, forbidden: list[str]) -> list[str]:
    """Run the code in a fresh interpreter and return the modules that it must not load."""
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return [
        module
        for module in json.loads(ran.stdout)
        if any(module == name or module.startswith(f"{name}.") for name in forbidden)
    ]


@pytest.mark.parametrize(("code", "forbidden"), CASES.values(), ids=CASES)
def test_only_what_is_used_is_loaded(code: str, forbidden: list[str]) -> None:
    assert list_loaded(code, forbidden) == []


def test_what_must_not_be_loaded_exists() -> None:
    """Otherwise a module that was moved would be loaded unnoticed."""
    forbidden = {name for _, names in CASES.values() for name in names}
    modules = sorted(name for name in forbidden if name.startswith("holdfast."))
    assert [name for name in modules if find_spec(name) is None] == []


def test_an_export_to_a_folder_loads_neither_aws_nor_tls(tmp_path: Path) -> None:
    """Every worker process would pay for them before its first file."""
    settings = f"WorkSettings({str(tmp_path / 'to')!r}, {str(tmp_path / 'scratch')!r})"
    code = (
        "from holdfast.exports.downloads.work import WorkSettings, make_work\n"
        f"make_work({settings})()"
    )
    assert list_loaded(code, ["holdfast.aws", "boto3", "botocore", "ssl", "pydantic"]) == []
