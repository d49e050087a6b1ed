"""Conversations in a Lambda function: put together with the first event, kept for the next.

Never at import: a function that is only being published has no tables and no secrets yet,
and an error there would hide the log line that says what is missing.
"""

import logging
import os
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.observe import application_log
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.core.events import Events

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.lambdas.webhook import SignatureCheck

log = logging.getLogger("holdfast")


class ChatRuntime:
    """The app of this process and what only Lambda needs of it. Safe for threads. What
    fails is tried again with the next event."""

    def __init__(self, env: Mapping[str, str] | None = None, clock: Clock = SYSTEM_CLOCK):
        self.env = os.environ if env is None else env
        self._clock = clock
        self._making = Lock()
        self._app: ChatApp | None = None
        self._events: Events | None = None
        self._signatures: SignatureCheck | None = None

    @property
    def events(self) -> Events:
        if self._events is None:
            self._events = Events(application_log())
        return self._events

    @property
    def app(self) -> "ChatApp":
        """Raises ConfigError, StoreUnavailable."""
        with self._making:
            if self._app is None:
                from holdfast.bootstrap.chats import build_chat

                self._app = build_chat(self.env, clock=self._clock, events=self.events)
            return self._app

    @property
    def signatures(self) -> "SignatureCheck":
        """Raises as `app`; ConfigError, too, when nobody said where Twilio's token is."""
        app = self.app
        with self._making:
            if self._signatures is None:
                if (reference := app.settings.twilio_secret) is None:
                    raise ConfigError(
                        "HOLDFAST_CHAT_TWILIO_SECRET is not set: without Twilio's token "
                        "nobody can tell its requests from others"
                    )
                from holdfast.lambdas.webhook import SignatureCheck

                self._signatures = SignatureCheck(app.providers.secrets, reference, self._clock)
            return self._signatures

    def rest(self) -> None:
        """Between two events nothing is renewed, so no thread need be there. One that was
        cut off keeps its lock while it still works; what hangs there must not be waited for."""
        if self._app is not None and not self._app.keeper.held:
            self._app.keeper.stop()


def told(error: Exception) -> Any:
    """What a log may have: only our own errors are known to hold no body and no number."""
    return error if isinstance(error, HoldfastError) else type(error).__name__
