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
    "holdfast.queues.sqs",
    "holdfast.store",
    "holdfast.telemetry.metrics",
    "multiprocessing",
    "prometheus_client",
    "rich",
    "sqlite3",
    "ssl",
    "structlog",
    "subprocess",
    "typer",
    "urllib.request",
]


def list_modules(code: str) -> list[str]:
    """Run the code in a fresh interpreter and return the modules that it loaded."""
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return list(json.loads(ran.stdout))


def list_loaded(code: str, forbidden: list[str]) -> list[str]:
    """Return the modules that the code loads although they are forbidden."""
    modules = [name for name in forbidden if name.startswith("holdfast.")]
    assert all(map(find_spec, modules)), "a name that no module has forbids nothing"
    return [
        module
        for module in list_modules(code)
        if any(module == name or module.startswith(f"{name}.") for name in forbidden)
    ]


def test_a_batch_function_loads_only_what_it_uses() -> None:
    assert list_loaded("import holdfast.aws.lambdas.batch", NEVER_NEEDED) == []


def test_making_a_batch_function_loads_nothing_more() -> None:
    code = (
        "from holdfast.aws import sqs_batch\n"
        "def handle(message, ctx): ...\n"
        "lambda_handler = sqs_batch(handle)"
    )
    assert list_loaded(code, NEVER_NEEDED) == []


def test_a_module_of_tasks_loads_neither_a_worker_nor_a_queue() -> None:
    code = (
        "from holdfast import Holdfast\n"
        "app = Holdfast('sqlite:work.db')\n"
        "@app.task(isolation='process', stall='60s')\n"
        "def enrich(domain: str): ..."
    )
    unused = [*NEVER_NEEDED, "holdfast.worker.worker", "holdfast.testing"]
    assert list_loaded(code, unused) == []


def test_the_first_event_loads_neither_jobs_nor_conversations() -> None:
    code = "import holdfast.queues.sqs.queue, holdfast.telemetry.logging"
    assert list_loaded(code, ["holdfast.chat", "holdfast.jobs", "asyncio"]) == []


@pytest.mark.parametrize("module", ["holdfast", "holdfast.aws", "holdfast.lambdas"])
def test_a_public_module_loads_its_names_on_first_use(module: str) -> None:
    heavy = ["boto3", "pydantic", "holdfast.queue", "holdfast.queues", "holdfast.worker"]
    assert list_loaded(f"import {module}", heavy) == []


def test_events_load_neither_pydantic_nor_a_database() -> None:
    heavy = ["asyncio", "pydantic", "sqlite3", "boto3", "holdfast.queues", "holdfast.store"]
    assert list_loaded("from holdfast.events import *", heavy) == []


# -- the first call to SQS

_CALL = """
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
_HEARTBEAT = """
from holdfast.aws import SQSHeartbeat
heartbeat = SQSHeartbeat(url, "receipt", 1, 30, initial_beat=True)
heartbeat._change_visibility(30)
"""
_QUEUE = """
from holdfast import SQSQueue
assert SQSQueue(url).poll(wait_seconds=0) == []
"""
_TYPED_QUEUE = """
from holdfast import QueueMessage, SQSQueue
class Enrich(QueueMessage):
    domain: str
assert SQSQueue(url, Enrich).poll(wait_seconds=0) == []
"""


@pytest.mark.parametrize("code", [_HEARTBEAT, _QUEUE, _TYPED_QUEUE])
def test_the_first_call_loads_no_model_of_a_service(code: str) -> None:
    """They take most of boto3's cold start. The environment is that of a Lambda function."""
    slow = ["boto3", "botocore.client", "botocore.loaders", "botocore.session", "urllib3"]
    assert list_loaded(_CALL + code, slow) == []


def test_a_heartbeat_loads_neither_pydantic_nor_the_queue() -> None:
    heavy = ["pydantic", "uuid", "botocore.exceptions", "holdfast.queues.sqs.queue"]
    assert list_loaded(_CALL + _HEARTBEAT, heavy) == []


def test_the_first_poll_loads_only_what_it_uses() -> None:
    """What is left is pydantic, the client, and the queue itself."""
    unused = [name for name in NEVER_NEEDED if name not in ("holdfast.queues.sqs", "ssl")]
    unused += [
        "botocore.exceptions",  # of a call that fails
        "holdfast.process.child_process",
        "holdfast.queue.aio",
        "holdfast.queue.info",  # what operators see
        "holdfast.worker",
        "holdfast.testing",
    ]
    assert list_loaded(_CALL + _TYPED_QUEUE, unused) == []


def test_an_export_to_a_folder_loads_neither_aws_nor_tls(tmp_path: Path) -> None:
    """Every worker process would pay for them before its first file."""
    settings = f"WorkSettings({str(tmp_path / 'to')!r}, {str(tmp_path / 'scratch')!r})"
    code = (
        "from holdfast.exports.downloads.work import WorkSettings, make_work\n"
        f"make_work({settings})()"
    )
    forbidden = ["holdfast.aws", "boto3", "botocore", "ssl", "pydantic"]
    assert list_loaded(code, forbidden) == []
