"""Parameters that cannot work are refused at once, with a clear message."""

from typing import Any

import pytest

from holdfast.errors import ConfigError, QueueUnavailable
from holdfast.utils.sqs_heartbeat import SQSHeartbeat, interval_from_env, visibility_timeout_of
from support.sqs.heartbeats import HANDLE, URL, sqs_error

NO_NUMBERS = [True, "30", None, float("nan"), float("inf"), [30]]


BAD_VALUES: dict[str, list[Any]] = {
    "interval_sec": [*NO_NUMBERS, 0, -0.5],
    "visibility_timeout_sec": [*NO_NUMBERS, 0, -600, 43_201, 600.5],
    "join_timeout_sec": [0, -1, True, "5", float("nan")],
    "stall_timeout_sec": [0, -1, True, "5", float("nan")],
    "max_duration_sec": [0, -1, True, "5", float("nan")],
    "max_transient_failures": [-1, 1.5, True, "2"],
    "received_at": [0, -5, True, "now", float("nan"), 1_700_000_000_000],  # not milliseconds
    "initial_visibility_sec": [float("nan"), float("inf"), True, "5"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in BAD_VALUES for value in BAD_VALUES[name]]
)
def test_a_value_that_cannot_work_is_refused_by_name(name: str, value: Any) -> None:
    parameters: dict[str, Any] = {"interval_sec": 0.1, "client": object(), name: value}
    with pytest.raises(ValueError, match=name):
        SQSHeartbeat(URL, HANDLE, **parameters)


@pytest.mark.parametrize(("interval", "timeout"), [(0.5, 1), (20, 60.0), (43_199, 43_200)])
def test_all_workable_values_are_accepted(interval: float, timeout: Any) -> None:
    assert SQSHeartbeat(URL, HANDLE, interval, timeout, client=object()).running is False


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
