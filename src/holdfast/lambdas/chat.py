"""Conversations in a Lambda function: built with the first event, and kept for the next.

Nothing is built at import. A function that is only being published has no tables and no
secrets yet, and an error there would hide the log line that says what is missing.
"""

import logging
import os
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.observe import make_application_log
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.core.events import Events

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.lambdas.webhook import SignatureCheck

log = logging.getLogger("holdfast")


class ChatRuntime:
    """The chat application of this process, with what only Lambda needs.

    It is safe for threads. If something cannot be built, the next event tries again.
    """

    def __init__(self, env: Mapping[str, str] | None = None, clock: Clock = SYSTEM_CLOCK):
        self.env = os.environ if env is None else env
        self._clock = clock
        self._building = Lock()
        self._app: ChatApp | None = None
        self._events: Events | None = None
        self._signatures: SignatureCheck | None = None

    @property
    def events(self) -> Events:
        """Return the events of this process, which go to the application's log."""
        if self._events is None:
            self._events = Events(make_application_log())
        return self._events

    @property
    def app(self) -> "ChatApp":
        """Return the application. Raises ConfigError or StoreUnavailable."""
        with self._building:
            if self._app is None:
                from holdfast.bootstrap.chats import build_chat

                self._app = build_chat(self.env, clock=self._clock, events=self.events)
            return self._app

    @property
    def signatures(self) -> "SignatureCheck":
        """Return the check of Twilio's signatures.

        Raises the same as `app`, and ConfigError if the token's location is not set.
        """
        app = self.app
        with self._building:
            if self._signatures is None:
                if (reference := app.settings.twilio_secret) is None:
                    raise ConfigError(
                        "HOLDFAST_CHAT_TWILIO_SECRET is not set: without Twilio's token "
                        "its requests cannot be distinguished from forged ones"
                    )
                from holdfast.lambdas.webhook import SignatureCheck

                self._signatures = SignatureCheck(app.providers.secrets, reference, self._clock)
            return self._signatures

    def stop_idle_keeper(self) -> None:
        """Stop the keeper between two events, when it has nothing to renew.

        A handler that was cut off and still runs keeps its lock. Its keeper is not stopped,
        because this would wait for a call that may hang.
        """
        if self._app is not None and not self._app.keeper.held:
            self._app.keeper.stop()


def log_safe_error(error: Exception) -> Any:
    """Return what a log may show of an error.

    Only the texts of HoldfastError are certain to contain no body and no number.
    """
    return error if isinstance(error, HoldfastError) else type(error).__name__
