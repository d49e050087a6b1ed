"""Clients whose clock is wrong, and whose credentials expire and rotate."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from aws_responses import QUEUE
from botocore.utils import ContainerMetadataFetcher
from client_maker import ClientMaker, call_queue, send_success
from known_keys import (
    FIRST,
    SECOND,
    CredentialServer,
    Key,
    check_signature,
    parse_authorization,
)

from holdfast.errors import ConfigError, QueueUnavailable
from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.errors import CallbackRefused
from support.aws.sqs_over_http import Response, make_error, make_success
from support.http_server import Ask, LoopbackServer, Route, Wire

URL = make_success({"QueueUrl": QUEUE})


# -- a wrong clock


@pytest.mark.parametrize(
    "code",
    [
        "RequestTimeTooSkewed",
        "RequestExpired",
        "com.amazon.coral.service#InvalidSignatureException",
        "SignatureDoesNotMatch",
    ],
)
def test_a_refused_signature_is_not_repeated_and_names_the_clock(
    maker: ClientMaker, server: LoopbackServer, code: str
) -> None:
    server.on("/", make_error(code))
    with pytest.raises(ConfigError, match=r"credentials are not accepted .* clock"):
        call_queue(maker.make_retrying())
    assert len(server.asks) == 1


# -- credentials


@pytest.fixture
def credential_server(
    server: LoopbackServer,
    no_environment_credentials: None,
    monkeypatch: pytest.MonkeyPatch,
) -> CredentialServer:
    """Hand out credentials over HTTP instead of the environment, as in a container.

    botocore refreshes credentials that are valid for less than ten minutes before each use.
    """
    credential_server = CredentialServer(FIRST, valid_seconds=60)
    url = server.on("/credentials", credential_server)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    return credential_server


def get_key(ask: Ask) -> Key:
    """Return the one key with which everything in the request is signed."""
    key = {key.id: key for key in (FIRST, SECOND)}[parse_authorization(ask)["key"]]
    check_signature(ask, key)
    return key


def rotate(credential_server: CredentialServer, response: Response) -> Route:
    """Respond, and hand out other credentials from now on."""

    def route(ask: Ask, wire: Wire) -> None:
        credential_server.key = SECOND
        response(ask, wire)

    return route


def test_credentials_that_rotate_in_the_middle_of_a_call_sign_its_next_try(
    maker: ClientMaker,
    server: LoopbackServer,
    credential_server: CredentialServer,
    waits: list[float],
) -> None:
    client = maker.make_retrying()
    throttled = make_error("ThrottlingException")
    server.on("/", rotate(credential_server, throttled), URL)
    assert call_queue(client) == QUEUE
    assert [get_key(ask) for ask in server.asked("/")] == [FIRST, SECOND]


def test_threads_never_mix_the_parts_of_two_credentials(
    lean: ClientMaker, server: LoopbackServer, credential_server: CredentialServer
) -> None:
    client = lean.make_fail_fast()
    server.on("/", *[URL] * 20, rotate(credential_server, URL), URL)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: call_queue(client), range(64)))
    keys = [get_key(ask) for ask in server.asked("/")]
    assert set(keys) == {FIRST, SECOND}
    assert keys[-1] == SECOND


def test_no_request_is_sent_with_credentials_that_could_not_be_refreshed(
    maker: ClientMaker,
    server: LoopbackServer,
    credential_server: CredentialServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)  # between its tries
    client = maker.make_fail_fast("stepfunctions")
    queue_client = maker.make_fail_fast()
    server.on("/", URL)
    send_success(client)
    call_queue(queue_client)
    credential_server.is_broken = True
    with pytest.raises(CallbackRefused, match="never reached"):
        send_success(client)
    with pytest.raises(QueueUnavailable):
        call_queue(queue_client)
    assert len(server.asked("/")) == 2
    credential_server.is_broken = False
    send_success(client)


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
def test_refused_credentials_are_reported_and_the_call_is_not_repeated(
    maker: ClientMaker, server: LoopbackServer, waits: list[float], code: str
) -> None:
    server.on("/", make_error(code))
    with pytest.raises(ConfigError, match=code):
        call_queue(maker.make_retrying())
    assert (len(server.asks), waits) == (1, [])


def test_without_credentials_nothing_is_sent(
    maker: ClientMaker, server: LoopbackServer, no_environment_credentials: None
) -> None:
    with pytest.raises(ConfigError, match="no AWS credentials found"):
        call_queue(maker.make_fail_fast())
    with pytest.raises(CallbackRefused, match="never reached"):
        send_success(maker.make_fail_fast("stepfunctions"))
    assert server.asks == []


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("AWS_ACCESS_KEY_ID", "canary\u0107", "access key"),
        ("AWS_SESSION_TOKEN", "canary\u0107", "session token"),
        ("AWS_SESSION_TOKEN", "canary\n", "session token"),
        ("AWS_SECRET_ACCESS_KEY", "canary\udcff", "secret key"),
    ],
)
def test_credentials_that_cannot_be_sent_are_one_permanent_error(
    maker: ClientMaker,
    server: LoopbackServer,
    monkeypatch: pytest.MonkeyPatch,
    no_environment_credentials: None,
    variable: str,
    value: str,
    name: str,
) -> None:
    for other, text in (FIRST.env | {variable: value}).items():
        monkeypatch.setenv(other, text)
    jobs = DynamoDBJobs(client=maker.make_retrying("dynamodb"))
    with pytest.raises(ConfigError, match=name) as from_queue:
        call_queue(maker.make_retrying())
    with pytest.raises(ConfigError, match=name):
        jobs.find_by_id("job")
    with pytest.raises(CallbackRefused, match=name) as from_callback:
        send_success(maker.make_fail_fast("stepfunctions"))
    assert "canary" not in f"{from_queue.value} {from_callback.value}"
    assert server.asks == []


def test_a_token_with_blanks_is_signed_as_botocore_signs_it(
    maker: ClientMaker,
    server: LoopbackServer,
    monkeypatch: pytest.MonkeyPatch,
    no_environment_credentials: None,
) -> None:
    key = replace(FIRST, token="two  blanks\tand a tab")
    for name, value in key.env.items():
        monkeypatch.setenv(name, f" {value} " if name == "AWS_SESSION_TOKEN" else value)
    server.on("/", URL)
    call_queue(maker.make_fail_fast())
    check_signature(server.asks[0], key)  # as received, without the outer blanks


def test_credentials_that_are_expired_after_a_refresh_are_a_permanent_error(
    maker: ClientMaker, server: LoopbackServer, credential_server: CredentialServer
) -> None:
    client = maker.make_retrying()
    server.on("/", URL)
    call_queue(client)
    credential_server.valid_seconds = -60
    with pytest.raises(ConfigError, match="expired"):
        call_queue(client)
    assert len(server.asked("/")) == 1
