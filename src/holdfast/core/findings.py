"""What doctor says: what was looked at, how it is, and the way out."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from holdfast.core.errors import ConfigError


class Level(Enum):
    OK = "ok"
    WARN = "warn"  # works, but somebody should know
    FAIL = "fail"  # work is or will be stuck, lost from sight or done twice


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    found: str
    way_out: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warn(check: str, found: str, way_out: str) -> Finding:
    return Finding(check, Level.WARN, found, way_out)


def fail(check: str, found: str, way_out: str) -> Finding:
    return Finding(check, Level.FAIL, found, way_out)


def checked(
    check: str, examine: Callable[..., Iterable[Finding]], *given: Any
) -> Iterator[Finding]:
    """Yield the findings of `examine`. That it cannot be made is a finding, too: a package
    or a region is missing, and the other checks go on.
    """
    try:
        yield from examine(*given)
    except ConfigError as error:
        yield fail(check, str(error), "mend it; nothing that needs it starts")
