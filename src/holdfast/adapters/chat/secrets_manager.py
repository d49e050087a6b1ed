"""Secrets from AWS Secrets Manager, with a cache."""

from threading import Lock
from typing import Any

from holdfast.adapters.aws import clients, errors
from holdfast.adapters.chat.vendor_logs import silence_vendor_logs
from holdfast.conversations.errors import PermanentError, TransientError
from holdfast.conversations.secret import Secret, parse_secret
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import HoldfastError

_REMEDY = "the role needs secretsmanager:GetSecretValue, and kms:Decrypt for a key of your own"

# Texts that an operator can act on. A retry helps with none of these errors.
_REFUSALS = {
    "ResourceNotFoundException": "no secret has that name in this account and region",
    "DecryptionFailure": "it cannot be decrypted: the role needs kms:Decrypt",
    "DecryptionFailureException": "it cannot be decrypted: the role needs kms:Decrypt",
    "InvalidRequestException": "it is being deleted, or has no value",
    "InvalidParameterException": "the name is not valid for a secret",
    "ValidationException": "the name is not valid for a secret",
    **dict.fromkeys(errors.DENIED, f"access denied: {_REMEDY}"),
}


class SecretsManagerSecrets:
    """A secret source that is thread-safe and requests each secret once in `cache_seconds`.

    Call `forget` for a secret that was rotated earlier.
    """

    def __init__(
        self, client: Any = None, cache_seconds: float = 300.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        # At DEBUG level it logs each response, which contains the secret.
        silence_vendor_logs("botocore.parsers")
        self._client = (
            clients.make_retrying_client("secretsmanager") if client is None else client
        )
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._cache: dict[str, tuple[float, Secret]] = {}
        self._lock = Lock()

    def get(self, reference: str) -> Secret:
        """Return the secret, from the cache if it is fresh.

        Raises PermanentError or TransientError.
        """
        asked_at = self._clock.monotonic()
        with self._lock:
            until, cached = self._cache.get(reference, (asked_at, None))
        if cached is not None and asked_at < until:
            return cached
        secret = parse_secret(reference, self._fetch(reference))
        with self._lock:
            self._cache[reference] = (asked_at + self._cache_seconds, secret)
        return secret

    def forget(self, reference: str) -> None:
        """Remove the secret from the cache."""
        with self._lock:
            self._cache.pop(reference, None)

    def _fetch(self, reference: str) -> str:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            response = self._client.get_secret_value(SecretId=reference)
        except (BotoCoreError, ClientError) as error:
            raise _translate_error(reference, error) from None
        if not isinstance(text := response.get("SecretString"), str):
            raise PermanentError(f"secret {reference!r} is binary: it must be text")
        return text


def _translate_error(reference: str, error: Exception) -> HoldfastError:
    code = errors.get_error_code(error)
    if code in _REFUSALS:
        return PermanentError(f"secret {reference!r}: {_REFUSALS[code]}")
    # The service is away or throttles, or this host's own credentials are wrong. None of
    # these is caused by the conversation, so it may be tried again.
    return TransientError(f"secret {reference!r}: {code or type(error).__name__}")
