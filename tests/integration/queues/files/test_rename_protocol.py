"""The rename protocol in a small model, under all schedules: its promises and their reasons.

The real code is tested for the same promises in
tests/integration/queues/files/test_schedules.py. Here time, kills and repeated
network calls are unlimited within the scope.
"""

import pytest

from support.files.rename_protocol import Mutation, Scope, explore

TWO = Scope(workers=2, ticks=4, fences=3, kills=1)
THREE = Scope(workers=3, ticks=3, fences=2, kills=0)
TWO_HOSTS = Scope(workers=2, hosts=2, ticks=4, fences=3, kills=1)
THREE_ON_TWO_HOSTS = Scope(workers=3, hosts=2, ticks=3, fences=2, kills=0)
SMALL = Scope(workers=2, ticks=4, fences=2, kills=1)

NEEDED = {
    (Mutation.DEADLINE_AFTER_CLAIM,): "two hold the task at once",
    (Mutation.TAKE_OVER_UNJUDGED,): "two hold the task at once",
    (Mutation.SETTLE_UNCHECKED,): "the task was acked twice",
    (Mutation.FENCE_FALLS,): "a fence was given out twice",
    (Mutation.SHARED_IDENTITY,): "two hold the task at once",
    # Each of these two alone breaks nothing, see below. So the renewal by rename and the
    # rule about late responses protect each other.
    (Mutation.RENEW_IN_PLACE, Mutation.LATE_RENEWAL_COUNTS): "two hold the task at once",
}

# Between hosts, a renewal must change the name in any case, because nothing else shows it.
NEEDED_BETWEEN_HOSTS = {
    (Mutation.RENEW_IN_PLACE,): "two hold the task at once",
    (Mutation.WATCH_TOO_SHORT,): "two hold the task at once",
    (Mutation.SEEN_BEFORE_LISTING,): "two hold the task at once",
    (Mutation.TAKE_OVER_UNJUDGED,): "two hold the task at once",
    (Mutation.SETTLE_UNCHECKED,): "the task was acked twice",
    (Mutation.FENCE_FALLS,): "a fence was given out twice",
}

# The promises do not depend on these rules, now that a renewal is a rename too. The rules
# stay in the code for other reasons. Counting trust from before the call is right for every
# kind of lease, and the proof by the own target prevents a lease from idling until its end.
NOT_NEEDED = (
    (Mutation.LATE_RENEWAL_COUNTS,),
    (Mutation.RENEW_IN_PLACE,),
    (Mutation.SETTLE_LATE,),
    (Mutation.NO_TARGET_PROOF,),
    (Mutation.LATE_RENEWAL_COUNTS, Mutation.SETTLE_LATE, Mutation.NO_TARGET_PROOF),
)


def name_of(mutations: tuple[Mutation, ...]) -> str:
    return "+".join(mutation.name.lower() for mutation in mutations)


@pytest.mark.parametrize(
    ("scope", "at_least"),
    [(TWO, 30_000), (THREE, 50_000), (TWO_HOSTS, 50_000), (THREE_ON_TWO_HOSTS, 150_000)],
)
def test_no_schedule_breaks_a_promise(scope: Scope, at_least: int) -> None:
    exploration = explore(scope)
    assert exploration.finding is None
    assert exploration.states >= at_least  # a model that makes no progress proves nothing


@pytest.mark.parametrize("mutations", NEEDED, ids=name_of)
def test_a_promise_breaks_without(mutations: tuple[Mutation, ...]) -> None:
    finding = explore(TWO, *mutations).finding
    assert finding is not None
    assert finding.promise == NEEDED[mutations]


@pytest.mark.parametrize("mutations", NEEDED_BETWEEN_HOSTS, ids=name_of)
def test_between_hosts_a_promise_breaks_without(mutations: tuple[Mutation, ...]) -> None:
    finding = explore(TWO_HOSTS, *mutations).finding
    assert finding is not None
    assert finding.promise == NEEDED_BETWEEN_HOSTS[mutations]


@pytest.mark.parametrize("mutations", NOT_NEEDED, ids=name_of)
def test_no_promise_rests_on(mutations: tuple[Mutation, ...]) -> None:
    assert explore(SMALL, *mutations).finding is None


def test_the_shortest_path_to_a_broken_promise_is_reported_step_by_step() -> None:
    finding = explore(TWO, Mutation.TAKE_OVER_UNJUDGED).finding
    assert finding is not None
    for before, after in zip(finding.path, finding.path[1:], strict=False):
        changed = [a != b for a, b in zip(before.workers, after.workers, strict=True)]
        assert sum(changed) + (after.now - before.now) <= 1
