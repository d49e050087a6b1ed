"""A secret: never printed, copied into an error, or pickled."""

from collections.abc import Mapping
from typing import NoReturn

from holdfast.conversations.errors import PermanentError


class Secret:
    """Named values, as in `account_sid` and `auth_token`. `reveal` is for the provider's
    call alone; everything else shows stars."""

    __slots__ = ("_name", "_values")

    def __init__(self, name: str, values: Mapping[str, str]) -> None:
        self._name = name  # its reference, for people
        self._values = dict(values)

    def reveal(self, field: str) -> str:
        """Raises PermanentError, naming the field, when the secret has no such value."""
        if not (value := self._values.get(field)):
            raise PermanentError(f"secret {self._name!r} has no {field!r}")
        return value

    def __contains__(self, field: object) -> bool:
        return bool(self._values.get(str(field)))

    def __repr__(self) -> str:
        return f"<Secret {self._name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


NO_SECRET = Secret("none", {})  # for who needs none
