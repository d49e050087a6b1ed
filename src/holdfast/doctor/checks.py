"""The results of `holdfast doctor`: what was checked, what was found, and the remedy."""

from dataclasses import dataclass
from enum import Enum


class CheckLevel(Enum):
    """How serious a check result is."""

    OK = "ok"
    WARN = "warn"  # works, but an operator should know
    FAIL = "fail"  # work is or will be blocked, invisible to operators or done twice


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `remedy` says what to do and is empty at level OK.

    A result without a name gets that of its check in the table; `check` gives it another.
    """

    check: str
    level: CheckLevel
    found: str
    remedy: str = ""


def ok(found: str, *, check: str = "") -> CheckResult:
    """Make a result for a check that passed."""
    return CheckResult(check, CheckLevel.OK, found)


def warn(found: str, remedy: str, *, check: str = "") -> CheckResult:
    """Make a result for something that works but should be changed."""
    return CheckResult(check, CheckLevel.WARN, found, remedy)


def fail(found: str, remedy: str) -> CheckResult:
    """Make a result for something that must be repaired."""
    return CheckResult("", CheckLevel.FAIL, found, remedy)


def grade(found: str, remedy: str, *, fails: bool, warns: bool) -> CheckResult:
    """Make a failure or a warning if that applies, or else a passed result."""
    if fails:
        return fail(found, remedy)
    return warn(found, remedy) if warns else ok(found)
