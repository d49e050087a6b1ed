"""The results of `holdfast doctor`, and the runner of its checks.

A check is a small function from a subject to results: what was found, and the remedy. People
see its name: `check_dead_letters` is shown as "dead letters".
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from holdfast.errors import ConfigError

S = TypeVar("S")


class CheckLevel(Enum):
    """How serious a check result is."""

    OK = "ok"
    WARN = "warn"  # works, but an operator should know
    FAIL = "fail"  # work is or will be blocked, invisible to operators or done twice


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `remedy` says what to do and is empty at level OK.

    A result without a name gets that of its check; `check` gives it another.
    """

    check: str
    level: CheckLevel
    found: str
    remedy: str = ""


Examine = Callable[[S], Iterable[CheckResult]]
Check = Examine[S] | tuple[str, Examine[S]]
"""A function that examines the subject, or a pair that gives one another name."""


def ok(found: str, *, check: str = "") -> CheckResult:
    """Make a result for a check that passed."""
    return CheckResult(check, CheckLevel.OK, found)


def warn(found: str, remedy: str, *, check: str = "") -> CheckResult:
    """Make a result for something that works but should be changed."""
    return CheckResult(check, CheckLevel.WARN, found, remedy)


def fail(found: str, remedy: str) -> CheckResult:
    """Make a result for something that must be repaired."""
    return CheckResult("", CheckLevel.FAIL, found, remedy)


def grade(
    found: str, remedy: str, *, fails: bool = False, warns: bool = False, check: str = ""
) -> CheckResult:
    """Make a failure or a warning if that applies, or else a passed result."""
    if not (fails or warns):
        return ok(found, check=check)
    return replace((fail if fails else warn)(found, remedy), check=check)


class CheckFailed(Exception):
    """A check cannot be made, or its subject is missing. It ends with this one failure."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.result = fail(found, remedy)


def run_checks(subject: S, *checks: Check[S]) -> Iterator[CheckResult]:
    """Run the checks in order, and yield each result as soon as it is known.

    A check that raises CheckFailed, ConfigError (a wrong setting, a missing package or region)
    or OSError becomes a failed result, and the other checks still run. A check may run others,
    whose results keep the names that they have there.
    """
    for check in checks:
        name, examine = check if isinstance(check, tuple) else (_get_name(check), check)
        for result in _examine(examine, subject):
            yield result if result.check else replace(result, check=name)


def _get_name(examine: Examine[S]) -> str:
    return examine.__name__.lstrip("_").removeprefix("check_").replace("_", " ")


def _examine(examine: Examine[S], subject: S) -> Iterator[CheckResult]:
    try:
        yield from examine(subject)
    except CheckFailed as error:
        yield error.result
    except ConfigError as error:
        yield fail(str(error), "correct this; whatever needs it cannot start")
    except OSError as error:
        yield fail(
            f"cannot be checked: {error.strerror or error}",
            "give this user the right to write there, or use another folder",
        )
