"""The Step Functions adapter against a server on the loopback, and the simulator."""

import json
import logging
import socket
import traceback
from collections.abc import Callable, Iterator

import pytest

from holdfast.aws.clients import CLIENT_VARIABLE, make_fail_fast_client
from holdfast.aws.json_client.client import JsonClient
from holdfast.exports.errors import CallbackRefused, CallbackUnclear, TokenClosed
from holdfast.exports.model import TaskToken
from holdfast.exports.ports import StepFunctions
from holdfast.exports.step_functions import (
    MAX_CAUSE_CHARS,
    MAX_ERROR_CHARS,
    StepFunctionsCallbacks,
)
from holdfast.testing.clock import ManualClock
from support.aws.client_kinds import KINDS
from support.exports.simulated_step_functions import SimulatedStepFunctions, TokenState
from support.http_server import Ask, LoopbackServer, Wire

SECRET = "AQCEAAAAKgAAAAMAAAAAAAAAAQ-canary"
TOKEN = TaskToken(SECRET)


# -- the adapter


class Service(LoopbackServer):
    """Responds as configured. It quotes the token, as some do."""

    def __init__(self) -> None:
        super().__init__(otherwise=self._respond)
        self.status = 200
        self.code = ""
        self.fault: Callable[[Wire], None] | None = None  # instead of a response

    @property
    def requests(self) -> list[tuple[str, dict[str, str]]]:
        """The name and the arguments of each call."""
        return [
            (ask.headers["x-amz-target"].rpartition(".")[2], json.loads(ask.body))
            for ask in self.asks
        ]

    def _respond(self, ask: Ask, wire: Wire) -> None:
        if self.fault is not None:
            self.fault(wire)
            return
        quoted = {"__type": self.code, "message": f"no: {json.loads(ask.body)['taskToken']}"}
        body = json.dumps(quoted if self.code else {}).encode()
        length = f"Content-Length: {len(body)}"
        wire.head(f"{self.status} As Configured", "x-amzn-RequestId: 1", length)
        wire.send(body)


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


MakeCallbacks = Callable[[str], StepFunctionsCallbacks]


@pytest.fixture(params=KINDS)
def make_callbacks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> MakeCallbacks:
    """Make the adapter with a client that calls an address and never retries."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv(CLIENT_VARIABLE, "boto3" if request.param == "boto3" else "auto")

    def make(url: str) -> StepFunctionsCallbacks:
        client = make_fail_fast_client("stepfunctions", 2.4, endpoint_url=url)  # 0.3 s
        assert isinstance(client, JsonClient) == (request.param == "lean")
        return StepFunctionsCallbacks(client)

    return make


@pytest.mark.requirement(
    "R004-094",
    "R004-120",
    "R004-121",
    "R004-165",
    "R004-166",
    "R004-171",
    "R004-172",
    "R004-173",
    "R004-174",
    "R004-175",
)
def test_the_three_callbacks_say_what_the_service_expects(
    service: Service, make_callbacks: MakeCallbacks
) -> None:
    port: StepFunctions = make_callbacks(service.url(""))
    port.send_task_success(TOKEN, {"jobId": "j", "status": "COMPLETED", "totalTasks": 2})
    port.send_task_failure(TOKEN, "JobCompletedWithFailures", "3 tasks failed")
    port.send_task_heartbeat(TOKEN)
    success, failure, heartbeat = service.requests
    assert success[0] == "SendTaskSuccess"
    assert json.loads(success[1]["output"]) == {
        "jobId": "j",
        "status": "COMPLETED",
        "totalTasks": 2,
    }
    assert failure == (
        "SendTaskFailure",
        {"taskToken": SECRET, "error": "JobCompletedWithFailures", "cause": "3 tasks failed"},
    )
    assert heartbeat == ("SendTaskHeartbeat", {"taskToken": SECRET})


@pytest.mark.requirement("R004-162", "R004-179", "R004-253", "R004-254")
@pytest.mark.parametrize("code", ["TaskTimedOut", "TaskDoesNotExist", "InvalidToken"])
def test_three_codes_mean_that_the_token_is_closed(
    service: Service, code: str, make_callbacks: MakeCallbacks
) -> None:
    """The code decides, and the text is ignored (JB-46)."""
    service.status, service.code = 400, code
    with pytest.raises(TokenClosed) as caught:
        make_callbacks(service.url("")).send_task_heartbeat(TOKEN)
    assert caught.value.code == code


@pytest.mark.requirement("R004-170")
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "ThrottlingException"),
        (400, "AccessDeniedException"),
        (400, "InvalidOutput"),
        (403, "UnrecognizedClientException"),
        (429, "TooManyRequestsException"),
    ],
)
def test_a_refused_call_was_not_acted_on(
    service: Service, status: int, code: str, make_callbacks: MakeCallbacks
) -> None:
    service.status, service.code = status, code
    with pytest.raises(CallbackRefused, match=code):
        make_callbacks(service.url("")).send_task_success(TOKEN, {})


@pytest.mark.requirement("R004-179")
@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalFailure"), (503, "ServiceUnavailable"), (502, "")]
)
def test_after_a_server_error_it_is_unknown_what_was_done(
    service: Service, status: int, code: str, make_callbacks: MakeCallbacks
) -> None:
    """(JB-09)"""
    service.status, service.code = status, code
    with pytest.raises(CallbackUnclear):
        make_callbacks(service.url("")).send_task_success(TOKEN, {})


def test_a_response_that_does_not_come_in_time_is_unclear_and_not_retried(
    service: Service, make_callbacks: MakeCallbacks
) -> None:
    """A retry of the client would turn a success into TaskTimedOut (JB-09)."""
    service.fault = Wire.hang
    with pytest.raises(CallbackUnclear, match="ReadTimeoutError"):
        make_callbacks(service.url("")).send_task_success(TOKEN, {})
    assert len(service.requests) == 1


@pytest.mark.requirement("R004-243")
def test_a_connection_that_breaks_is_unclear_and_tried_once(
    service: Service, make_callbacks: MakeCallbacks
) -> None:
    """(JB-09)"""
    service.fault = Wire.close
    with pytest.raises(CallbackUnclear):
        make_callbacks(service.url("")).send_task_success(TOKEN, {})
    assert len(service.requests) == 1


def test_a_service_that_cannot_be_reached_did_nothing(make_callbacks: MakeCallbacks) -> None:
    """Otherwise a timeout during an outage would count as our own success (JB-09)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(CallbackRefused, match="EndpointConnectionError"):
        make_callbacks(f"http://127.0.0.1:{port}").send_task_success(TOKEN, {})


