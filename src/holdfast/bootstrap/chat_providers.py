"""The writers and senders of replies, by the names that profiles use."""

from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from holdfast.config.chat import ChatSettings
from holdfast.conversations.errors import PermanentError
from holdfast.conversations.policy import ConversationProfile
from holdfast.core.clock import Clock

if TYPE_CHECKING:
    from holdfast.conversations.ports import ReplySender, ReplyWriter, SecretStore

T = TypeVar("T")

# For local use: it needs no account, costs nothing, and sends nothing outside the machine.
LOCAL_PROFILE = ConversationProfile(
    channel_config={"provider": "outbox"}, ai_config={"provider": "echo"}
)

WRITERS = ("openai", "echo")
SENDERS = ("twilio", "smtp", "outbox")


class ChatProviders:
    """The providers, each of which is made once, on first use.

    So local use needs no vendor's package. Safe for threads.
    """

    def __init__(self, settings: ChatSettings, env: Mapping[str, str], clock: Clock) -> None:
        self._settings, self._env, self._clock = settings, env, clock
        self._making = Lock()
        self._made: dict[str, object] = {}

    @property
    def secrets(self) -> "SecretStore":
        """Return the store of secrets."""
        return self._make_once("secrets", self._make_secrets)

    def writer(self, name: str) -> "ReplyWriter":
        """Return the writer of that name.

        Raises PermanentError if the name is unknown or its package is not installed.
        """
        _require_known(WRITERS, name, "writer")
        return self._make_once(f"writer {name}", lambda: self._make_writer(name))

    def sender(self, name: str) -> "ReplySender":
        """Return the sender of that name. Raises as `writer` does."""
        _require_known(SENDERS, name, "sender")
        return self._make_once(f"sender {name}", lambda: self._make_sender(name))

    def _make_writer(self, name: str) -> "ReplyWriter":
        if name == "openai":
            from holdfast.adapters.chat.openai import OpenAIWriter

            return OpenAIWriter()
        from holdfast.adapters.chat.echo import EchoWriter

        return EchoWriter()

    def _make_sender(self, name: str) -> "ReplySender":
        match name:
            case "twilio":
                from holdfast.adapters.chat.twilio import TwilioSender

                return TwilioSender()
            case "smtp":
                from holdfast.adapters.chat.smtp import SmtpSender

                return SmtpSender(self._clock)
            case _:
                from holdfast.adapters.chat.outbox import OutboxSender

                return OutboxSender(self._settings.outbox_folder, self._clock)

    def _make_secrets(self) -> "SecretStore":
        from holdfast.adapters.chat.secrets import SecretResolver, SecretsManagerSecrets

        seconds = self._settings.secrets_cache_seconds
        manager = partial(SecretsManagerSecrets, cache_seconds=seconds, clock=self._clock)
        return SecretResolver(self._env, manager)

    def _make_once(self, key: str, make: Callable[[], T]) -> T:
        with self._making:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]  # type: ignore[return-value]  # the type that `make` returned


def _require_known(names: tuple[str, ...], name: str, role: str) -> None:
    if name not in names:
        raise PermanentError(f"the provider of the {role} must be one of {', '.join(names)}")
