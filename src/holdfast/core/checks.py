"""The results of `holdfast doctor`: what was checked, what was found, and the remedy."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from holdfast.core.errors import ConfigError


class CheckLevel(Enum):
    """How serious a check result is."""

    OK = "ok"
    WARN = "warn"  # works, but an operator should know
    FAIL = "fail"  # work is or will be blocked, invisible to operators or done twice


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `remedy` says what to do and is empty at level OK."""

    check: str
    level: CheckLevel
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> CheckResult:
    """Make a result for a check that passed."""
    return CheckResult(check, CheckLevel.OK, found)


def warn(check: str, found: str, remedy: str) -> CheckResult:
    """Make a result for something that works but should be changed."""
    return CheckResult(check, CheckLevel.WARN, found, remedy)


def fail(check: str, found: str, remedy: str) -> CheckResult:
    """Make a result for something that must be repaired."""
    return CheckResult(check, CheckLevel.FAIL, found, remedy)


def run_check(
    check: str, examine: Callable[..., Iterable[CheckResult]], *arguments: Any
) -> Iterator[CheckResult]:
    """Yield the results of `examine(*arguments)`.

    A ConfigError, such as a missing package or region, becomes a failed result, so the
    other checks still run.
    """
    try:
        yield from examine(*arguments)
    except ConfigError as error:
        yield fail(check, str(error), "correct this; whatever needs it cannot start")
