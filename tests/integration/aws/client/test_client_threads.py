"""Threads that share a client, a fork while its connections are open, and sockets that leak."""

import gc
import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aws_responses import CONNECTIONS, CONTENTS
from botocore.exceptions import BotoCoreError
from client_maker import ClientMaker
from known_keys import FIRST, CredentialServer

from holdfast.aws.clients import CLIENT_VARIABLE
from holdfast.exports.model import TaskToken
from holdfast.exports.step_functions import StepFunctionsCallbacks
from support.aws.sqs_over_http import make_error, make_success
from support.http_server import Ask, LoopbackServer, Wire
from support.waiting import wait_until

MAX_IDLE = 32  # connections that a client keeps, as boto3's clients of Holdfast do

MAX_RETRIES_IN_A_ROW = 100  # of one client while no call succeeds, as botocore has it


def echo(ask: Ask, wire: Wire) -> None:
    """Respond with the name that was asked for."""
    make_success({"QueueUrl": json.loads(ask.body)["QueueName"]})(ask, wire)


def ask_for(client: Any, name: str) -> str:
    return str(client.get_queue_url(QueueName=name)["QueueUrl"])


def test_each_thread_gets_the_response_to_its_own_call(
    maker: ClientMaker, server: LoopbackServer
) -> None:
    client = maker.make_fail_fast()
    server.on("/", echo)
    names = [f"queue-{number}" for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda name: ask_for(client, name), names)) == names
    assert server.connections <= 16


def test_connections_of_threads_that_ended_are_used_again(
    maker: ClientMaker, server: LoopbackServer
) -> None:
    client = maker.make_fail_fast()
    server.on("/", echo)
    for _ in range(20):
        thread = threading.Thread(target=ask_for, args=(client, "a"))
        thread.start()
        thread.join()
    assert server.connections == 1


