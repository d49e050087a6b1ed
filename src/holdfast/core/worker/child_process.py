"""The worker's hold on one child process: start it, talk to it, see it die."""

import atexit
import multiprocessing
import os
import pickle
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from select import POLLIN, POLLOUT, poll
from threading import Lock
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.errors import ConfigError, HandlerNotFound
from holdfast.core.lease.lease import Lease
from holdfast.core.process.frames import MAX_FRAME_BYTES, BrokenFrame, Frames
from holdfast.core.process.process_group import born_deaf, death_of, group_is_gone, kill_group
from holdfast.core.queue.message import MessageCodec, QueueMessage
from holdfast.core.worker import child_main, child_wire
from holdfast.core.worker.handler import Handler, name_of

_spawn = multiprocessing.get_context("spawn")
_one_at_a_time = Lock()

_STACKS_SECONDS = 1.0  # to wait for a dump; one that is stopped answers nothing
_QUIET_SECONDS = 0.1  # after which a dump is taken for complete
_DEATH_SECONDS = 10.0  # after SIGKILL; only the kernel itself can take longer
_GROUP_SECONDS = 1.0  # for the rest of its group
_STACKS_BYTES = 256 * 1024  # a hundred threads; a child may write into that pipe without end


def pickled(handler: Handler) -> bytes:
    """The handler as a child can find it. Raises ConfigError when it cannot."""
    try:
        return pickle.dumps(handler)
    except Exception as error:  # whatever the object does when pickled
        raise ConfigError(
            f"{name_of(handler)} cannot run in a process of its own ({error}): use a "
            "function at the top of an importable module"
        ) from None