@pytest.mark.requirement("R004-175")
def test_the_default_client_never_retries(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(JB-09)"""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STEPFUNCTIONS", service.url(""))
    monkeypatch.setenv("AWS_ENDPOINT_URL_SFN", service.url(""))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    service.status, service.code = 500, "InternalFailure"
    with pytest.raises(CallbackUnclear):
        StepFunctionsCallbacks().send_task_success(TOKEN, {})
    assert len(service.requests) == 1


def test_a_token_that_is_too_long_is_treated_as_closed(
    service: Service, make_callbacks: MakeCallbacks
) -> None:
    """(JB-38)"""
    with pytest.raises(TokenClosed):
        make_callbacks(service.url("")).send_task_heartbeat(TaskToken("x" * 2049))
    assert service.requests == []


@pytest.mark.requirement(
    "R004-167",
    "R004-168",
    "R004-169",
    "R004-170",
    "R004-176",
    "R004-177",
    "R004-178",
    "R004-179",
)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_no_log_and_no_error_shows_the_token(
    service: Service,
    status: int,
    caplog: pytest.LogCaptureFixture,
    make_callbacks: MakeCallbacks,
) -> None:
    """The service quotes it (JB-35)."""
    caplog.set_level(logging.DEBUG, logger="holdfast")
    service.status, service.code = status, "" if status == 200 else "SomethingOdd"
    port, printed = make_callbacks(service.url("")), ""
    if status == 200:
        port.send_task_heartbeat(TOKEN)
    else:
        with pytest.raises((CallbackRefused, CallbackUnclear)) as caught:
            port.send_task_heartbeat(TOKEN)
        # As a log would print it, with all its causes.
        printed = "".join(traceback.format_exception(caught.value))
    logged = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("holdfast"))
    assert str(TOKEN) in logged
    assert SECRET not in logged + printed


# -- limits


@pytest.mark.requirement("R004-173")
def test_long_texts_arrive_cut(service: Service, make_callbacks: MakeCallbacks) -> None:
    """(JB-38)"""
    make_callbacks(service.url("")).send_task_failure(TOKEN, "E" * 1000, "c" * 100_000)
    [(_, request)] = service.requests
    assert len(request["error"]) == MAX_ERROR_CHARS
    assert len(request["cause"]) == MAX_CAUSE_CHARS


# -- the simulator


@pytest.fixture
def simulated(clock: ManualClock) -> SimulatedStepFunctions:
    return SimulatedStepFunctions(clock)


@pytest.mark.requirement("R004-223", "R004-248")
def test_silence_times_a_token_out(
    simulated: SimulatedStepFunctions, clock: ManualClock
) -> None:
    """Counted from the entry of the state."""
    port: StepFunctions = simulated
    token = simulated.open(heartbeat_seconds=60)
    clock.advance(59.9)
    port.send_task_heartbeat(token)
    clock.advance(60)
    assert simulated.state(token) is TokenState.TIMED_OUT
    with pytest.raises(TokenClosed, match="TaskTimedOut"):
        port.send_task_heartbeat(token)


def test_heartbeats_do_not_extend_the_absolute_timeout(
    simulated: SimulatedStepFunctions, clock: ManualClock
) -> None:
    """(JB-18)"""
    token = simulated.open(heartbeat_seconds=60, timeout_seconds=100)
    for _ in range(3):
        clock.advance(30)
        simulated.send_task_heartbeat(token)
    clock.advance(10)
    assert simulated.state(token) is TokenState.TIMED_OUT


@pytest.mark.requirement("R004-126")
def test_a_closed_token_gets_the_error_of_a_timeout(
    simulated: SimulatedStepFunctions,
) -> None:
    """(JB-46)."""
    token = simulated.open()
    simulated.send_task_success(token, {"a": 1})
    assert simulated.state(token) is TokenState.CLOSED
    for call in (
        lambda: simulated.send_task_success(token, {}),
        lambda: simulated.send_task_failure(token, "E", "c"),
        lambda: simulated.send_task_heartbeat(token),
    ):
        with pytest.raises(TokenClosed, match="TaskTimedOut"):
            call()
    [accepted] = simulated.accepted
    assert (accepted.kind, accepted.output) == ("success", {"a": 1})
    with pytest.raises(TokenClosed, match="InvalidToken"):
        simulated.send_task_heartbeat(TaskToken("never issued"))
