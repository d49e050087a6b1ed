"""Python values as DynamoDB's attribute values, and back to what they were.

DynamoDB has one kind of number and keeps 1.0 as 1. A whole float is therefore named by
its path, so that reading makes a float of it again:

    {"rate": 1.0, "sizes": [2.0, 3]}   ──▶  the same with 1 and 2, and ["/rate", "/sizes/0"]
"""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from holdfast.jobs.errors import InvalidJob

Item = Mapping[str, Any]  # names and Python values
Attributes = dict[str, dict[str, Any]]  # names and DynamoDB's values

_MAX_DEPTH = 30  # DynamoDB nests 32 levels, and ours lie within a map within the item
_MAX_DIGITS = 38
_MAX_NUMBER, _MIN_NUMBER = Decimal("9.9e125"), Decimal("1e-130")


def encode(item: Item) -> Attributes:
    """Raises InvalidJob for what DynamoDB cannot hold, with where it is, not what it is."""
    return {name: _encode_value(value, f"/{name}", 0) for name, value in item.items()}


def decode(attributes: Attributes | None) -> dict[str, Any]:
    return {name: _decode_value(value) for name, value in (attributes or {}).items()}


def _encode_value(value: Any, path: str, depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise InvalidJob(f"{path[:200]}: nested deeper than DynamoDB keeps")
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
    raise InvalidJob(f"{path[:200]}: only what JSON knows can be kept, not this type")


def _encode_number(value: float, path: str) -> str:
    """Exact or not at all: a number that comes back as another one is a defect."""
    if not math.isfinite(value):
        raise InvalidJob(f"{path[:200]}: only finite numbers can be kept")
    # A float by its shortest text: 0.1, and not what is nearest to it in binary.
    exact = Decimal(repr(value) if isinstance(value, float) else value)
    if _count_digits(exact) > _MAX_DIGITS or (
        exact and not _MIN_NUMBER <= abs(exact) <= _MAX_NUMBER
    ):
        raise InvalidJob(f"{path[:200]}: DynamoDB keeps 38 digits, from 1e-130 to 9.9e125")
    return f"{exact:f}" if abs(exact.adjusted()) < _MAX_DIGITS else str(exact)


def _count_digits(exact: Decimal) -> int:
    """Without zeros at the end. (`normalize` would round to 28.)"""
    return len("".join(map(str, exact.as_tuple().digits)).rstrip("0"))


def _decode_value(attribute: Mapping[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    match kind:
        case "NULL":
            return None
        case "N":
            return _parse_number(str(value))
        case "L":
            return [_decode_value(one) for one in value]
        case "M":
            return {name: _decode_value(one) for name, one in value.items()}
    return value


def _parse_number(text: str) -> int | float:
    exact = Decimal(text)
    return int(exact) if exact == exact.to_integral_value() else float(exact)


# -- whole floats


def find_whole_floats(value: Any) -> list[str]:
    """Where the floats are that look like integers."""
    return [path for path, one in _iterate_leaves(value, "") if _is_whole(one)]


def restore_floats(value: Any, paths: list[str]) -> Any:
    """The value with floats again at these places."""
    return _restore_value(value, "", frozenset(paths)) if paths else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _iterate_leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping | list | tuple):
        for below, one in _iterate_children(value, path):
            yield from _iterate_leaves(one, below)
    else:
        yield path, value


def _restore_value(value: Any, path: str, paths: frozenset[str]) -> Any:
    if isinstance(value, dict):
        parts = zip(value, _iterate_children(value, path), strict=True)
        return {name: _restore_value(one, below, paths) for name, (below, one) in parts}
    if isinstance(value, list):
        return [
            _restore_value(one, below, paths) for below, one in _iterate_children(value, path)
        ]
    return float(value) if path in paths else value


def _iterate_children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What is in a map or a list, each with its path."""
    if isinstance(value, Mapping):
        return ((f"{path}/{_escape(str(name))}", one) for name, one in value.items())
    return ((f"{path}/{place}", one) for place, one in enumerate(value))


def _escape(name: str) -> str:
    """As in JSON pointers: otherwise {"a/b": …} and {"a": {"b": …}} had the same path."""
    return name.replace("~", "~0").replace("/", "~1")


# -- size


def measure_size(attributes: Attributes) -> int:
    """Bytes as DynamoDB counts them, rather too many than too few."""
    return sum(len(name.encode()) + _measure_value(value) for name, value in attributes.items())


def _measure_value(attribute: Mapping[str, Any]) -> int:
    ((kind, value),) = attribute.items()
    if kind == "L":
        return 3 + sum(1 + _measure_value(one) for one in value)
    if kind == "M":
        return 3 + sum(
            1 + len(name.encode()) + _measure_value(one) for name, one in value.items()
        )
    return len(value.encode()) if kind in ("S", "N") else 1
