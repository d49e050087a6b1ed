"""Secrets by reference: `env:NAME`, `file:PATH`, or a name in AWS Secrets Manager.

A secret is a JSON object of texts. A plain text serves as key and as password.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from holdfast.aws import errors
from holdfast.aws.checked_call import call_checked
from holdfast.aws.clients import make_retrying_client
from holdfast.chat.errors import PermanentError, TransientError
from holdfast.chat.ports import Secret, parse_secret
from holdfast.chat.providers import silence_vendor_logs
from holdfast.errors import ConfigError, HoldfastError
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

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


class SecretResolver:
    """The secret store that chooses a source by the form of the reference. Safe for threads.

    The environment and files are read each time. A secret of AWS Secrets Manager is requested
    once in `cache_seconds`; call `forget` for one that was rotated earlier. `make_client` is
    called when the first secret from there is requested.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        make_client: Callable[[], Any] = lambda: make_retrying_client("secretsmanager"),
        *,
        cache_seconds: float = 300.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        # At DEBUG level it logs each response, which contains the secret.
        silence_vendor_logs("botocore.parsers")
        self._environment = environment
        self._make_client, self._client = make_client, None
        self._cache_seconds, self._clock = cache_seconds, clock
        self._cache: dict[str, tuple[float, Secret]] = {}
        self._lock = Lock()

    def get(self, reference: str) -> Secret:
        """Return the secret from the source that the reference names.

        Raises PermanentError or TransientError.
        """
        if not reference.strip():
            raise PermanentError("the config names no secret")
        if reference.startswith("sk-"):
            # It is a key. The error must not quote it, because errors are logged.
            raise PermanentError(
                "the config contains a key where the name of a secret should be"
            )
        if not reference.startswith(("env:", "file:")):
            return self._get_managed(reference)
        kind, _, name = reference.partition(":")
        if not name:
            raise PermanentError(f"secret {reference!r}: it must be env:NAME or file:PATH")
        text = _read_file(reference, name) if kind == "file" else self._environment.get(name)
        if text is None:
            raise PermanentError(f"secret {reference!r}: there is no such variable")
        return parse_secret(reference, text)

    def forget(self, reference: str) -> None:
        """Drop the cached secret, so that the next `get` fetches it again."""
        with self._lock:
            self._cache.pop(reference, None)

    def _get_managed(self, reference: str) -> Secret:
        asked_at = self._clock.monotonic()
        with self._lock:
            until, cached = self._cache.get(reference, (asked_at, None))
        if cached is not None and asked_at < until:
            return cached
        secret = parse_secret(reference, self._fetch(reference))
        with self._lock:
            self._cache[reference] = (asked_at + self._cache_seconds, secret)
        return secret

    def _fetch(self, reference: str) -> str:
        client = self._get_client()  # not in the block, whose errors need botocore
        try:
            response = call_checked(client, "get_secret_value", SecretId=reference)
        except errors.get_client_errors() as error:
            raise _translate_error(reference, error) from None
        if not isinstance(text := response.get("SecretString"), str):
            raise PermanentError(f"secret {reference!r} is binary: it must be text")
        return text

    def _get_client(self) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    self._client = self._make_client()
                except ConfigError as error:
                    text = f"{error}; or name secrets as env:NAME or file:PATH"
                    raise PermanentError(text) from None
            return self._client


def _read_file(reference: str, name: str) -> str:
    path = Path(name)
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise PermanentError(f"secret {reference!r} is not a file")
        return path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError) as error:
        raise PermanentError(f"secret {reference!r}: {type(error).__name__}") from None
    except OSError as error:
        raise TransientError(f"secret {reference!r}: {type(error).__name__}") from None


def _translate_error(reference: str, error: Exception) -> HoldfastError:
    code = errors.get_error_code(error)
    if code in _REFUSALS:
        return PermanentError(f"secret {reference!r}: {_REFUSALS[code]}")
    # The service is away or throttles, or this host's own credentials are wrong. None of
    # these is caused by the conversation, so it may be tried again.
    return TransientError(f"secret {reference!r}: {code or type(error).__name__}")
