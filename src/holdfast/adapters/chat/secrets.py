"""Secrets by reference: `env:NAME`, `file:PATH`, or a name in AWS Secrets Manager.

A secret is a JSON object of texts. A plain text serves as key and as password.
"""

import os
import stat
from collections.abc import Callable, Mapping
from threading import Lock

from holdfast.conversations.errors import PermanentError, TransientError
from holdfast.conversations.ports import SecretStore
from holdfast.conversations.secret import Secret, parse_secret
from holdfast.core.errors import ConfigError

_MAX_BYTES = 64 << 10


class LocalSecrets:
    """Secrets in the environment and in files, which are read each time."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment

    def get(self, reference: str) -> Secret:
        """Return the secret of an `env:` or `file:` reference."""
        kind, _, name = reference.partition(":")
        if kind == "env" and name:
            return self._get_from_environment(reference, name)
        if kind == "file" and name:
            return parse_secret(reference, _read_file(reference, name))
        raise PermanentError(f"secret {reference!r}: it must be env:NAME or file:PATH")

    def forget(self, reference: str) -> None:
        """Do nothing, because nothing is cached."""
        return

    def _get_from_environment(self, reference: str, name: str) -> Secret:
        if (text := self._environment.get(name)) is None:
            raise PermanentError(f"secret {reference!r}: there is no such variable")
        return parse_secret(reference, text)


def _read_file(reference: str, path: str) -> str:
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer forever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise PermanentError(f"secret {reference!r} is not a file")
            data = os.read(handle, _MAX_BYTES + 1)
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError) as error:
        raise PermanentError(f"secret {reference!r}: {type(error).__name__}") from None
    except OSError as error:
        raise TransientError(f"secret {reference!r}: {type(error).__name__}") from None
    if len(data) > _MAX_BYTES:
        raise PermanentError(f"secret {reference!r} is larger than {_MAX_BYTES >> 10} KB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PermanentError(f"secret {reference!r} is not UTF-8") from None


class SecretResolver:
    """The secret store that chooses a source by the form of the reference.

    The client of AWS Secrets Manager is made when the first secret from there is requested.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        aws_factory: Callable[[], SecretStore] | None = None,
    ) -> None:
        self._local = LocalSecrets(environment)
        self._aws_factory = aws_factory or _make_secrets_manager
        self._aws: SecretStore | None = None
        self._lock = Lock()

    def get(self, reference: str) -> Secret:
        """Return the secret from the source that the reference names."""
        _check(reference)
        return self._choose_store(reference).get(reference)

    def forget(self, reference: str) -> None:
        """Drop the cached secret, so that the next `get` fetches it again."""
        if reference.strip():
            self._choose_store(reference).forget(reference)

    def _choose_store(self, reference: str) -> SecretStore:
        if reference.startswith(("env:", "file:")):
            return self._local
        with self._lock:
            if self._aws is None:
                self._aws = _make_store(self._aws_factory)
            return self._aws


def _check(reference: str) -> None:
    if not reference.strip():
        raise PermanentError("the config names no secret")
    if reference.startswith("sk-"):
        # It is a key. The error must not quote it, because errors are logged.
        raise PermanentError("the config contains a key where the name of a secret should be")


def _make_secrets_manager() -> SecretStore:
    from holdfast.adapters.chat.secrets_manager import SecretsManagerSecrets

    return SecretsManagerSecrets()


def _make_store(factory: Callable[[], SecretStore]) -> SecretStore:
    try:
        return factory()
    except ConfigError as error:
        text = f"{error}; or name secrets as env:NAME or file:PATH"
        raise PermanentError(text) from None
