"""A child process that handles messages for a worker, one at a time."""

import pickle
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.errors import ConfigError, HandlerNotFound
from holdfast.core.lease.lease import Lease
from holdfast.core.process.child_process import ChildProcess
from holdfast.core.process.frames import MAX_FRAME_BYTES, BrokenFrame
from holdfast.core.process.wire import BROKEN, Program, unpack_broken
from holdfast.core.queue.message import MessageCodec, QueueMessage
from holdfast.core.worker import child_wire
from holdfast.core.worker.handler import Handler, get_handler_name

_PROGRAM = "holdfast.core.worker.child_main"


def pickle_handler(handler: Handler) -> bytes:
    """Pickle the handler by its name. Raises ConfigError if a child could not import it."""
    try:
        return pickle.dumps(handler)
    except Exception as error:  # pickling runs code of the object
        raise ConfigError(
            f"{get_handler_name(handler)} cannot run in a process of its own ({error}): use a "
            "function at the top of an importable module"
        ) from None


class HandlerProcess(ChildProcess):
    """A child process with the worker's handler."""

    def __init__(self, handler: bytes, pulse_seconds: float, clock: Clock) -> None:
        options = {"pulse_seconds": pulse_seconds}
        super().__init__(Program(_PROGRAM, handler, options, imports_main=True), clock)
        self._codec: MessageCodec[Any] | None = None
        self._number = 0  # of the attempt, in each of its frames
        self._loading = True  # the child imports user code and may report that it cannot
        self._deadline = 0.0

    def begin(self, message: QueueMessage, lease: Lease) -> None:
        """Have the child start work on a message.

        Raises HandlerNotFound if a child cannot import the message type, and
        MalformedMessage or MessageTooLarge if the message cannot be sent. In these cases
        nothing was started.
        """
        self._number += 1
        if self._codec is None or self._codec.model is not type(message):
            self._codec = MessageCodec(type(message))
            self.send(self._number, _pack_model(type(message)))
            self._loading = True
        body = self._codec.encode(message)
        self._deadline = lease.deadline
        self.send(self._number, child_wire.pack_call(lease, body))

    def read_frame(self) -> bytes | None:
        """Return the next frame of the attempt, or None if there is none yet.

        Raises EOFError if the child closed its pipe, BrokenFrame if the frame belongs to
        another attempt, and HandlerNotFound if the child cannot load the user's code.
        """
        if (numbered_frame := self.read()) is None:
            return None
        number, frame = numbered_frame
        if number != self._number:
            raise BrokenFrame("it is not about this attempt")
        if self._loading and frame[:1] == BROKEN:
            problem = ": ".join(unpack_broken(frame))
            raise HandlerNotFound(f"a worker process cannot load the handler: {problem}")
        self._loading = False
        return frame

    def respond(self, frame: bytes) -> None:
        """Send a response. Raises BrokenFrame if the child does not read its responses."""
        if self.unsent_bytes > MAX_FRAME_BYTES:
            raise BrokenFrame("it sends requests without reading the responses")
        self.send(self._number, frame)

    def send_deadline(self, deadline: float) -> None:
        """Send the deadline if it changed, because the child ends itself after its deadline."""
        if deadline != self._deadline:
            self._deadline = deadline
            self.send_control(child_wire.CONTROL.pack(deadline))

    def send_stopping(self) -> None:
        """Notify the child that the worker is stopping."""
        self.send_control(child_wire.CONTROL.pack(child_wire.STOPPING))

    @property
    def is_idle(self) -> bool:
        """Whether it is alive and sent nothing after its last outcome. Use between messages."""
        try:
            return self.poll_exit() is None and self.read() is None
        except (EOFError, BrokenFrame):
            return False


def _pack_model(model: type) -> bytes:
    try:
        return child_wire.MODEL + pickle.dumps(model)
    except Exception as error:  # pickling runs code of the model
        raise HandlerNotFound(
            f"{model.__name__} cannot reach a process of its own ({error}): define it at "
            "the top of an importable module"
        ) from None
