"""What doctor says: what was looked at, how it is, and the way out."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from holdfast.core.errors import ConfigError


class CheckLevel(Enum):
    OK = "ok"
    WARN = "warn"  # works, but somebody should know
    FAIL = "fail"  # work is or will be stuck, lost from sight or done twice


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    level: CheckLevel
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> CheckResult:
    return CheckResult(check, CheckLevel.OK, found)


def warn(check: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(check, CheckLevel.WARN, found, remedy)


def fail(check: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(check, CheckLevel.FAIL, found, remedy)


def check_inputs(
    check: str, examine: Callable[..., Iterable[CheckResult]], *given: Any
) -> Iterator[CheckResult]:
    """Yield the findings of `examine`. That it cannot be made is a finding, too: a package
    or a region is missing, and the other checks go on.
    """
    try:
        yield from examine(*given)
    except ConfigError as error:
        yield fail(check, str(error), "mend it; nothing that needs it starts")
