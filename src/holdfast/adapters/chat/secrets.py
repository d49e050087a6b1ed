"""Secrets by reference: `env:NAME`, `file:PATH`, anything else is Amazon's Secrets Manager.

A secret is a JSON object of texts. A plain text is taken for a key and for a password.
"""

import json
import os
import stat
from collections.abc import Callable, Mapping
from threading import Lock

from holdfast.conversations.errors import PermanentError, TransientError
from holdfast.conversations.ports import SecretStore
from holdfast.conversations.secret import Secret
from holdfast.core.errors import ConfigError

_LARGEST = 64 << 10


def secret_of(reference: str, text: str) -> Secret:
    """Raises PermanentError. Nothing of the text is told."""
    text = text.strip()
    if not text:
        raise PermanentError(f"secret {reference!r} is empty")
    if not text.startswith("{"):
        return Secret(reference, {"api_key": text, "password": text})
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise PermanentError(f"secret {reference!r} is not valid JSON") from None
    if wrong := [name for name, value in values.items() if not isinstance(value, str)]:
        raise PermanentError(f"secret {reference!r}: the value of {wrong[0][:40]!r} is no text")
    return Secret(reference, values)


class LocalSecrets:
    """Of the environment and of files. Read anew each time: nothing to forget."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment

    def get(self, reference: str) -> Secret:
        kind, _, name = reference.partition(":")
        if kind == "env" and name:
            return self._of_environment(reference, name)
        if kind == "file" and name:
            return secret_of(reference, _contents(reference, name))
        raise PermanentError(f"secret {reference!r}: it must be env:NAME or file:PATH")

    def forget(self, reference: str) -> None:
        return

    def _of_environment(self, reference: str, name: str) -> Secret:
        if (text := self._environment.get(name)) is None:
            raise PermanentError(f"secret {reference!r}: there is no such variable")
        return secret_of(reference, text)


def _contents(reference: str, path: str) -> str:
    try:
        # A pipe would wait for its writer for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise PermanentError(f"secret {reference!r} is not a file")
            data = os.read(handle, _LARGEST + 1)
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError) as error:
        raise PermanentError(f"secret {reference!r}: {type(error).__name__}") from None
    except OSError as error:
        raise TransientError(f"secret {reference!r}: {type(error).__name__}") from None
    if len(data) > _LARGEST:
        raise PermanentError(f"secret {reference!r} is larger than {_LARGEST >> 10} KB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PermanentError(f"secret {reference!r} is not UTF-8") from None


class SecretResolver:
    """Chooses by the reference. Amazon's is made when the first secret of its is wanted."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        aws_factory: Callable[[], SecretStore] | None = None,
    ) -> None:
        self._local = LocalSecrets(environment)
        self._aws_factory = aws_factory or _secrets_manager
        self._aws: SecretStore | None = None
        self._lock = Lock()

    def get(self, reference: str) -> Secret:
        _check(reference)
        return self._of(reference).get(reference)

    def forget(self, reference: str) -> None:
        if reference.strip():
            self._of(reference).forget(reference)

    def _of(self, reference: str) -> SecretStore:
        if reference.startswith(("env:", "file:")):
            return self._local
        with self._lock:
            if self._aws is None:
                self._aws = _made(self._aws_factory)
            return self._aws


def _check(reference: str) -> None:
    if not reference.strip():
        raise PermanentError("the config names no secret")
    if reference.startswith("sk-"):
        # Named in a log, it would be there for all to read.
        raise PermanentError("the config holds a key, where the name of a secret should be")


def _secrets_manager() -> SecretStore:
    from holdfast.adapters.aws.secrets import SecretsManagerSecrets

    return SecretsManagerSecrets()


def _made(factory: Callable[[], SecretStore]) -> SecretStore:
    try:
        return factory()
    except ConfigError as error:
        text = f"{error}; or name secrets as env:NAME or file:PATH"
        raise PermanentError(text) from None
