"""Secrets of Amazon's Secrets Manager, kept for a while."""

from threading import Lock
from typing import Any

from holdfast.adapters.aws import clients, errors
from holdfast.adapters.chat.secrets import secret_of
from holdfast.adapters.chat.vendor_logs import silence_vendor_logs
from holdfast.conversations.errors import PermanentError, TransientError
from holdfast.conversations.secret import Secret
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import HoldfastError

_NEEDS = "the role needs secretsmanager:GetSecretValue, and kms:Decrypt for a key of your own"

# In words a person can act on. No retry helps any of them.
_REFUSED = {
    "ResourceNotFoundException": "there is none of that name in this account and region",
    "DecryptionFailure": "it cannot be decrypted: the role needs kms:Decrypt",
    "DecryptionFailureException": "it cannot be decrypted: the role needs kms:Decrypt",
    "InvalidRequestException": "it is being deleted, or has no value",
    "InvalidParameterException": "that is no name of a secret",
    "ValidationException": "that is no name of a secret",
    **dict.fromkeys(errors.DENIED, f"access denied: {_NEEDS}"),
}


class SecretsManagerSecrets:
    """Safe for threads. A secret is asked for once in `cache_seconds`; `forget` is for one
    that was rotated earlier."""

    def __init__(
        self, client: Any = None, cache_seconds: float = 300.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        silence_vendor_logs(
            "botocore.parsers"
        )  # at DEBUG it logs each answer: the secrets themselves
        self._client = clients.patient("secretsmanager") if client is None else client
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._kept: dict[str, tuple[float, Secret]] = {}
        self._lock = Lock()

    def get(self, reference: str) -> Secret:
        asked_at = self._clock.monotonic()
        with self._lock:
            until, kept = self._kept.get(reference, (asked_at, None))
        if kept is not None and asked_at < until:
            return kept
        secret = secret_of(reference, self._fetch(reference))
        with self._lock:
            self._kept[reference] = (asked_at + self._cache_seconds, secret)
        return secret

    def forget(self, reference: str) -> None:
        with self._lock:
            self._kept.pop(reference, None)

    def _fetch(self, reference: str) -> str:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.get_secret_value(SecretId=reference)
        except (BotoCoreError, ClientError) as error:
            raise _explained(reference, error) from None
        if not isinstance(text := answer.get("SecretString"), str):
            raise PermanentError(f"secret {reference!r} is binary: it must be a text")
        return text


def _explained(reference: str, error: Exception) -> HoldfastError:
    code = errors.code_of(error)
    if code in _REFUSED:
        return PermanentError(f"secret {reference!r}: {_REFUSED[code]}")
    # Away, throttled, or this host's own credentials: no fault of the conversation's.
    return TransientError(f"secret {reference!r}: {code or type(error).__name__}")