class ChildProcess:
    """One child, its pipes and its process group. Used by one thread, but for `abort`."""

    def __init__(self, handler: bytes, interval: float, clock: Clock) -> None:
        self._clock = clock
        self._codec: MessageCodec[Any] | None = None
        # Two pipes are twice as fast as one that goes both ways.
        orders, self._orders = _spawn.Pipe(duplex=False)
        self._answers, answers = _spawn.Pipe(duplex=False)
        self._control, control = _spawn.Pipe()
        self._stacks, stacks = _spawn.Pipe(duplex=False)
        theirs = (orders, answers, control, stacks)
        self._process = _spawn.Process(
            target=child_main.main, args=(*theirs, handler, interval)
        )
        try:
            _start(self._process)
        except BaseException:
            self._close_pipes()
            raise
        finally:
            for pipe in theirs:
                pipe.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)
        self._frames = Frames(self._answers.fileno(), self._orders.fileno())
        self._number = 0  # of the attempt; each frame has it
        self._loading = True  # the user's code; it may say that it cannot be loaded
        self._sent_all = True
        self._deadline = 0.0
        self._poll = poll()
        for readable in (self._answers, self._control, self._process.sentinel):
            self._poll.register(readable, POLLIN)
        # Should nobody close us, Python would wait for the child at its exit, for ever.
        atexit.register(self.abort)

    # -- talking

    def wait(self, seconds: float) -> None:
        """Wait until there is something to read, the child is gone, or time is up."""
        self._poll.poll(seconds * 1000)
        if not self._sent_all:
            self._sent(self._frames.flush())

    def read(self) -> bytes | None:
        """The next frame of the child, if any. EOFError: there will be no more.

        Raises BrokenFrame for one that is not about the attempt at hand, and HandlerNotFound
        when the child says that it cannot load the user's code.
        """
        if (said := self._frames.read()) is None:
            return None
        number, frame = child_wire.split_number(said)
        if number != self._number:
            raise BrokenFrame("it is not about this attempt")
        if self._loading and frame[:1] == child_wire.BROKEN:
            problem = frame[1:].decode(errors="replace")
            raise HandlerNotFound(f"a worker process cannot load the handler: {problem}")
        self._loading = False
        return frame

    def send(self, frame: bytes) -> None:
        self._sent(self._frames.send(child_wire.numbered(self._number, frame)))

    def answer(self, frame: bytes) -> None:
        """Answer a question. Raises BrokenFrame when the child asks and does not read."""
        if self._frames.unsent_bytes > MAX_FRAME_BYTES:
            raise BrokenFrame("it asks on without reading the answers")
        self.send(frame)

    def _sent(self, all_of_it: bool) -> None:
        if all_of_it != self._sent_all:
            self._sent_all = all_of_it
            if all_of_it:
                self._poll.unregister(self._orders)
            else:
                self._poll.register(self._orders, POLLOUT)

    def begin(self, message: QueueMessage, lease: Lease) -> None:
        """Have the child start on a message.

        Raises HandlerNotFound when children cannot know its type, MalformedMessage or
        MessageTooLarge when it cannot be sent; nothing was started then.
        """
        self._number += 1
        if self._codec is None or self._codec.model is not type(message):
            self._codec = MessageCodec(type(message))
            self.send(_packed_model(type(message)))
            self._loading = True
        body = self._codec.encode(message)
        self._deadline = lease.deadline
        self.send(child_wire.pack_call(lease, body))

    def tell_deadline(self, deadline: float) -> None:
        """Pass on a renewal: past its deadline the child ends itself."""
        if deadline != self._deadline:
            self._deadline = deadline
            self._tell(child_wire.DEADLINE, deadline)

    def tell_stopping(self) -> None:
        self._tell(child_wire.STOPPING, 0.0)

    def _tell(self, kind: bytes, value: float) -> None:
        with suppress(OSError):  # it is gone, or does not listen; both show otherwise
            os.write(self._control.fileno(), child_wire.CONTROL.pack(kind, value))

    def pulses(self) -> bytes:
        """The signs of life since the last call. Raises BrokenFrame for anything else."""
        try:
            signs = os.read(self._control.fileno(), 4096)
        except OSError:
            return b""
        if signs.strip(child_wire.PULSE + child_wire.MOVED):
            raise BrokenFrame("its sign of life is none")
        return signs

    # -- watching and ending

    @property
    def alive(self) -> bool:
        return self._process.exitcode is None

    @property
    def idle(self) -> bool:
        """Whether it lives and said nothing since its last outcome. Ask between messages."""
        try:
            return self.alive and self._frames.read() is None
        except (EOFError, BrokenFrame):
            return False

    def how_it_died(self) -> str:
        code = self._process.exitcode
        return "not yet" if code is None else death_of(code)

    def stacks(self) -> str:
        """Where each thread of the child is; works when its interpreter is stuck."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, child_main.STACKS_SIGNAL)
        return self._dumped(_STACKS_SECONDS)

    def last_words(self) -> str:
        """What was dumped when it died: a segmentation fault has a stack too."""
        return self._dumped(0.0)

    def _dumped(self, seconds: float) -> str:
        written = poll()
        written.register(self._stacks.fileno(), POLLIN)
        text = bytearray()
        until = self._clock.monotonic() + seconds
        while len(text) < _STACKS_BYTES and written.poll(
            max(0.0, until - self._clock.monotonic()) * 1000
        ):
            try:
                chunk = os.read(self._stacks.fileno(), 1 << 16)
            except OSError:
                break
            if not chunk:
                break
            text += chunk
            until = min(until, self._clock.monotonic() + _QUIET_SECONDS)
        return text.decode(errors="replace")

    def terminate(self) -> None:
        self._process.terminate()

    def dead_within(self, seconds: float) -> bool:
        """Wait for its end. Not by the sentinel alone: what it forked holds that open."""
        until = self._clock.monotonic() + seconds
        exited = poll()
        exited.register(self._process.sentinel, POLLIN)
        pause = 0.001
        while self.alive and (left := until - self._clock.monotonic()) > 0:
            if exited.poll(min(left, pause) * 1000):
                self._clock.sleep(min(left, 0.001))
            pause = min(pause * 2, 0.05)
        return not self.alive

    def abort(self) -> None:
        """Kill it and all it started, at once."""
        if self.alive:
            self._process.kill()
        kill_group(self.pid)

    def close(self, grace_seconds: float) -> None:
        """Let it end by itself, as long as that; then by force."""
        self._orders.close()
        self.dead_within(grace_seconds)
        self.destroy()

    def destroy(self) -> str | None:
        """Kill what is left of it and let go of it. How it died; None: it cannot be killed."""
        self.abort()
        dead = self.dead_within(_DEATH_SECONDS)
        atexit.unregister(self.abort)
        self._close_pipes()
        if not dead:
            return None
        self._wait_for_group()
        how = self.how_it_died()
        self._process.close()
        return how

    def _wait_for_group(self) -> None:
        """What it started was killed with it; see that gone, too.

        Not for ever: where nobody buries orphans, the dead stay in their group.
        """
        until = self._clock.monotonic() + _GROUP_SECONDS
        while not group_is_gone(self.pid) and self._clock.monotonic() < until:
            self._clock.sleep(0.002)

    def _pipes(self) -> tuple[Connection, ...]:
        return self._orders, self._answers, self._control, self._stacks

    def _close_pipes(self) -> None:
        for pipe in self._pipes():
            pipe.close()


def _start(process: Any) -> None:
    with _one_at_a_time:
        # Its first start unblocks SIGINT, so let that be over.
        resource_tracker.ensure_running()
        with born_deaf():
            process.start()


def _packed_model(model: type) -> bytes:
    try:
        return child_wire.pack_model(model)
    except Exception as error:
        raise HandlerNotFound(
            f"{model.__name__} cannot reach a process of its own ({error}): define it at "
            "the top of an importable module"
        ) from None
