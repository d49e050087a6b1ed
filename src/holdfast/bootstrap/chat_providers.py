"""Who writes replies and who sends them, by the names that profiles use."""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from holdfast.config.chat import ChatSettings
from holdfast.conversations.errors import PermanentError
from holdfast.conversations.policy import ConversationProfile
from holdfast.core.clock import Clock

if TYPE_CHECKING:
    from holdfast.conversations.ports import ReplySender, ReplyWriter, SecretStore

T = TypeVar("T")

# For trying it out: needs nobody, costs nothing, sends nothing to anybody.
LOCAL = ConversationProfile(
    channel_config={"provider": "outbox"}, ai_config={"provider": "echo"}
)

WRITERS = ("openai", "echo")
SENDERS = ("twilio", "smtp", "outbox")


class ChatProviders:
    """Each is made when it is first asked for, once: local use needs no vendor's package.
    Safe for threads."""

    def __init__(self, settings: ChatSettings, env: Mapping[str, str], clock: Clock) -> None:
        self._settings, self._env, self._clock = settings, env, clock
        self._making = Lock()
        self._made: dict[str, object] = {}

    @property
    def secrets(self) -> "SecretStore":
        return self._once("secrets", self._secrets)

    def writer(self, name: str) -> "ReplyWriter":
        """Raises PermanentError: nobody of that name, or its package is not installed."""
        _must_be_one_of(WRITERS, name, "writer")
        return self._once(f"writer {name}", lambda: self._writer(name))

    def sender(self, name: str) -> "ReplySender":
        """Raises as `writer`."""
        _must_be_one_of(SENDERS, name, "sender")
        return self._once(f"sender {name}", lambda: self._sender(name))

    def _writer(self, name: str) -> "ReplyWriter":
        if name == "openai":
            from holdfast.adapters.chat.openai import OpenAIWriter

            return OpenAIWriter()
        from holdfast.adapters.chat.echo import EchoWriter

        return EchoWriter()

    def _sender(self, name: str) -> "ReplySender":
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

    def _secrets(self) -> "SecretStore":
        from holdfast.adapters.chat.secrets import SecretResolver

        return SecretResolver(self._env, self._secrets_manager)

    def _secrets_manager(self) -> "SecretStore":
        from holdfast.adapters.aws.secrets import SecretsManagerSecrets

        seconds = self._settings.secrets_cache_seconds
        return SecretsManagerSecrets(cache_seconds=seconds, clock=self._clock)

    def _once(self, key: str, make: Callable[[], T]) -> T:
        with self._making:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]  # type: ignore[return-value]  # what `make` made


def _must_be_one_of(names: tuple[str, ...], name: str, what: str) -> None:
    if name not in names:
        raise PermanentError(f"there is no {what} of that name; there are {', '.join(names)}")
