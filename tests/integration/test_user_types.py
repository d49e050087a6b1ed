"""What a type checker says about a user's code: right code passes, wrong code is found."""

import re
import subprocess
import sys
from pathlib import Path

from support.paths import make_mypy_environment

CODE = """
from dataclasses import dataclass
from typing import assert_type

from pydantic import BaseModel

from holdfast import (
    AnyMessage,
    Backoff,
    Context,
    Holdfast,
    Message,
    QueueManager,
    QueueMessage,
    Retry,
    Worker,
    open_queue,
)
from holdfast.events import DeadLettered, Retried
from holdfast.testing import FakeContext, MemoryQueueFactory, run_once


class Enrich(QueueMessage):
    domain: str


@dataclass
class Order:
    product: str


class Invoice(BaseModel):
    cents: int


def handle(message: Enrich, ctx: Context) -> Retry | None:
    ctx.beat()
    return None


async def handle_alone(message: Enrich) -> None: ...


def handle_any(message: QueueMessage) -> None: ...


def handle_order(message: Message[Order], ctx: Context) -> None:
    assert_type(message.payload.product, str)


def handle_number(message: Enrich) -> int:
    return 3


def report(error: BaseException, event: Retried | DeadLettered) -> None:
    print(error, event.message_id)


queue = open_queue("enrich", Enrich, lease_seconds=30, backoff="5s", dedupe=True)
assert_type(queue, QueueManager[Enrich])
assert_type(open_queue(), QueueManager[AnyMessage])
assert_type(open_queue(model=Enrich, backoff=Backoff(5)), QueueManager[Enrich])
queue.push(Enrich(domain="example.com"), delay_seconds=5)
queue.push(Order("tea"))  # error
open_queue("enrich", leese_seconds=30)  # error
open_queue("enrich", durability="eternal")  # error
Worker(queue, handle, concurrency=4)
Worker(queue, handle_alone, isolation="async")
Worker(queue, handle_any, on_error=report)
Worker(queue, lambda message: None)
Worker(queue, handle_order)  # error
Worker(queue, handle_number)  # error
Worker(queue, handle, on_error=handle)  # error

orders = open_queue("orders", Order)
assert_type(orders, QueueManager[Message[Order]])
orders.push(Order("tea"))
orders.push(Message(payload=Order("tea"), id="acme-42"))
orders.push(Enrich(domain="example.com"))  # error
orders.push("tea")  # error
Worker(orders, handle_order)
Worker(orders, handle)  # error

invoices = open_queue("invoices", Invoice)
assert_type(invoices, QueueManager[Message[Invoice]])
invoices.push(Invoice(cents=5))


app = Holdfast("sqlite:work.db", lease_seconds=30, on_error=lambda error, event: None)
Holdfast(dedupe=True)
Holdfast(leese_seconds=30)  # error


@app.task(stall="60s", isolation="process", retries=5, backoff="5s,x2")
def enrich(domain: str, depth: int = 1) -> int:
    return depth


@app.task
async def count(domain: str) -> int:
    return 1


app.task(retry=5)  # error
assert_type(enrich("example.com"), int)
enrich(5)  # error
assert_type(enrich.push(domain="example.com", delay="10m", id="acme-42"), str)
enrich.push("example.com", delay=b"10m")  # error
app.make_worker(concurrency=4).run(until_empty=True)
app.make_worker(concurency=4)  # error
with app.testing(run=False) as pushed:
    assert_type(pushed[0].delay_seconds, float)


async def use() -> None:
    assert_type(await count("example.com"), int)
    assert_type(await count.apush("example.com"), str)
    await queue.aio.push(Enrich(domain="example.com"))
    await queue.aio.push("tea")  # error
    await orders.aio.push(Order("tea"))
    for message in await orders.aio.poll(10, wait_seconds=5):
        assert_type(message.payload, Order)
        await orders.aio.ack(message)


def test_poll(memory_queue: MemoryQueueFactory) -> None:
    assert_type(memory_queue(Enrich, max_attempts=2).poll(), list[Enrich])


run_once(handle, Enrich(domain="example.com"))
handle(Enrich(domain="example.com"), FakeContext())
"""
WRONG = {number for number, line in enumerate(CODE.splitlines(), 1) if line.endswith("# error")}


def test_mypy_accepts_what_is_right_and_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(CODE)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "user.py"],
        cwd=tmp_path,
        env=make_mypy_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = {int(line) for line in re.findall(r"^user\.py:(\d+): error", ran.stdout, re.M)}
    assert found == WRONG, ran.stdout + ran.stderr
