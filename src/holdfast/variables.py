"""All environment variables of Holdfast, to tell a misspelt one from a foreign one."""

import logging
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from holdfast.products import find_products, load_part

if TYPE_CHECKING:
    from holdfast.settings import Settings

QUEUE_VARIABLE = "HOLDFAST_QUEUE"
PREFIX = "HOLDFAST_"

# The kinds that belong to no product.
_KINDS = (
    "holdfast.queues.settings:SqsSettings",
    "holdfast.queues.settings:AwsSettings",
    "holdfast.telemetry.setup:TelemetrySettings",
)
_OTHERS = (QUEUE_VARIABLE, "HOLDFAST_DEBUG")
_SIMILARITY = 0.85  # above that of CHAOS_SECONDS and TASK_SECONDS, which is 0.80

_log = logging.getLogger("holdfast")


def warn_of_misspelt(names: Iterable[str]) -> None:
    """Log each variable whose name is nearly one of Holdfast's, once in a process.

    It is only a warning, because the variable may belong to the application or to another
    release of Holdfast. Neither must keep a worker or a Lambda function from starting.
    """
    for problem in find_misspelt(names):
        warn_once(problem)


@cache
def warn_once(problem: str) -> None:
    _log.warning("%s", problem)


def find_misspelt(names: Iterable[str]) -> list[str]:
    """Return a line for each variable whose name is nearly one of Holdfast's.

    A name that resembles none is not reported, because an application may have its own
    variables with our prefix, such as the secrets of conversations.
    """
    unknown = [name for name in names if name.startswith(PREFIX) and name not in _OTHERS]
    known = find_known_variables() if unknown else frozenset()
    return [
        f"{name} is not a setting and has no effect; did you mean {' or '.join(similar)}?"
        for name in unknown
        if name not in known and (similar := _find_similar(name, known))
    ]


@cache
def find_known_variables() -> frozenset[str]:
    """Return the names of all variables that Holdfast reads."""
    products = [list_variables(product.settings) for product in find_products()]
    return list_variables().union(_OTHERS, *products)


def list_variables(places: tuple[str, ...] = _KINDS) -> frozenset[str]:
    """Return the variables of some kinds of settings, or of those that are no product's."""
    kinds = [load_part(place) for place in places]
    return frozenset(kind.to_variable(name) for kind in kinds for name in kind.model_fields)


def list_settings_kinds() -> "tuple[type[Settings], ...]":
    """Return the kinds of settings, each of which has variables of its own."""
    # Most processes read one kind of settings, so the others are imported only here.
    places = [*_KINDS, *(place for product in find_products() for place in product.settings)]
    return tuple(load_part(place) for place in places)


def _find_similar(variable: str, known: frozenset[str]) -> list[str]:
    """Return up to three known names that begin or end like this one, or are spelt alike.

    A single word at the end, such as URL or SECRET, is too common to mean a setting.
    """
    from difflib import get_close_matches  # only for this message

    name = variable.removeprefix(PREFIX)
    others = {other.removeprefix(PREFIX): other for other in sorted(known)}
    similar = [
        other
        for other in others
        if other.startswith(f"{name}_") or ("_" in name and other.endswith(f"_{name}"))
    ]
    similar = similar or get_close_matches(name, others, n=3, cutoff=_SIMILARITY)
    return [others[other] for other in similar[:3]]
