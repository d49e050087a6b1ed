"""Convert Python values to DynamoDB's attribute values, and back without loss.

DynamoDB has one kind of number and stores 1.0 as 1. The paths of whole floats are therefore
stored too, so that reading restores the floats.

    {"rate": 1.0, "sizes": [2.0, 3]}   ──▶  the same with 1 and 2, and ["/rate", "/sizes/0"]
"""

import math
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from typing import Any

from holdfast.errors import InvalidInput

Item = Mapping[str, Any]  # names and Python values
Attributes = dict[str, dict[str, Any]]  # names and DynamoDB's values

_MAX_DEPTH = 30  # DynamoDB allows 32 levels, and these values are in a map within the item
_MAX_DIGITS = 38
_MAX_PLAIN_NUMBER = 10**_MAX_DIGITS
_MAX_NUMBER, _MIN_NUMBER = Decimal("9.9e125"), Decimal("1e-130")


def encode(item: Item) -> Attributes:
    """Return the item as DynamoDB attributes.

    Raises InvalidInput for a value that DynamoDB cannot hold. The error names its path, not the
    value.
    """
    return {name: _encode_value(value, f"/{name}", 0) for name, value in item.items()}


def decode(attributes: Attributes | None) -> dict[str, Any]:
    """Return the attributes as Python values; an empty dict for None."""
    return {name: _decode_value(value) for name, value in (attributes or {}).items()}


def _encode_value(value: Any, path: str, depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise InvalidInput(f"{path[:200]}: nested deeper than {_MAX_DEPTH} levels")
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | float():
            return {"N": _encode_number(value, path)}
        case str():
            return {"S": value}
        case list() | tuple():
            return {
                "L": [
                    _encode_value(v, at, depth + 1) for at, v in _iterate_children(value, path)
                ]
            }
        case Mapping() if all(isinstance(name, str) for name in value):
            parts = zip(value, _iterate_children(value, path), strict=True)
            return {"M": {name: _encode_value(v, at, depth + 1) for name, (at, v) in parts}}
    raise InvalidInput(f"{path[:200]}: only JSON types can be stored")


def _encode_number(value: float, path: str) -> str:
    """Return the exact number as text, because it must not come back as another number."""
    if isinstance(value, _StoredNumber):
        return value.text
    if isinstance(value, int) and abs(value) < _MAX_PLAIN_NUMBER:
        return str(value)
    if not math.isfinite(value):
        raise InvalidInput(f"{path[:200]}: only finite numbers can be stored")
    # A float is taken by its shortest text: 0.1, and not the nearest binary value.
    exact = Decimal(repr(value) if isinstance(value, float) else value)
    if _count_digits(exact) > _MAX_DIGITS or (
        exact and not _MIN_NUMBER <= abs(exact) <= _MAX_NUMBER
    ):
        raise InvalidInput(f"{path[:200]}: DynamoDB stores 38 digits, from 1e-130 to 9.9e125")
    return f"{exact:f}" if abs(exact.adjusted()) < _MAX_DIGITS else str(exact)


def _count_digits(exact: Decimal) -> int:
    """Count the digits without trailing zeros. (`normalize` would round to 28 digits.)"""
    return len("".join(map(str, exact.as_tuple().digits)).rstrip("0"))


def _decode_value(attribute: Mapping[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    match kind:
        case "NULL":
            return None
        case "N":
            return _parse_number(str(value))
        case "L":
            return [_decode_value(element) for element in value]
        case "M":
            return {name: _decode_value(element) for name, element in value.items()}
    return value


class _StoredNumber(float):
    """A number with more digits than a float has. It is written back as it was read, because a
    condition compares the exact number.
    """

    text: str


def _parse_number(text: str) -> int | float:
    exact = Decimal(text)
    if exact == exact.to_integral_value():
        return int(exact)
    number = _StoredNumber(exact)
    number.text = text
    return float(exact) if Decimal(repr(float(exact))) == exact else number


# -- whole floats


def find_whole_floats(value: Any, path: str = "") -> list[str]:
    """Return the paths of the floats that look like integers."""
    if isinstance(value, Mapping | list | tuple):
        children = _iterate_children(value, path)
        return [leaf for at, child in children for leaf in find_whole_floats(child, at)]
    return [path] if isinstance(value, float) and value.is_integer() else []


def restore_floats(value: Any, paths: Collection[str], path: str = "") -> Any:
    """Return the value with floats restored at these paths."""
    if isinstance(value, dict | list):
        restored = [
            restore_floats(child, paths, at) for at, child in _iterate_children(value, path)
        ]
        is_map = isinstance(value, dict)
        return dict(zip(value, restored, strict=True)) if is_map else restored
    return float(value) if path in paths else value


def _iterate_children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the elements of a map or a list, each with its path."""
    if isinstance(value, Mapping):
        return ((f"{path}/{_escape(str(name))}", child) for name, child in value.items())
    return ((f"{path}/{position}", child) for position, child in enumerate(value))


def _escape(name: str) -> str:
    """Escape a name as in JSON pointers. Otherwise {"a/b": …} and {"a": {"b": …}} would share a
    path.
    """
    return name.replace("~", "~0").replace("/", "~1")


# -- size


def measure_size(attributes: Attributes) -> int:
    """Return the bytes as DynamoDB counts them, rather too many than too few."""
    return sum(len(name.encode()) + _measure_value(value) for name, value in attributes.items())


def _measure_value(attribute: Mapping[str, Any]) -> int:
    ((kind, value),) = attribute.items()
    if kind == "L":
        return 3 + sum(1 + _measure_value(element) for element in value)
    if kind == "M":
        return 3 + sum(
            1 + len(name.encode()) + _measure_value(element) for name, element in value.items()
        )
    return len(value.encode()) if kind in ("S", "N") else 1


def count_bytes(text: str) -> int:
    """Return the bytes of a text, also of one that cannot be stored."""
    return len(text.encode(errors="replace"))
