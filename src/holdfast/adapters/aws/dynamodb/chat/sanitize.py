"""Convert values to a form that DynamoDB can store."""

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.values import Attributes, encode, measure_size
from holdfast.conversations.errors import PermanentError
from holdfast.jobs.errors import InvalidJob

MAX_ROW_BYTES = 400 * 1024


def encode_row(
    row: Mapping[str, Any], subject: str, max_bytes: int = MAX_ROW_BYTES
) -> Attributes:
    """Return the row as DynamoDB attributes.

    Raises PermanentError if the row is too large or holds a value that DynamoDB cannot store,
    because a retry would not help.
    """
    try:
        attributes = encode(replace_lone_surrogates(row))
    except InvalidJob as error:
        raise PermanentError(f"{subject} cannot be stored: {error}") from None
    if (size := measure_size(attributes)) > max_bytes:
        raise PermanentError(
            f"{subject} is too large: it has {size} bytes, the limit is {max_bytes}"
        )
    return attributes


def replace_lone_surrogates(value: Any) -> Any:
    """Return the value with lone surrogates replaced.

    A model may write half of a surrogate pair, and no store accepts it. The reply has already
    been sent then, so storing its history must not fail.
    """
    match value:
        case str():
            return value if value.isascii() else value.encode(errors="replace").decode()
        case Mapping():
            return {
                replace_lone_surrogates(name): replace_lone_surrogates(element)
                for name, element in value.items()
            }
        case list() | tuple():
            return [replace_lone_surrogates(element) for element in value]
    return value


def estimate_size(value: Any) -> int:
    """Return the approximate bytes of a value in a row, rather too many than too few."""
    return len(json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace"))


def to_expiry_seconds(seconds: float) -> int:
    """Return whole seconds, as DynamoDB requires.

    They are rounded up, so that a row never expires too early.
    """
    return math.ceil(seconds)


def to_plain_json(value: Any) -> Any:
    """Return a stored value as JSON types, because rows of other software may contain bytes."""
    match value:
        case Mapping():
            return {str(name): to_plain_json(element) for name, element in value.items()}
        case list() | tuple() | set():
            return [to_plain_json(element) for element in value]
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return b64encode(value).decode()
    return str(value)
