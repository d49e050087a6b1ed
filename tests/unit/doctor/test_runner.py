"""The runner of doctor's checks: order, names, and errors that become results."""

from collections.abc import Callable, Iterable

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from holdfast.doctor.checks import CheckLevel, CheckResult, ok
from holdfast.doctor.runner import (
    CheckFailed,
    explain_aws_errors,
    require_valid_settings,
    run_checks,
)
from holdfast.errors import ConfigError, StoreUnavailable


def pass_check(subject: str) -> Iterable[CheckResult]:
    yield ok(f"{subject} is fine")


def raise_error(error: Exception) -> Callable[[str], Iterable[CheckResult]]:
    """Return a check that yields one result and then raises."""

    def check(subject: str) -> Iterable[CheckResult]:
        yield ok("so far")
        raise error

    return check


def test_results_come_in_the_order_of_the_table_with_its_names() -> None:
    results = list(run_checks("it", ("first", pass_check), ("second", pass_check)))
    assert results == [
        CheckResult("first", CheckLevel.OK, "it is fine"),
        CheckResult("second", CheckLevel.OK, "it is fine"),
    ]


def test_the_results_of_an_inner_table_keep_their_names() -> None:
    def run_inner(subject: str) -> Iterable[CheckResult]:
        yield ok("outside")
        yield from run_checks(subject, ("inner", pass_check))

    names = [result.check for result in run_checks("it", ("outer", run_inner))]
    assert names == ["outer", "inner"]


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (CheckFailed("gone", "make it"), "gone", "make it"),
        (ConfigError("no boto3"), "no boto3", "correct this; whatever needs it cannot start"),
        (
            PermissionError(13, "Permission denied"),
            "cannot be checked: Permission denied",
            "give",
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


def test_a_wrong_setting_has_its_own_remedy() -> None:
    with pytest.raises(CheckFailed, match="HOLDFAST_X") as raised, require_valid_settings():
        raise ConfigError("HOLDFAST_X=1: too small")
    assert raised.value.result.remedy == "correct it; nothing starts with this setting"


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
