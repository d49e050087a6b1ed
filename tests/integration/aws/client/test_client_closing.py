"""How long connections are kept, and closing a client while other threads call."""

import warnings
from threading import Event, Thread

import pytest
from aws_responses import QUEUE
from client_maker import ClientMaker

from holdfast.aws.json_client.transport import CallLimits, ConnectionPool
from holdfast.testing import ManualClock
from support.aws.sqs_over_http import make_success
from support.http_server import Ask, LoopbackServer, Wire
from support.waiting import wait_until


def test_a_call_that_ends_after_the_client_was_closed_leaves_no_connection(
    lean: ClientMaker, server: LoopbackServer, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("always")
    received, may_respond = Event(), Event()

    def respond_late(ask: Ask, wire: Wire) -> None:
        received.set()
        assert may_respond.wait(10)
        make_success({"QueueUrl": QUEUE})(ask, wire)

    server.on("/", respond_late)
    client = lean.make_retrying()
    results: list[str] = []
    call = Thread(
        target=lambda: results.append(client.get_queue_url(QueueName="a")["QueueUrl"])
    )
    call.start()
    assert received.wait(10)
    client.close()
    may_respond.set()
    call.join(10)
    assert results == [QUEUE]
    wait_until(lambda: server.open == 0)
    assert [str(warning.message) for warning in recwarn] == []  # such as an unclosed socket


def test_threads_may_call_while_another_closes(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    server.on("/", make_success({"QueueUrl": QUEUE}))
    client = lean.make_retrying()
    results: list[str] = []

    def call() -> None:
        for _ in range(50):
            results.append(client.get_queue_url(QueueName="a")["QueueUrl"])

    threads = [Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        client.close()
    assert results == [QUEUE] * 200


def test_a_connection_that_was_idle_for_long_is_not_used_again(server: LoopbackServer) -> None:
    """What is between may have forgotten it, and then the request would wait in vain."""
    server.on("/", make_success({}))
    clock = ManualClock()
    pool = ConnectionPool(server.url(""), CallLimits(10.0, 10.0), clock)
    for idle_seconds in (0.0, 59.0, 61.0):
        clock.advance(idle_seconds)
        assert pool.send({"host": server.origin}, b"{}").status == 200
    pool.close()
    assert [ask.connection for ask in server.asks] == [1, 1, 2]
