"""Run a table of checks: order, names, and errors that become results."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from holdfast.doctor.checks import CheckResult, fail
from holdfast.errors import ConfigError

S = TypeVar("S")

# A check: its name, and the function that examines the subject.
Check = tuple[str, Callable[[S], Iterable[CheckResult]]]


class CheckFailed(Exception):
    """A check cannot be made, or its subject is missing. It ends with this one failure."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.result = fail(found, remedy)


def run_checks(subject: S, *checks: Check[S]) -> Iterator[CheckResult]:
    """Run the checks in order, and yield each result as soon as it is known.

    A check that raises CheckFailed, ConfigError (a missing package or region) or OSError
    becomes a failed result, and the other checks still run. A check may run another table,
    whose results keep the names that they have there.
    """
    for name, examine in checks:
        for result in _examine(examine, subject):
            yield result if result.check else replace(result, check=name)


def _examine(
    examine: Callable[[S], Iterable[CheckResult]], subject: S
) -> Iterator[CheckResult]:
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


@contextmanager
def require_valid_settings() -> Iterator[None]:
    """Turn a ConfigError inside into the failure of a setting. Raises CheckFailed."""
    try:
        yield
    except ConfigError as error:
        remedy = "correct it; nothing starts with this setting"
        raise CheckFailed(str(error), remedy) from error


@contextmanager
def explain_aws_errors(problem: str, *, denied: str, otherwise: str) -> Iterator[None]:
    """Turn an error of an AWS call inside into CheckFailed, with the error's code.

    `denied` is the remedy if the call is not allowed, and `otherwise` that of other errors.
    """
    from holdfast.aws.errors import DENIED, describe_cause, get_client_errors, get_error_code

    try:
        yield
    except get_client_errors() as error:
        remedy = denied if get_error_code(error) in DENIED else otherwise
        raise CheckFailed(f"{problem} ({describe_cause(error)})", remedy) from error
