"""Neither the content of a message nor the text of a handler's error is logged."""

import asyncio
from typing import Any

import pytest

from holdfast import AnyMessage, Backoff, Reject, Retry, Worker
from holdfast.events import Events
from holdfast.telemetry.logging import make_line_log
from holdfast.testing import MemoryQueue

CANARY = "+49-151-CANARY"


def raises(message: Any, ctx: Any) -> None:
    raise ValueError(f"cannot call {message.phone}")


def rejects(message: Any, ctx: Any) -> Reject:
    return Reject(f"no such number: {message.phone}")


def retries(message: Any, ctx: Any) -> Retry:
    return Retry(0, f"{message.phone} is busy")


def returns_invalid_result(message: Any, ctx: Any) -> Any:
    return message.phone


async def fails_later(message: Any, ctx: Any) -> None:
    await asyncio.sleep(0)
    raise RuntimeError(message.phone)


@pytest.mark.parametrize(
    ("handler", "isolation"),
    [
        *(
            (handler, "thread")
            for handler in (raises, rejects, retries, returns_invalid_result)
        ),
        (raises, "process"),
        (rejects, "process"),
        (fails_later, "async"),
    ],
)
def test_no_log_line_contains_the_content_of_a_message(handler: Any, isolation: Any) -> None:
    lines: list[str] = []
    queue = MemoryQueue(
        AnyMessage,
        max_attempts=2,
        backoff=Backoff(first_seconds=0.01),
        events=Events(make_line_log(lines.append)),
    )
    queue.push(AnyMessage(id="a", phone=CANARY))
    Worker(queue, handler, isolation=isolation).run(until_empty=True)
    [view] = queue.dead_letters()
    assert any("dead_lettered" in line for line in lines)
    assert [line for line in lines if CANARY in line] == []
    assert (CANARY in str(view.reason)) == (
        handler is not returns_invalid_result
    )  # an operator may read it
