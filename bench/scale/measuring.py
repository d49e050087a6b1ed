"""Measure what the model needs, and write it to measured.json: `make scale-measure`.

    flows      calls of the package's own code, counted on moto
    keeper     renewal calls of a real keeper, by the number of leases it holds
    calls      time of each call on ministack: CPU of the client, and the whole round trip

The CPU time is that of this process (`time.process_time`), so that other work on the machine
does not change it. The round trip is wall time on a machine that also does other work, so its
lowest value is the best estimate, and the model does not use it: Amazon's own times are
published ranges, see latencies.py.
"""

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

from bench.scale.counting import count_chat_flows, count_job_flows, count_keeper_calls
from support.ministack_server import Ministack, run_ministack

MEASURED = Path(__file__).with_name("measured.json")
_ROUNDS = 150
_KEEPER_LEASES = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 150, 200, 300, 500, 1000)


def measure() -> dict[str, Any]:
    """Return all measurements."""
    return {
        "versions": {
            name: version(name) for name in ("holdfast-queue", "boto3", "ministack", "moto")
        },
        "load_average": round(os.getloadavg()[0], 1),
        "flows": {**count_chat_flows(), **count_job_flows()},
        "keeper_calls_per_second": {
            str(leases): round(count_keeper_calls(leases), 4) for leases in _KEEPER_LEASES
        },
        "calls": measure_calls(),
    }


def measure_calls(rounds: int = _ROUNDS) -> dict[str, dict[str, float]]:
    """Return the times of each call on ministack, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder, run_ministack(Path(folder)) as server:
        return {name: _time_call(call, rounds) for name, call in _make_calls(server)}


def _time_call(call: Callable[[], object], rounds: int) -> dict[str, float]:
    call()  # the first call connects
    trips, began = [], process_time()
    for _ in range(rounds):
        at = perf_counter()
        call()
        trips.append((perf_counter() - at) * 1000)
    cpu = (process_time() - began) * 1000 / rounds
    return {
        "client_cpu_ms": round(cpu, 3),
        "round_trip_lowest_ms": round(min(trips), 2),
        "round_trip_median_ms": round(median(trips), 2),
        "round_trip_p99_ms": round(quantiles(trips, n=100)[98], 2),
    }


def _make_calls(
    server: Ministack,
) -> list[tuple[str, Callable[[], object]]]:
    sqs, dynamodb, states = map(server.client, ("sqs", "dynamodb", "stepfunctions"))
    url = sqs.create_queue(QueueName="measured")["QueueUrl"]
    dynamodb.create_table(
        TableName="measured",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    key = {"id": {"S": "row"}}
    row = {**key, "body": {"S": "x" * 1500}}
    body = json.dumps({"id": "m", "payload": "x" * 300})

    def send() -> None:
        sqs.send_message(QueueUrl=url, MessageBody=body)

    def receive() -> list[dict[str, Any]]:
        send()
        return list(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=1)["Messages"])

    def change_visibility() -> None:
        entry = {"Id": "1", "ReceiptHandle": receipt, "VisibilityTimeout": 60}
        sqs.change_message_visibility_batch(QueueUrl=url, Entries=[entry])

    def delete() -> None:
        entry = {"Id": "1", "ReceiptHandle": receipt}
        sqs.delete_message_batch(QueueUrl=url, Entries=[entry])

    def transact() -> None:
        puts = [{"Put": {"TableName": "measured", "Item": {**row, "id": {"S": str(n)}}}}
                for n in range(3)]  # fmt: skip
        dynamodb.transact_write_items(TransactItems=puts)

    def beat() -> None:
        with suppress(states.exceptions.ClientError):  # an unknown token takes as long
            states.send_task_heartbeat(taskToken="t" * 600)

    receipt = receive()[0]["ReceiptHandle"]
    return [
        ("sqs.SendMessage", send),
        ("sqs.SendMessage and ReceiveMessage", receive),
        ("sqs.ChangeMessageVisibilityBatch", change_visibility),
        ("sqs.DeleteMessageBatch", delete),
        ("dynamodb.PutItem", lambda: dynamodb.put_item(TableName="measured", Item=row)),
        ("dynamodb.GetItem", lambda: dynamodb.get_item(TableName="measured", Key=key)),
        ("dynamodb.TransactWriteItems", transact),
        ("states.SendTaskHeartbeat", beat),
    ]


def write_measurements() -> None:
    """Measure, and write the file that the study reads."""
    MEASURED.write_text(json.dumps(measure(), indent=1, sort_keys=True) + "\n")


def read_measurements() -> dict[str, Any]:
    """Return the stored measurements."""
    measured: dict[str, Any] = json.loads(MEASURED.read_text())
    return measured


if __name__ == "__main__":
    write_measurements()
