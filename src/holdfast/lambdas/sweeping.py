"""The sweeper in Lambda: `holdfast.lambdas.sweeping.handler`, for a schedule.

One pass with each event, whatever it is: staged messages that no trigger is coming for get
one, and what was not answered for days is parked. The answer tells the counts.
"""

from dataclasses import asdict
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.lambdas.chat import ChatRuntime


class SweepingFunction:
    """The entry point. It raises what the sweep raised, so that the function's errors can
    be alarmed on; Lambda asks again by itself, and a second pass does no harm."""

    def __init__(self, chat: ChatRuntime) -> None:
        self._chat = chat

    def __call__(self, event: Any, context: Any) -> dict[str, float]:
        try:
            return asdict(self._chat.app.sweeper.sweep())
        except HoldfastError:
            raise
        except Exception as error:  # Lambda logs what is raised, and a text may tell a number
            raise HoldfastError(f"the sweep failed: {type(error).__name__}") from None


handler = SweepingFunction(ChatRuntime())
