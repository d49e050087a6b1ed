"""A worker is protected from scale-in while it holds messages."""

import logging
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from holdfast import QueueMessage, Worker
from holdfast.aws.task_protection import TaskProtection
from holdfast.cli.foreground import ServiceOptions
from holdfast.errors import ConfigError
from holdfast.events import Claimed, Completed, Events, LeaseRenewed, MessageLeaseLost
from holdfast.testing import ManualClock, MemoryQueue
from support.cli.commands import log_contains, wait_for_end
from support.cli.work_folder import WorkFolder
from support.ecs_agent import EcsAgent
from support.waiting import wait_until

PROTECT = {"ProtectionEnabled": True, "ExpiresInMinutes": 60}
CLEAR = {"ProtectionEnabled": False}


@pytest.fixture
def agent() -> Iterator[EcsAgent]:
    with EcsAgent() as agent:
        yield agent


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def protection(agent: EcsAgent, clock: ManualClock) -> TaskProtection:
    """A protection whose passes the test runs."""
    return TaskProtection(agent.uri, clock=clock)


def claim(message_id: str, attempt: int = 1) -> Claimed:
    return Claimed("q", message_id, attempt)


def complete(message_id: str) -> Completed:
    return Completed("q", message_id, 1, 0.5)


def test_an_idle_worker_asks_for_nothing(protection: TaskProtection, agent: EcsAgent) -> None:
    assert protection.tick() == inf
    assert agent.requests == []


def test_the_first_claim_protects_and_further_claims_ask_no_more(
    protection: TaskProtection, agent: EcsAgent
) -> None:
    for message_id in "abc":
        protection(claim(message_id))
        protection.tick()
    assert agent.requests == [PROTECT]


def test_the_task_stays_protected_until_every_message_is_settled(
    protection: TaskProtection, agent: EcsAgent, clock: ManualClock
) -> None:
    for event in (claim("a"), claim("b"), complete("a")):
        protection(event)
    clock.advance(600)
    protection.tick()
    assert agent.is_protected
    protection(MessageLeaseLost("q", "b", 1, "its deadline passed"))
    clock.advance(61)
    protection.tick()
    assert agent.requests == [PROTECT, CLEAR]


def test_the_end_of_an_earlier_attempt_does_not_end_a_later_one(
    protection: TaskProtection, agent: EcsAgent, clock: ManualClock
) -> None:
    for event in (claim("a", 1), claim("a", 2), MessageLeaseLost("q", "a", 1, "taken")):
        protection(event)
    protection.tick()
    clock.advance(120)
    protection.tick()
    assert agent.is_protected


def test_short_messages_do_not_change_the_protection_each_time(
    protection: TaskProtection, agent: EcsAgent, clock: ManualClock
) -> None:
    for number in range(100):
        protection(claim(str(number)))
        protection.tick()
        protection(complete(str(number)))
        clock.advance(1)
        protection.tick()
    assert agent.requests == [PROTECT]


def test_the_next_pass_is_when_the_protection_is_to_be_cleared(
    protection: TaskProtection, agent: EcsAgent, clock: ManualClock
) -> None:
    protection(claim("a"))
    protection.tick()
    protection(complete("a"))
    next_at = protection.tick()
    assert next_at == clock.monotonic() + 60
    clock.advance(60)
    assert protection.tick() == inf
    assert not agent.is_protected


def test_a_long_hold_is_renewed_before_the_protection_ends(
    protection: TaskProtection, agent: EcsAgent, clock: ManualClock
) -> None:
    protection(claim("a"))
    next_at = protection.tick()
    assert next_at - clock.monotonic() < PROTECT["ExpiresInMinutes"] * 60
    clock.advance(next_at - clock.monotonic())
    protection(LeaseRenewed("q", "a", 1, 0.0))
    protection.tick()
    assert agent.requests == [PROTECT, PROTECT]


@pytest.mark.parametrize(
    "refusal",
    [
        {"failure": {"Arn": "arn", "Reason": "DEPLOYMENT_BLOCKED"}},
        {"error": {"Code": "AccessDeniedException", "Message": "no"}},
        {"protection": {"ProtectionEnabled": False}},
        {"requestID": "1"},
        b"not JSON",
        [],
    ],
    ids=["refused", "denied", "another-state", "unknown", "no-json", "list"],
)
def test_a_refusal_is_logged_once_and_repeated_until_it_is_granted(
    protection: TaskProtection,
    agent: EcsAgent,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    refusal: Any,
) -> None:
    agent.refusal = refusal
    protection(claim("a"))
    for _ in range(3):
        clock.advance(protection.tick() - clock.monotonic())
    agent.refusal = None
    protection.tick()
    assert agent.requests == [PROTECT] * 4
    assert agent.is_protected
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_event_does_not_repeat_a_refused_request_early(
    protection: TaskProtection, agent: EcsAgent
) -> None:
    agent.refusal = {"failure": {"Reason": "TASK_NOT_VALID"}}
    for message_id in "abc":
        protection(claim(message_id))
        protection.tick()
    assert agent.requests == [PROTECT]


def test_an_agent_that_is_gone_does_not_fail_the_work(clock: ManualClock) -> None:
    with EcsAgent() as agent:
        uri = agent.uri
    protection = TaskProtection(uri, clock=clock)
    protection(claim("a"))
    assert protection.tick() == clock.monotonic() + 10


@pytest.mark.parametrize("uri", ["169.254.170.2", "https://agent", "http://", "file:/etc"])
def test_an_address_that_is_not_the_agents_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="ECS_AGENT_URI"):
        TaskProtection(uri)


# -- a real worker and a real thread


class Work(QueueMessage):
    pass


def test_a_handler_runs_protected_and_the_end_of_the_process_clears_it(agent: EcsAgent) -> None:
    events = Events()
    queue = MemoryQueue(Work, max_attempts=1, events=events)
    queue.push(Work(id="a"))

    def handle(message: Work) -> None:
        wait_until(lambda: agent.is_protected)

    with TaskProtection(agent.uri) as protection:
        events.subscribe(protection)
        report = Worker(queue, handle, events=events).run(until_empty=True)
        assert agent.is_protected
    assert report.completed == 1
    assert agent.requests == [PROTECT, CLEAR]


def test_outside_ecs_nothing_is_subscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECS_AGENT_URI", raising=False)
    events = Events()
    with ServiceOptions().attach_subscribers(events):
        assert not events.has_subscribers


def test_a_worker_that_drains_after_sigterm_stays_protected_until_its_work_is_done(
    agent: EcsAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECS_AGENT_URI", agent.uri)
    place = WorkFolder(tmp_path)
    try:
        place.push("a")
        worker = place.start("tasks:slow")
        wait_until(lambda: agent.is_protected)
        worker.terminate()
        assert log_contains(worker, b"draining")
        assert agent.requests == [PROTECT]
        place.finish()
        code, _, _ = wait_for_end(worker)
    finally:
        place.close()
    assert code == 0
    assert place.read_effects() == ["finished a", "started a"]
    assert agent.requests == [PROTECT, CLEAR]
