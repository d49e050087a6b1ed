"""cold_start: measure import and first message of SQS in a new process."""

import os
import subprocess
import sys
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from bench.report import Result, at_most
from bench.session import Figures, Session
from bench.sqs_server import ACCOUNT, KEY, REGION, MakePlace, Place, serving_sqs

VISIBILITY_SECONDS = 600

_BOTO3 = """
import boto3, json
sqs = boto3.client("sqs", endpoint_url=endpoint)
[message] = sqs.receive_message(QueueUrl=url)["Messages"]
assert json.loads(message["Body"])["number"] == 1
"""
_HEARTBEAT = """
from holdfast.aws import SQSHeartbeat
with SQSHeartbeat.from_queue(url, "receipt"):
    pass
"""
_QUEUE = """
from holdfast import QueueMessage, SQSQueue
class Order(QueueMessage):
    number: int
[order] = SQSQueue(url, Order).poll()
assert order.number == 1
"""
_BATCH = """
from holdfast import QueueMessage
from holdfast.aws import sqs_batch
class Order(QueueMessage):
    number: int
def handle(order: Order): assert order.number == 1
class Context:
    def get_remaining_time_in_millis(self): return 60_000
assert sqs_batch(handle, queue=url)(event, Context()) == {"batchItemFailures": []}
"""
_PYDANTIC = """
from pydantic import BaseModel
class Order(BaseModel):
    number: int
assert Order.model_validate_json('{"number": 1}').number == 1
"""
# The interpreter's own start is not measured, because it is the same for all.
_SCRIPT = """
import sys, time
endpoint, url, event = {endpoint!r}, {url!r}, {event!r}
cpu, wall = time.process_time(), time.perf_counter()
{code}
print(time.process_time() - cpu, time.perf_counter() - wall)
"""

STARTS = {
    "boto3": _BOTO3,
    "Holdfast, SQSHeartbeat": _HEARTBEAT,
    "Holdfast, SQSQueue": _QUEUE,
    "Holdfast, sqs_batch": _BATCH,
    "pydantic, without a call": _PYDANTIC,
}

# What Lambda gives a function: credentials, a region, and no file.
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "LANG": "C.UTF-8",
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": KEY,
    "AWS_SESSION_TOKEN": KEY,
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_LAMBDA_FUNCTION_NAME": "bench",
}


def run_cold_start(session: Session) -> Result:
    """Compare Holdfast with boto3, as in Lambda."""
    title = "SQS: import and first message in a new process"
    with serving_sqs() as make_place, TemporaryDirectory() as home:
        contenders = {
            name: partial(_start, make_place, code, home) for name, code in STARTS.items()
        }
        # One round more, which compiles the modules and is not counted.
        measured = session.measure(title, contenders, rounds=session.size(20, 5) + 1)
    for rounds in measured.rounds.values():
        del rounds[0]
    bound = measured.ratio("pydantic, without a call", "boto3", "cpu")
    return Result(
        title,
        ("", "CPU", "of boto3's", "wall clock"),
        [
            [name, cpu, f"{measured.ratio(name, 'boto3', 'cpu'):.2f} ×", wall]
            for name, cpu, wall in measured.make_rows(
                ("cpu", "{:,.0f} ms"), ("wall", "{:,.0f} ms")
            )
        ],
        [
            at_most(
                f"{name}, as in Lambda: CPU at most 0.5 × boto3's",
                measured.ratio(name, "boto3", "cpu"),
                0.5,
                "×",
                bound=f"pydantic alone, with one message, takes {bound:.2f} ×",
            )
            for name in ("Holdfast, SQSHeartbeat", "Holdfast, SQSQueue")
        ],
        measured,
        "From the first import to the first message, with compiled modules, without the "
        "start of the interpreter and without TLS. Credentials and region are in variables.",
    )


def _start(make_place: MakePlace, code: str, home: str) -> Figures:
    with make_place(VISIBILITY_SECONDS) as place:
        event = _send_messages(place)
        script = _SCRIPT.format(endpoint=place.endpoint, url=place.url, event=event, code=code)
        ran = subprocess.run(
            [sys.executable, "-I", "-c", script],
            env=ENVIRONMENT | {"HOME": home},
            cwd=home,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
    cpu, wall = (float(seconds) * 1000 for seconds in ran.stdout.split())
    return {"cpu": cpu, "wall": wall}


def _send_messages(place: Place) -> dict[str, Any]:
    """Send a message to be received, and return the event by which Lambda delivers another."""
    client = place.client()
    client.send_message(QueueUrl=place.url, MessageBody='{"number": 1}')
    answer = client.receive_message(QueueUrl=place.url, AttributeNames=["All"])
    [message] = answer["Messages"]
    record = {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{place.queue}",
        "awsRegion": REGION,
    }
    client.send_message(QueueUrl=place.url, MessageBody='{"number": 1}')
    client.close()
    return {"Records": [record]}
