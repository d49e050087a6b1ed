"""What DynamoDB can keep, and what becomes of the rest."""

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.values import Attributes, encode, measure_size
from holdfast.conversations.errors import PermanentError
from holdfast.jobs.errors import InvalidJob

MAX_ROW_BYTES = 400 * 1024


def encode_row(row: Mapping[str, Any], what: str, largest: int = MAX_ROW_BYTES) -> Attributes:
    """The row for DynamoDB. Raises PermanentError when it is too large, or holds what DynamoDB
    cannot: trying again does not help."""
    try:
        attributes = encode(replace_lone_surrogates(row))
    except InvalidJob as error:
        raise PermanentError(f"{what} cannot be kept: {error}") from None
    if (size := measure_size(attributes)) > largest:
        raise PermanentError(f"{what} is too large to be kept: {size} bytes of {largest}")
    return attributes


def replace_lone_surrogates(value: Any) -> Any:
    """Without halves of characters, which a model may write and no store takes: the reply
    is out, and its history must not fail because of them."""
    match value:
        case str():
            return value if value.isascii() else value.encode(errors="replace").decode()
        case Mapping():
            return {
                replace_lone_surrogates(name): replace_lone_surrogates(one)
                for name, one in value.items()
            }
        case list() | tuple():
            return [replace_lone_surrogates(one) for one in value]
    return value


def estimate_size(value: Any) -> int:
    """About the bytes of a value in a row, rather too many."""
    return len(json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace"))


def to_expiry_seconds(seconds: float) -> int:
    """For DynamoDB, which takes whole seconds; rather too late than too early."""
    return math.ceil(seconds)


def to_plain_json(value: Any) -> Any:
    """What DynamoDB holds, as what JSON knows: rows of others may have bytes in them."""
    match value:
        case Mapping():
            return {str(name): to_plain_json(one) for name, one in value.items()}
        case list() | tuple() | set():
            return [to_plain_json(one) for one in value]
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return b64encode(value).decode()
    return str(value)
