"""Public names that are imported on first use."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from types import CodeType
from typing import Any


def lazy_exports() -> Callable[[str], Any]:
    """Return a `__getattr__` for the calling module that imports a name when it is first used.

    The module names its exports once, in imports that only type checkers run:

        if TYPE_CHECKING:
            from holdfast.core.errors import ConfigError as ConfigError

    So the command line starts at once, a Lambda's cold start pays only for what it uses, and
    no extra is needed before one of its classes is. The imports are read from the compiled
    module, because an application may be deployed without its source. `__all__` is made from
    them, too.
    """
    module = sys._getframe(1)
    package, eager, code = module.f_globals["__name__"], set(module.f_globals), module.f_code

    @cache
    def read_homes() -> dict[str, str]:
        return {name: home for name, home in _read_imports(code) if name not in eager}

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(read_homes())
        if name not in read_homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(read_homes()[name]), name)

    return load


def _read_imports(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield each name that the code imports, and the module that it is imported from."""
    import dis  # only here, because a cold start may need none of the names

    home = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            home = instruction.argval
        elif instruction.opname == "IMPORT_FROM":
            yield instruction.argval, home
