"""cold_start: measure import and first message of SQS in a new process."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.session import Session
from bench.sqs_ground import ACCOUNT, KEY, REGION, Place, serving
from bench.verdict import Bar, Result, ratio, spread

NAME = "cold_start"
TITLE = "SQS: import and first message in a new process"
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


class Environment(StrEnum):
    """Where the credentials and the region of a process come from."""

    LAMBDA = "as in Lambda"
    PROFILE = "with a profile"


@dataclass(frozen=True, slots=True)
class Start:
    """What a new process does first, and in which environment."""

    name: str
    code: str
    environment: Environment = Environment.LAMBDA

    def __str__(self) -> str:
        return self.name

    def with_profile(self) -> "Start":
        """Return the same start in the other environment."""
        return replace(self, environment=Environment.PROFILE)


BOTO3 = Start("boto3", _BOTO3)
HEARTBEAT = Start("Holdfast, SQSHeartbeat", _HEARTBEAT)
QUEUE = Start("Holdfast, SQSQueue", _QUEUE)
BATCH = Start("Holdfast, sqs_batch", _BATCH)
PYDANTIC = Start("pydantic, without a call", _PYDANTIC)
STARTS = (
    BOTO3,
    HEARTBEAT,
    QUEUE,
    BATCH,
    PYDANTIC,
    *(start.with_profile() for start in (BOTO3, HEARTBEAT, QUEUE)),
)


@dataclass(frozen=True, slots=True)
class Taken:
    """The milliseconds of one start."""

    cpu: float
    wall: float


Measured = Mapping[Start, Sequence[Taken]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    rounds = session.size(20, 5)
    measured: dict[Start, list[Taken]] = defaultdict(list)
    with serving() as ground, TemporaryDirectory() as home:
        _write_profile(Path(home))
        # One round more, which compiles the modules and is not counted.
        for start in session.interleaved(TITLE, STARTS, rounds=rounds + 1):
            with ground.place(VISIBILITY_SECONDS) as place:
                event = _send_messages(place)
                measured[start].append(_start(start, place, Path(home), event))
    return _result({start: taken[1:] for start, taken in measured.items()})


def _write_profile(home: Path) -> None:
    (home / "credentials").write_text(
        f"[bench]\naws_access_key_id = {KEY}\naws_secret_access_key = {KEY}\n"
    )
    (home / "config").write_text(f"[profile bench]\nregion = {REGION}\n")


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


def _start(start: Start, place: Place, home: Path, event: Mapping[str, Any]) -> Taken:
    script = _SCRIPT.format(
        endpoint=place.endpoint, url=place.url, event=event, code=start.code
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", script],
        env=_environment(start, home),
        cwd=home,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    cpu, wall = (float(seconds) * 1000 for seconds in ran.stdout.split())
    return Taken(cpu, wall)


def _environment(start: Start, home: Path) -> dict[str, str]:
    """Return a profile, or what Lambda gives a function: credentials, a region, no file."""
    common = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    if start.environment is Environment.PROFILE:
        return common | {
            "AWS_PROFILE": "bench",
            "AWS_CONFIG_FILE": str(home / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / "credentials"),
        }
    return common | {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_SESSION_TOKEN": KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_LAMBDA_FUNCTION_NAME": "bench",
    }


def _result(measured: Measured) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=(
            "",
            "environment",
            "CPU",
            "lowest to highest",
            "of boto3",
            "wall clock",
            "of boto3",
        ),
        rows=[_row(start, measured) for start in STARTS],
        bars=_bars(measured),
        notes=(
            f"Median of {len(measured[BOTO3])} interleaved rounds, each in a new process with "
            "compiled modules, from the first import to the first message, without the start "
            "of the interpreter and without TLS.",
            "boto3 makes a client, receives a message and parses its JSON. SQSHeartbeat reads "
            "the visibility timeout, starts and stops. SQSQueue polls and validates the "
            "message. sqs_batch handles an event with one message, which it extends first.",
            "As in Lambda: credentials and region are in variables, and Holdfast reads them "
            "itself. With a profile, botocore finds them, and importing it takes most of the "
            "time.",
        ),
    )


def _row(start: Start, measured: Measured) -> list[str]:
    base = BOTO3 if start.environment is Environment.LAMBDA else BOTO3.with_profile()
    cpu, wall = _cpu(measured[start]), _wall(measured[start])
    return [
        start.name,
        start.environment.value,
        f"{median(cpu):,.0f} ms",
        spread(cpu),
        f"{ratio(cpu, _cpu(measured[base])):.2f} ×",
        f"{median(wall):,.0f} ms",
        f"{ratio(wall, _wall(measured[base])):.2f} ×",
    ]


def _bars(measured: Measured) -> list[Bar]:
    base = _cpu(measured[BOTO3])
    figures = {start: ratio(_cpu(measured[start]), base) for start in measured}
    bound = f"pydantic alone, with one message, takes {figures[PYDANTIC]:.2f} ×"
    return [
        Bar(
            f"{start}, as in Lambda: CPU at most 0.5 × boto3's",
            figures[start],
            0.5,
            "×",
            at_least=False,
            bound=bound if start is QUEUE else "",
        )
        for start in (HEARTBEAT, QUEUE)
    ]


def _cpu(taken: Sequence[Taken]) -> list[float]:
    return [start.cpu for start in taken]


def _wall(taken: Sequence[Taken]) -> list[float]:
    return [start.wall for start in taken]
