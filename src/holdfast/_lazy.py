"""Public names that are imported on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any]]:
    """Return `__all__` and a `__getattr__` that imports a public name when it is first used.

    `homes` maps each module, relative to `holdfast`, to the names that it defines. So the
    command line starts at once, a Lambda's cold start pays only for what it uses, and no
    extra is needed before one of its classes is. Type checkers do not see these names, so
    `tools/stubs.py` writes a stub for each module that has only such names.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.{modules[name]}"), name)

    return sorted(modules), load
