"""Parameters that cannot work are refused at once, with a clear message."""

from typing import Any

import pytest

from holdfast.errors import ConfigError, QueueUnavailable
from holdfast.utils.sqs_heartbeat import SQSHeartbeat, interval_from_env, visibility_timeout_of
from support.sqs.heartbeats import HANDLE, URL, sqs_error

NO_NUMBERS = [True, "30", None, float("nan"), float("inf"), [30]]


@pytest.mark.parametrize("interval", [*NO_NUMBERS, 0, -0.5])
def test_an_interval_must_be_a_number_above_0(interval: Any) -> None:
    with pytest.raises(ValueError, match="interval_sec"):
        SQSHeartbeat(URL, HANDLE, interval, client=object())


@pytest.mark.parametrize("timeout", [*NO_NUMBERS, 0, -600, 43_201, 600.5])
def test_a_visibility_must_be_whole_seconds_that_sqs_allows(timeout: Any) -> None:
    with pytest.raises(ValueError, match="visibility_timeout_sec"):
        SQSHeartbeat(URL, HANDLE, 0.1, timeout, client=object())


@pytest.mark.parametrize(("interval", "timeout"), [(0.5, 1), (20, 60.0), (43_199, 43_200)])
def test_all_workable_values_are_accepted(interval: float, timeout: Any) -> None:
    assert SQSHeartbeat(URL, HANDLE, interval, timeout, client=object()).running is False


@pytest.mark.parametrize("name", ["join_timeout_sec", "stall_timeout_sec", "max_duration_sec"])
@pytest.mark.parametrize("seconds", [0, -1, True, "5", float("nan")])
def test_a_limit_must_be_a_number_above_0(name: str, seconds: Any) -> None:
    limit: dict[str, Any] = {name: seconds}
    with pytest.raises(ValueError, match=name):
        SQSHeartbeat(URL, HANDLE, 20, client=object(), **limit)


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_failures_are_counted_in_whole_numbers(count: Any) -> None:
    with pytest.raises(ValueError, match="max_transient_failures"):
        SQSHeartbeat(URL, HANDLE, 20, client=object(), max_transient_failures=count)


@pytest.mark.parametrize("received_at", [0, -5, True, "now", float("nan"), 1_700_000_000_000])
def test_received_at_must_be_in_seconds_not_milliseconds(received_at: Any) -> None:
    with pytest.raises(ValueError, match="received_at"):
        SQSHeartbeat(URL, HANDLE, 20, client=object(), received_at=received_at)


@pytest.mark.parametrize("left", [float("nan"), float("inf"), True, "5"])
def test_the_initial_visibility_must_be_a_number(left: Any) -> None:
    with pytest.raises(ValueError, match="initial_visibility_sec"):
        SQSHeartbeat(URL, HANDLE, 20, client=object(), initial_visibility_sec=left)


@pytest.mark.parametrize("text", ["0", "-1", "abc", "nan", "inf", "1e99", "60s", "1,5"])
def test_a_bad_interval_in_the_environment_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="SQS_HEARTBEAT_INTERVAL_MS"):
        interval_from_env({"SQS_HEARTBEAT_INTERVAL_MS": text})


@pytest.mark.parametrize("environ", [{}, {"SQS_HEARTBEAT_INTERVAL_MS": " "}])
def test_no_interval_in_the_environment_is_none(environ: dict[str, str]) -> None:
    assert interval_from_env(environ) is None


class Attributes:
    def __init__(self, response: Any) -> None:
        self.response = response

    def get_queue_attributes(self, **request: Any) -> Any:
        if isinstance(self.response, Exception):
            raise self.response
        return {"Attributes": {"VisibilityTimeout": self.response}}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sqs_error("QueueDoesNotExist"), ConfigError),
        (sqs_error("AccessDenied", 403), ConfigError),
        (sqs_error("InternalError", 500), QueueUnavailable),
    ],
)
def test_a_queue_whose_timeout_cannot_be_read_is_a_clear_error(
    error, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="orders") as raised:
        visibility_timeout_of(URL, Attributes(error))
    assert HANDLE not in str(raised.value)


def test_an_interval_given_counts_more_than_the_environments(monkeypatch) -> None:
    monkeypatch.setenv("SQS_HEARTBEAT_INTERVAL_MS", "5000")
    client = Attributes("90")
    assert SQSHeartbeat.from_queue(URL, HANDLE, client=client).interval_sec == 5
    heartbeat = SQSHeartbeat.from_queue(URL, HANDLE, client=client, interval_sec=7)
    assert (heartbeat.interval_sec, heartbeat.visibility_timeout_sec) == (7, 90)


@pytest.mark.parametrize("timeout", ["0", "4"])
def test_an_interval_longer_than_the_queues_timeout_is_refused(
    monkeypatch, timeout: str
) -> None:
    """The default timeout of 600 would have allowed it (HB-14)."""
    monkeypatch.setenv("SQS_HEARTBEAT_INTERVAL_MS", "5000")
    with pytest.raises(ValueError, match="visibility_timeout_sec"):
        SQSHeartbeat.from_queue(URL, HANDLE, client=Attributes(timeout))
