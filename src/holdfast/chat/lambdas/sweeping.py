"""The sweeper in Lambda: `holdfast.lambdas.sweeping.handler`, for a schedule.

Each event of any kind causes one sweep. Staged messages without a trigger get one, and
messages that were not answered for days are parked. The response contains the counts.
"""

from dataclasses import asdict
from typing import Any

from holdfast.chat.lambdas.setup import ChatRuntime
from holdfast.errors import HoldfastError


class SweepingFunction:
    """The entry point of the sweeper.

    It raises the errors of the sweep, so that alarms can use the function's error count.
    Lambda retries by itself, and a second sweep is safe.
    """

    def __init__(self, chat: ChatRuntime) -> None:
        self._chat = chat

    def __call__(self, event: Any, context: Any) -> dict[str, float]:
        try:
            return asdict(self._chat.app.sweeper.sweep())
        except HoldfastError:
            raise
        except Exception as error:  # Lambda logs the error, whose text may contain a number
            raise HoldfastError(f"the sweep failed: {type(error).__name__}") from None
        finally:
            self._chat.flush_events()


handler = SweepingFunction(ChatRuntime())
