"""The products of this installation, which hang their parts into the frames.

A product is a folder: delete it, and the rest still works. Its module `product` has one table,
`PRODUCT`, of what it adds to the command line, the console, doctor, settings and metrics. The
frames read these tables, and nothing else imports a product. A part is written as "module:name"
and is imported when it is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_FOLDERS = ("exports", "chat")


@dataclass(frozen=True, slots=True)
class Product:
    """What a product adds to each frame."""

    group: str
    """The word that its commands begin with."""
    help: str
    panel: str
    commands: Mapping[str, tuple[str, str]]
    """The function of each command, and its panel in the help."""
    settings: tuple[str, ...]
    pages: str
    """A function that opens the pages of a store for a console."""
    store: str
    """The keyword of `web_app` that gives this store."""
    store_kind: str
    """The kind of this store for doctor."""
    checks: Mapping[str, str]
    """What doctor checks, as patterns of its targets, and the function of each."""
    metrics: str
    """Its part of the table of metrics."""


def load_part(place: str) -> Any:
    """Import a part and return it."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@cache
def find_products() -> tuple[Product, ...]:
    """Return the products whose folders exist."""
    folders = [name for name in _FOLDERS if find_spec(f"holdfast.{name}")]
    return tuple(import_module(f"holdfast.{name}.product").PRODUCT for name in folders)
