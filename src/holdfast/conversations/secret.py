"""A secret that is never printed, copied into an error, or pickled."""

import json
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


def parse_secret(reference: str, text: str) -> Secret:
    """Return the secret that the text contains.

    Raises PermanentError, whose message never contains the text.
    """
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
        raise PermanentError(
            f"secret {reference!r}: the value of {wrong[0][:40]!r} is not a text"
        )
    return Secret(reference, values)
