"""The runner of doctor's checks: order, names, and errors that become results."""

from collections.abc import Callable, Iterable

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from holdfast.doctor.checks import CheckFailed, CheckLevel, CheckResult, ok, run_checks
from holdfast.doctor.stores import explain_aws_errors
from holdfast.errors import ConfigError, StoreUnavailable


def pass_check(subject: str) -> Iterable[CheckResult]:
    yield ok(f"{subject} is fine")


def raise_error(error: Exception) -> Callable[[str], Iterable[CheckResult]]:
    """Return a check that yields one result and then raises."""

    def check(subject: str) -> Iterable[CheckResult]:
        yield ok("so far")
        raise error

    return check


def test_results_come_in_order_with_the_names_of_their_own_table() -> None:
    def run_inner(subject: str) -> Iterable[CheckResult]:
        yield ok("outside")
        yield from run_checks(subject, ("inner", pass_check))

    results = list(run_checks("it", ("outer", run_inner), ("last", pass_check)))
    assert [result.check for result in results] == ["outer", "inner", "last"]
    assert results[-1] == CheckResult("last", CheckLevel.OK, "it is fine")


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (CheckFailed("gone", "make it"), "gone", "make it"),
        (ConfigError("no boto3"), "no boto3", "correct this; whatever needs it cannot start"),
        (
            PermissionError(13, "denied"),
            "cannot be checked: denied",
            "give this user the right",
        ),
        (OSError("odd"), "cannot be checked: odd", "give this user the right to write there"),
    ],
)
def test_a_check_that_cannot_be_made_is_a_failure_and_the_others_run(
    error: Exception, found: str, remedy: str
) -> None:
    checks = ("broken", raise_error(error)), ("next", pass_check)
    before, failure, after = run_checks("it", *checks)
    assert (before.check, before.found, after.check) == ("broken", "so far", "next")
    assert (failure.check, failure.level, failure.found) == ("broken", CheckLevel.FAIL, found)
    assert failure.remedy.startswith(remedy)


def test_an_unexpected_error_is_not_hidden() -> None:
    with pytest.raises(StoreUnavailable):
        list(run_checks("it", ("broken", raise_error(StoreUnavailable("away")))))


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (ClientError({"Error": {"Code": "AccessDenied"}}, "Put"), "no (AccessDenied)", "allow"),
        (ClientError({"Error": {"Code": "NoSuchBucket"}}, "Put"), "no (NoSuchBucket)", "look"),
        (EndpointConnectionError(endpoint_url="x"), "no (EndpointConnectionError)", "look"),
    ],
)
def test_an_error_of_aws_is_named_by_its_code_with_the_remedy_that_fits(
    error: Exception, found: str, remedy: str
) -> None:
    with (
        pytest.raises(CheckFailed) as raised,
        explain_aws_errors("no", denied="allow", otherwise="look"),
    ):
        raise error
    assert (raised.value.result.found, raised.value.result.remedy) == (found, remedy)