def test_a_crowd_of_threads_leaves_no_more_connections_than_a_client_keeps(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    client = lean.make_fail_fast()
    crowd = threading.Barrier(MAX_IDLE + 8)

    def wait_for_all(ask: Ask, wire: Wire) -> None:
        crowd.wait(20)
        echo(ask, wire)

    server.on("/", wait_for_all)
    with ThreadPoolExecutor(crowd.parties) as pool:
        list(pool.map(lambda _: ask_for(client, "a"), range(crowd.parties)))
    wait_until(lambda: server.open <= MAX_IDLE)
    client.close()
    wait_until(lambda: server.open == 0)


def count_sockets() -> int:
    gc.collect()
    return sum(
        os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    )


def test_failed_calls_leak_no_socket(lean: ClientMaker, server: LoopbackServer) -> None:
    client = lean.make_fail_fast()
    routes = [route for name, route in CONNECTIONS.items() if name != "silent"]
    server.on("/", *routes, *CONTENTS.values(), echo)
    before = count_sockets()
    for _ in [*routes, *CONTENTS]:
        with pytest.raises(BotoCoreError):
            ask_for(client, "a")
    assert ask_for(client, "a") == "a"
    wait_until(lambda: server.open == 1)
    assert count_sockets() <= before + 2  # both ends of the last one
    client.close()
    wait_until(lambda: server.open == 0)


def test_a_client_that_is_closed_connects_again(
    maker: ClientMaker, server: LoopbackServer
) -> None:
    client = maker.make_fail_fast()
    server.on("/", echo)
    for number in range(2):
        assert ask_for(client, "a") == "a"
        client.close()
        assert len({ask.connection for ask in server.asks}) == number + 1


def test_a_call_that_is_interrupted_leaves_no_response_for_the_next(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    """It is still to come when the next call begins, and must not be taken for its own."""
    client = lean.make_fail_fast()
    interrupted = threading.Event()

    def respond_late(ask: Ask, wire: Wire) -> None:
        if ask.number == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
            interrupted.wait(20)
        echo(ask, wire)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    server.on("/", respond_late)
    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        assert ask_for(client, "first") == "first"
        with pytest.raises(KeyboardInterrupt):
            ask_for(client, "second")
    finally:
        signal.signal(signal.SIGUSR1, previous)
    threading.Timer(0.2, interrupted.set).start()
    assert ask_for(client, "third") == "third"


def run_in_child(work: Callable[[], object]) -> bool:
    """Return whether `work` ends without an error in a forked child."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a deadlocked child ends by itself
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("service", ["sqs", "stepfunctions"])
def test_a_forked_child_makes_its_own_connections(
    lean: ClientMaker, server: LoopbackServer, service: str
) -> None:
    """On a shared connection, one process would read the response to the other."""
    client = lean.make_fail_fast(service)
    server.on("/", make_success({}))
    call = client.get_queue_url if service == "sqs" else client.send_task_heartbeat
    arguments = {"QueueName": "a"} if service == "sqs" else {"taskToken": "t"}
    call(**arguments)
    assert run_in_child(lambda: [call(**arguments) for _ in range(3)])
    for _ in range(3):
        call(**arguments)
    connections = [ask.connection for ask in server.asks]
    assert connections == [1, 2, 2, 2, 1, 1, 1]


def test_callbacks_in_a_forked_child_have_their_own_connections(
    kind: str, server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url(""))
    monkeypatch.setenv(CLIENT_VARIABLE, "boto3" if kind == "boto3" else "auto")
    server.on("/", make_success({}))
    callbacks = StepFunctionsCallbacks()
    callbacks.send_task_heartbeat(TaskToken("t"))
    assert run_in_child(lambda: callbacks.send_task_heartbeat(TaskToken("t")))
    callbacks.send_task_heartbeat(TaskToken("t"))
    assert [ask.connection for ask in server.asks] == [1, 2, 1]


def test_a_fork_during_a_refresh_of_credentials_leaves_the_child_able_to_call(
    lean: ClientMaker,
    server: LoopbackServer,
    no_environment_credentials: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that refreshes holds botocore's lock, and does not exist in the child."""
    is_refreshing, go_on = threading.Event(), threading.Event()
    hand_out = CredentialServer(FIRST, valid_seconds=60)  # so that each call refreshes them

    def hand_out_late(ask: Ask, wire: Wire) -> None:
        is_refreshing.set()
        go_on.wait(30)
        hand_out(ask, wire)

    url = server.on("/credentials", hand_out, hand_out_late, hand_out)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    server.on("/", echo)
    client = lean.make_retrying()
    with ThreadPoolExecutor(1) as pool:
        refreshing = pool.submit(ask_for, client, "parent")
        try:
            assert is_refreshing.wait(20)
            assert run_in_child(lambda: ask_for(client, "child"))
        finally:
            go_on.set()
        assert refreshing.result() == "parent"


def test_a_fork_while_threads_call_leaves_both_processes_able_to_call(
    lean: ClientMaker, server: LoopbackServer
) -> None:
    client = lean.make_retrying()
    server.on("/", echo)
    stop = threading.Event()
    results: list[str] = []

    def call_until_stopped(name: str) -> None:
        while not stop.is_set():
            results.append(f"{name} {ask_for(client, name)}")

    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(call_until_stopped, f"parent-{number}")
        codes = []
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                is_right = False
                try:
                    is_right = all(ask_for(client, f"c{n}") == f"c{n}" for n in range(5))
                finally:
                    os._exit(0 if is_right else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop.set()
    assert codes == [0] * 5
    assert results
    assert all(len(set(result.split())) == 1 for result in results)


def test_retries_have_a_budget_so_that_a_storm_does_not_multiply_the_load(
    lean: ClientMaker, server: LoopbackServer, waits: list[float]
) -> None:
    client = lean.make_retrying()
    server.on("/", make_error("ThrottlingException"))
    calls = 60
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask_for, client, "a") for _ in range(calls)]
    assert all(future.exception() for future in futures)
    assert len(server.asks) == calls + MAX_RETRIES_IN_A_ROW
    server.on("/", echo)
    assert ask_for(client, "a") == "a"
