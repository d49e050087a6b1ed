"""Clients of SQS and Step Functions on connections that break and bring wrong responses.

The client that tries once is tested through Holdfast's own adapters, because what matters is
how they understand its errors: an outage may be over at the next try, and a callback without a
response may have been accepted.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aws_responses import (
    CONNECTIONS,
    QUEUE,
    REDIRECTS,
    TOKEN,
    drip,
    drip_head,
    make_arguments,
    send_bytes,
)
from botocore.exceptions import ResponseStreamingError
from client_maker import ClientMaker, call_queue, send_success

from holdfast.errors import ConfigError, QueueUnavailable
from holdfast.exports.errors import CallbackRefused, CallbackUnclear
from support.aws.sqs_over_http import make_error, make_query_error, make_success
from support.http_server import Ask, LoopbackServer, Wire
from support.waiting import WAIT_TIMEOUT_SECONDS, wait_until

URL = make_success({"QueueUrl": QUEUE})
THROTTLED = make_query_error("com.amazonaws.sqs#RequestThrottled", "RequestThrottled")
MAX_TRIES = 4
BAD_BINARY = {"DataType": "Binary", "BinaryValue": "a"}


def is_idle(server: LoopbackServer) -> bool:
    return server.open == 0


# -- a call that is tried once


@pytest.mark.parametrize("name", CONNECTIONS)
def test_a_broken_connection_is_an_outage_and_the_next_call_connects_again(
    maker: ClientMaker, server: LoopbackServer, name: str
) -> None:
    client = maker.make_fail_fast(seconds=16.0)  # one of them takes the timeout
    server.on("/", CONNECTIONS[name], URL)
    with pytest.raises(QueueUnavailable):
        call_queue(client)
    assert len(server.asks) == 1
    assert call_queue(client) == QUEUE
    assert [ask.connection for ask in server.asks] == [1, 2]
    wait_until(lambda: server.open <= 1)  # the broken one does not stay open


@pytest.mark.parametrize("name", CONNECTIONS)
def test_a_callback_without_a_response_is_not_sent_again(
    maker: ClientMaker, server: LoopbackServer, name: str
) -> None:
    """The first may have been accepted, and the second would be refused."""
    client = maker.make_fail_fast("stepfunctions", seconds=16.0)
    server.on("/", make_success({}), CONNECTIONS[name], make_success({}))
    send_success(client)  # so that the next call finds an open connection
    with pytest.raises(CallbackUnclear):
        send_success(client)
    assert len(server.asks) == 2


UNKNOWN_OUTCOMES = {
    **{name: route for name, route in CONNECTIONS.items() if name != "silent"},
    "500": make_error("x", status="500 Internal Server Error"),
    "502": make_error("x", status="502 Bad Gateway"),
    "503": make_error("ServiceUnavailable", status="503 Service Unavailable"),
}


@pytest.mark.parametrize("name", UNKNOWN_OUTCOMES)
def test_not_even_a_client_that_retries_sends_a_callback_again(
    lean: ClientMaker, server: LoopbackServer, waits: list[float], name: str
) -> None:
    server.on("/", UNKNOWN_OUTCOMES[name], make_success({}))
    with pytest.raises(CallbackUnclear):
        send_success(lean.make_retrying("stepfunctions"))
    assert (len(server.asks), waits) == (1, [])


def test_a_callback_is_sent_on_a_connection_of_its_own(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    """On a kept one, the server's end could cross it, and leave its outcome unknown."""
    client = lean.make_fail_fast("stepfunctions")
    server.on("/", make_success({}))
    for _ in range(3):
        client.send_task_heartbeat(taskToken=TOKEN)
        send_success(client)
    assert [ask.connection for ask in server.asks] == [1, 2, 1, 3, 1, 4]
    wait_until(lambda: server.open == 1)


@pytest.mark.parametrize(
    ("service", "method", "content"),
    [
        ("sqs", "receive_message", {"Messages": [{"MessageAttributes": {"a": {}}}, 1]}),
        ("sqs", "receive_message", {"Messages": [{"MessageAttributes": {"a": BAD_BINARY}}]}),
        ("dynamodb", "get_item", {"Item": {"id": {"B": "a"}}}),
    ],
)
def test_a_binary_value_that_cannot_be_decoded_is_no_success(
    lean: ClientMaker, server: LoopbackServer, service: str, method: str, content: Any
) -> None:
    server.on("/", make_success({**content, "a": BAD_BINARY}))
    client = lean.make_fail_fast(service)
    with pytest.raises(ResponseStreamingError):
        getattr(client, method)(**make_arguments(service, method))


