"""What is in a message, or in the text of a handler's error, reaches no log."""

import asyncio
from typing import Any

import pytest

from holdfast import AnyMessage, Backoff, Reject, Retry, Worker
from holdfast.adapters.observe.logging import line_log
from holdfast.core.events import Events
from holdfast.testing import MemoryQueue

CANARY = "+49-151-CANARY"


def raises(message: Any, ctx: Any) -> None:
    raise ValueError(f"cannot call {message.phone}")


def rejects(message: Any, ctx: Any) -> Reject:
    return Reject(f"no such number: {message.phone}")


def retries(message: Any, ctx: Any) -> Retry:
    return Retry(0, f"{message.phone} is busy")


def nonsense(message: Any, ctx: Any) -> Any:
    return message.phone


async def fails_later(message: Any, ctx: Any) -> None:
    await asyncio.sleep(0)
    raise RuntimeError(message.phone)


@pytest.mark.parametrize(
    ("handler", "isolation"),
    [
        *((handler, "thread") for handler in (raises, rejects, retries, nonsense)),
        (raises, "process"),
        (rejects, "process"),
        (fails_later, "async"),
    ],
)
def test_no_line_of_the_log_holds_what_the_message_held(handler: Any, isolation: Any) -> None:
    lines: list[str] = []
    queue = MemoryQueue(
        AnyMessage,
        max_attempts=2,
        backoff=Backoff(first_seconds=0.01),
        events=Events(line_log(lines.append)),
    )
    queue.push(AnyMessage(id="a", phone=CANARY))
    Worker(queue, handler, isolation=isolation).run(until_empty=True)
    [view] = queue.dead_letters()
    assert any("dead_lettered" in line for line in lines)
    assert [line for line in lines if CANARY in line] == []
    assert (CANARY in str(view.reason)) == (handler is not nonsense)  # a person may see it
