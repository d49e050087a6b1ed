"""Tracebacks and stacks begin in the user's code."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import holdfast
from holdfast import AnyMessage, Holdfast, Retry
from holdfast.errors import AttemptFailed, LeaseLost
from holdfast.testing import FakeContext, run_once
from holdfast.worker.outcome import (
    format_traceback,
    shorten,
    skip_own_frames,
    strip_own_frames,
)

PACKAGE = Path(holdfast.__file__).parent


def list_functions(error: BaseException | None) -> list[str]:
    assert error is not None
    trace: TracebackType | None = error.__traceback__
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return names


def look_up(key: str) -> None:
    raise KeyError(key)


def fail(message: Any) -> None:
    look_up("a")


async def fail_later(message: Any) -> None:
    await asyncio.sleep(0)
    look_up("a")


@pytest.mark.parametrize("handler", [fail, fail_later])
def test_a_traceback_begins_in_the_handler(handler: Callable[..., Any]) -> None:
    outcome = run_once(handler, AnyMessage())
    assert isinstance(outcome, Retry)
    assert list_functions(outcome.exception) == [handler.__name__, "look_up"]
    assert outcome.detail is not None
    assert str(PACKAGE) not in outcome.detail


def test_a_traceback_begins_in_the_task() -> None:
    errors: list[BaseException] = []
    app = Holdfast("memory:", max_attempts=1, on_error=lambda error, _: errors.append(error))

    @app.task
    def charge(key: str) -> None:
        look_up(key)

    charge.push("a")
    app.make_worker().run(until_empty=True)
    assert [list_functions(error) for error in errors] == [["charge", "look_up"]]


def test_calls_of_holdfast_within_the_handler_are_shown() -> None:
    ctx = FakeContext()
    ctx.lose()
    outcome = run_once(lambda message, ctx: ctx.beat(), AnyMessage(), ctx)
    assert isinstance(outcome, Retry)
    assert list_functions(outcome.exception) == ["<lambda>", "beat", "beat", "check"]


def test_an_error_of_holdfast_itself_keeps_its_last_frame() -> None:
    ctx = FakeContext()
    ctx.lose()
    with pytest.raises(LeaseLost) as raised:
        ctx.raise_if_lost()
    own_frames = raised.value.__traceback__.tb_next  # type: ignore[union-attr]
    last = skip_own_frames(own_frames)
    assert last is not None
    assert (last.tb_frame.f_code.co_name, last.tb_next) == ("check", None)


# -- the stacks of a child process

PULSE_THREAD = f"""Thread 0x00007f1eb59ff6c0 (most recent call first):
  File "{PACKAGE}/process/child_main.py", line 174 in wait_control
  File "{PACKAGE}/process/child_main.py", line 98 in run_or_exit"""
HANDLER_THREAD = """Current thread 0x00007f1eb7e79b80 (most recent call first):
  File "/home/me/tasks.py", line 24 in stall"""
WORKER_FRAMES = f"""
  File "{PACKAGE}/worker/child_main.py", line 64 in _run_handler
  File "{PACKAGE}/process/child_main.py", line 45 in main
  File "<string>", line 1 in <module>
"""


def test_stacks_show_only_the_users_code() -> None:
    stacks = f"{PULSE_THREAD}\n\n{HANDLER_THREAD}{WORKER_FRAMES}"
    assert strip_own_frames(stacks) == HANDLER_THREAD


def test_stacks_show_what_the_handler_called() -> None:
    in_beat = HANDLER_THREAD.replace(
        "\n", f'\n  File "{PACKAGE}/worker/runner.py", line 117 in beat\n'
    )
    assert strip_own_frames(in_beat + WORKER_FRAMES) == in_beat


def test_the_reason_of_a_crash_is_kept() -> None:
    crash = "Fatal Python error: Segmentation fault"
    shown = strip_own_frames(f"{crash}\n\n{PULSE_THREAD}\n\n{HANDLER_THREAD}")
    assert shown == f"{crash}\n\n{HANDLER_THREAD}"


@pytest.mark.parametrize("stacks", ["", PULSE_THREAD, "no stack"])
def test_stacks_without_the_users_code_are_kept(stacks: str) -> None:
    assert strip_own_frames(stacks) == stacks


# -- as text


def test_an_attempt_that_failed_elsewhere_has_the_traceback_it_brought() -> None:
    assert format_traceback(AttemptFailed("it died", "its stacks")) == "its stacks"
    assert format_traceback(AttemptFailed("it died")) is None


def test_an_exception_that_cannot_be_shown_has_no_traceback() -> None:
    class Broken(Exception):
        @property
        def __suppress_context__(self) -> bool:  # type: ignore[override]
            raise RuntimeError

    assert format_traceback(Broken()) is None


def test_the_traceback_of_a_long_error_is_shortened() -> None:
    assert len(str(format_traceback(ValueError("x" * 1_000_000)))) < 17_000
    assert len(str(format_traceback(AttemptFailed("it died", "x" * 1_000_000)))) < 17_000


def test_a_long_text_keeps_both_ends() -> None:
    short = shorten("begin" + "x" * 1_000_000 + "end\n")
    assert len(short) < 17_000
    assert short.startswith("begin")
    assert short.endswith("end")
