"""A secret that is never printed, copied into an error, or pickled."""

from collections.abc import Mapping
from typing import NoReturn

from holdfast.conversations.errors import PermanentError


class Secret:
    """Named values such as `account_sid` and `auth_token`.

    Only the call to the provider uses `reveal`. No other method shows a value.
    """

    __slots__ = ("_name", "_values")

    def __init__(self, name: str, values: Mapping[str, str]) -> None:
        self._name = name  # its reference, for messages
        self._values = dict(values)

    def reveal(self, field: str) -> str:
        """Return the value of a field.

        Raises PermanentError, which names the field, if the secret has no such value.
        """
        if not (value := self._values.get(field)):
            raise PermanentError(f"secret {self._name!r} has no {field!r}")
        return value

    def __contains__(self, field: object) -> bool:
        return bool(self._values.get(str(field)))

    def __repr__(self) -> str:
        return f"<Secret {self._name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret must not be pickled")


NO_SECRET = Secret("none", {})  # for providers that need none
