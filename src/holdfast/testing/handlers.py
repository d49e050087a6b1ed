"""Call a handler in a test as a worker would, without a queue and without threads."""

import asyncio
import inspect
import json
from threading import Event
from typing import Any

from holdfast.errors import ConfigError, MalformedMessage
from holdfast.lease.lease import Lease
from holdfast.queue.message import AnyMessage, MessageCodec, QueueMessage, attach_lease
from holdfast.testing.clock import ManualClock
from holdfast.worker.handler import (
    Handler,
    bind_handler,
    check_message_type,
    inspect_handler,
)
from holdfast.worker.outcome import Outcome, Retry, retry_after_error, to_outcome
from holdfast.worker.runner import Context, DirectExecutor

_NO_SOURCE: Any = None


class FakeContext(Context):
    """A context without a queue, which records what the handler reports.

    `checkpoint` is what an earlier attempt saved. The lease is not renewed, and its time is
    `clock`, which the test moves. `max_seconds` is when a queue such as SQS stops extending
    it. Set `stopping` for a worker that drains, and call `lose` for a lease that another
    worker has taken over.
    """

    def __init__(
        self,
        message_id: str = "fake",
        *,
        attempt: int = 1,
        checkpoint: Any = None,
        lease_seconds: float = 60.0,
        max_seconds: float | None = None,
    ) -> None:
        self.clock = ManualClock()
        claimed_at = self.clock.monotonic()
        self.beats = 0
        """How often the handler called `beat`."""
        self._store = _Checkpoints(checkpoint)
        self.lease = Lease(
            _NO_SOURCE,
            None,
            message_id=message_id,
            attempt=attempt,
            # A first claim has no checkpoint, so a checkpoint needs a second one.
            fence=attempt if checkpoint is None else max(2, attempt),
            claimed_at=claimed_at,
            seconds=lease_seconds,
            cap_at=None if max_seconds is None else claimed_at + max_seconds,
        )
        super().__init__(
            self._store, AnyMessage(id=message_id), self.lease, Event(), self.clock
        )

    @property
    def saved_checkpoints(self) -> list[Any]:
        """The checkpoints that the handler saved, oldest first."""
        return self._store.saved

    def beat(self, progress: float | None = None, checkpoint: Any = None) -> None:
        """Count the beat and record the checkpoint. Raises LeaseLost if the lease is lost."""
        super().beat(progress, checkpoint)
        self.beats += 1

    def lose(self, reason: str = "the test took it away") -> None:
        """Lose the lease: `lost` is set, and `beat` and `raise_if_lost` raise LeaseLost."""
        self.lease.lose(reason)


class _Checkpoints:
    def __init__(self, earlier: Any) -> None:
        self._earlier = earlier
        self.saved: list[Any] = []

    def load_checkpoint(self, message: Any) -> Any:
        return self._earlier

    def save_checkpoint(self, message: Any, checkpoint: Any) -> None:
        try:
            self.saved.append(json.loads(json.dumps(checkpoint, allow_nan=False)))
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedMessage(
                f"the checkpoint cannot be written as JSON: {error}"
            ) from None


def run_once(
    handler: Handler, message: QueueMessage, ctx: FakeContext | None = None
) -> Outcome:
    """Call the handler once, and return its outcome as a worker would map it.

    An exception of the handler is a Retry that has it as its `exception`. The handler gets a
    copy of the message that was written as JSON and read again, as from a queue. An `async`
    handler runs on an event loop of its own, so async tests need `arun_once`. Raises
    ConfigError if no worker would take the handler, and MalformedMessage or MessageTooLarge
    if no queue could store the message.
    """
    context, received = _deliver(handler, message, ctx)
    if inspect_handler(handler).is_async and _is_loop_running():
        raise ConfigError("run_once in a running event loop: use `await arun_once(…)`")
    executor: DirectExecutor[QueueMessage] = DirectExecutor(handler, lambda *_: context)
    try:
        outcome = executor.execute(received, context.lease)
    finally:
        executor.close()
    if isinstance(outcome, Retry) and isinstance(outcome.exception, KeyboardInterrupt):
        raise outcome.exception  # Ctrl-C ends the tests, although a worker would go on
    return outcome


async def arun_once(
    handler: Handler, message: QueueMessage, ctx: FakeContext | None = None
) -> Outcome:
    """Call an `async` handler on the running event loop, as `run_once` does elsewhere."""
    context, received = _deliver(handler, message, ctx)
    call = bind_handler(handler)
    try:
        result: Any = call(received, context)
        return to_outcome(await result if inspect.isawaitable(result) else result)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise  # the test is to end
    except BaseException as error:
        return retry_after_error(error)


def _deliver(
    handler: Handler, message: QueueMessage, ctx: FakeContext | None
) -> tuple[FakeContext, QueueMessage]:
    """Return the context of the attempt and the message that a queue would deliver."""
    check_message_type(handler, type(message))
    context = ctx or FakeContext()
    context.message_id = context.lease.message_id = message.id
    codec = MessageCodec(type(message))
    received = codec.decode(codec.encode(message))
    attach_lease(received, context.lease)
    return context, received


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