def test_no_member_of_an_error_replaces_its_code(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    server.on("/", make_error("AccessDenied", Error="x", ResponseMetadata="y"))
    with pytest.raises(ConfigError, match="denied"):
        call_queue(lean.make_fail_fast())


@pytest.mark.parametrize("line", REDIRECTS)
def test_a_redirect_is_refused_and_not_followed(
    maker: ClientMaker, server: LoopbackServer, line: str
) -> None:
    server.on("/", REDIRECTS[line])
    with pytest.raises(ConfigError, match="refused"):
        call_queue(maker.make_fail_fast())
    with pytest.raises(CallbackRefused):
        send_success(maker.make_fail_fast("stepfunctions"))
    assert {ask.path for ask in server.asks} == {"/"}


@pytest.mark.parametrize("route", [drip, drip_head])
def test_a_response_that_drips_ends_at_the_timeout(
    lean: ClientMaker, server: LoopbackServer, route: Any
) -> None:
    """Each byte comes in time, so a timeout of each read would never end the call."""
    client = lean.make_fail_fast(seconds=2.0)  # a timeout of a quarter second
    server.on("/", route)
    started = time.monotonic()
    with pytest.raises(QueueUnavailable):
        call_queue(client)
    assert 0.2 < time.monotonic() - started < 20.0
    wait_until(lambda: is_idle(server))


def test_a_server_that_is_silent_ends_at_the_timeout(
    maker: ClientMaker, server: LoopbackServer
) -> None:
    client = maker.make_fail_fast(seconds=2.0)
    server.on("/", CONNECTIONS["silent"])
    started = time.monotonic()
    with pytest.raises(QueueUnavailable, match="ReadTimeoutError"):
        call_queue(client)
    assert 0.2 < time.monotonic() - started < 20.0


def test_an_endless_response_is_not_read_to_its_end(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    sent = 0

    def send_endlessly(ask: Ask, wire: Wire) -> None:
        nonlocal sent
        wire.head("200 OK", "Transfer-Encoding: chunked")
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        while sent < 1000:
            wire.send(chunk)
            sent += 1

    server.on("/", send_endlessly)
    with pytest.raises(QueueUnavailable):
        call_queue(lean.make_fail_fast())
    assert sent < 200  # of a megabyte


# -- the connection that is kept


def test_calls_one_after_the_other_share_a_connection(
    maker: ClientMaker, server: LoopbackServer
) -> None:
    client = maker.make_fail_fast()
    server.on("/", URL)
    for _ in range(5):
        call_queue(client)
    assert {ask.connection for ask in server.asks} == {1}


def make_bytes(url: str) -> bytes:
    body = f'{{"QueueUrl": "{url}"}}'
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def close(wire: Wire) -> None:
    wire.half_close()  # at once; the server closes the other direction a little later
    wire.close()


WHILE_IDLE: dict[str, Callable[[Wire], None]] = {
    "closed": close,
    "half closed": Wire.half_close,
    "surplus bytes": lambda wire: wire.send(make_bytes("surplus")),
}


@pytest.mark.parametrize("name", WHILE_IDLE)
def test_a_connection_on_which_something_happens_while_it_is_idle_is_replaced(
    maker: ClientMaker, server: LoopbackServer, name: str
) -> None:
    """No byte of the next call is sent on it, so even a call that is tried once succeeds.

    Surplus bytes would be taken for the response to the next call.
    """
    client = maker.make_fail_fast()
    happened = threading.Semaphore(0)

    def route(ask: Ask, wire: Wire) -> None:
        URL(ask, wire)
        WHILE_IDLE[name](wire)
        wire.await_arrival()
        happened.release()

    server.on("/", route)
    for _ in range(3):
        assert call_queue(client) == QUEUE
        assert happened.acquire(timeout=WAIT_TIMEOUT_SECONDS)
    if name != "surplus bytes" or maker.kind == "lean":  # boto3 may read and drop them
        assert [ask.connection for ask in server.asks] == [1, 2, 3]


def test_surplus_bytes_together_with_a_response_end_the_connection(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    together = make_bytes(QUEUE) + make_bytes("surplus")
    server.on("/", send_bytes(together, then=lambda wire: None))
    client = lean.make_fail_fast()
    assert [call_queue(client) for _ in range(3)] == [QUEUE] * 3
    assert [ask.connection for ask in server.asks] == [1, 2, 3]


def test_a_kept_connection_that_ends_during_a_call_is_replaced_once(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    """The server closed it while the request was on its way, which is no outage."""
    client = lean.make_fail_fast()
    server.on("/", URL, CONNECTIONS["closed"], URL, CONNECTIONS["closed"])
    assert [call_queue(client) for _ in range(2)] == [QUEUE, QUEUE]
    assert [ask.connection for ask in server.asks] == [1, 1, 2]
    with pytest.raises(QueueUnavailable):
        call_queue(client)
    assert len(server.asks) == 5


def test_the_server_may_ask_to_close_the_connection(
    maker: ClientMaker, server: LoopbackServer
) -> None:
    client = maker.make_fail_fast()
    body = b'{"QueueUrl": "x"}'
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    server.on("/", send_bytes(head + body, then=lambda wire: None))  # and does not close it
    assert [call_queue(client) for _ in range(2)] == ["x", "x"]
    assert [ask.connection for ask in server.asks] == [1, 2]
    maker.close()
    wait_until(lambda: is_idle(server))


def test_the_end_of_the_connection_may_end_the_response(
    maker: ClientMaker, server: LoopbackServer
) -> None:
    client = maker.make_fail_fast()
    server.on("/", send_bytes(b'HTTP/1.1 200 OK\r\n\r\n{"QueueUrl": "x"}'))
    assert [call_queue(client) for _ in range(2)] == ["x", "x"]


def test_a_response_may_come_in_chunks(maker: ClientMaker, server: LoopbackServer) -> None:
    client = maker.make_fail_fast()
    chunks = b'4;x=y\r\n{"Qu\r\nd\r\neueUrl": "x"}\r\n0\r\nTrailer: 1\r\n\r\n'
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.on("/", send_bytes(head + chunks, then=lambda wire: None))
    assert [call_queue(client) for _ in range(3)] == ["x"] * 3
    assert {ask.connection for ask in server.asks} == {1}


@pytest.mark.parametrize("line", ["200 OK", "204 No Content"])
def test_an_empty_response_is_an_empty_result(
    maker: ClientMaker, server: LoopbackServer, line: str
) -> None:
    client = maker.make_fail_fast("stepfunctions")
    head = f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode()
    server.on("/", send_bytes(head, then=lambda wire: None))
    for _ in range(2):
        client.send_task_heartbeat(taskToken=TOKEN)
    assert {ask.connection for ask in server.asks} == {1}


# -- a call that is tried again


@pytest.mark.parametrize("name", sorted(set(CONNECTIONS) - {"silent"}))
def test_a_call_that_may_be_repeated_is_repeated(
    maker: ClientMaker, server: LoopbackServer, waits: list[float], name: str
) -> None:
    server.on("/", CONNECTIONS[name], URL)
    assert call_queue(maker.make_retrying()) == QUEUE
    assert len(server.asks) == 2


@pytest.mark.parametrize(
    "response",
    [
        THROTTLED,
        make_error("ThrottlingException"),
        make_error("x", status="500 Internal Server Error"),
        make_error("x", status="502 Bad Gateway"),
        make_error("ServiceUnavailable", status="503 Service Unavailable"),
        make_error("x", status="504 Gateway Timeout"),
        make_error("x", status="429 Too Many Requests"),
    ],
)
def test_a_storm_of_refusals_ends_after_a_few_tries(
    maker: ClientMaker, server: LoopbackServer, waits: list[float], response: Any
) -> None:
    server.on("/", response)
    client = maker.make_retrying()
    for _ in range(2):
        with pytest.raises(QueueUnavailable):
            call_queue(client)
    assert len(server.asks) <= 2 * MAX_TRIES
    assert sum(waits) < 2 * 20.0
    assert all(wait > 0 for wait in waits)
    assert len(set(waits)) == len(waits)  # with jitter, so that clients do not meet again


@pytest.mark.parametrize("code", ["AccessDenied", "ReceiptHandleIsInvalid", "NoSuchCode"])
def test_a_refusal_is_not_repeated(
    maker: ClientMaker, server: LoopbackServer, waits: list[float], code: str
) -> None:
    server.on("/", make_error(code))
    with pytest.raises(ConfigError):
        call_queue(maker.make_retrying())
    assert (len(server.asks), waits) == (1, [])


def test_a_repeated_transaction_has_the_same_token(
    maker: ClientMaker, server: LoopbackServer, waits: list[float]
) -> None:
    """The token is what makes the second request the same transaction."""
    client = maker.make_retrying("dynamodb")
    server.on("/", CONNECTIONS["reset"], make_success({}))
    for _ in range(2):
        client.transact_write_items(
            TransactItems=[{"Delete": {"TableName": "tasks", "Key": {"id": {"S": "a"}}}}]
        )
    first, second, third = (ask.body for ask in server.asks)
    assert first == second != third
    assert b"ClientRequestToken" in first
