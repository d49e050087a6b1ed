"""Every schedule of few actors with few preemptions, and one fault at every call.

The actors are a stager and two processors. At each call of a port another actor may continue,
and one of them dies there, or is frozen for a moment or for longer than every lease. There is
no sweeper, so all work must end without it.

R002: I-MS-1…6; MS-01…08, 14, 20. T1.
"""

from functools import partial

import pytest

from support.chat.simulation.checked_store import Violation
from support.chat.simulation.mutants import RARE_MUTANTS
from support.chat.simulation.single_faults import SCENES, play_every_schedule
from support.chat.simulation.world import Build
from support.interleaving import Policy, explore


@pytest.mark.parametrize("name", SCENES)
def test_no_schedule_with_a_crash_or_a_freeze_breaks_a_promise(name: str) -> None:
    assert play_every_schedule(SCENES[name], limit=60, limit_in_trouble=2) > 100


@pytest.mark.parametrize("element", RARE_MUTANTS)
def test_each_element_of_the_protocol_is_needed(element: str) -> None:
    mutant = RARE_MUTANTS[element]
    scene = SCENES[mutant.scene]

    def play(build: Build, policy: Policy) -> object:
        return scene.play(policy, mutant.trouble(), build)

    limits = {"preemptions": mutant.preemptions, "limit": mutant.limit}
    with pytest.raises(Violation, match=mutant.breaks) as caught:
        explore(partial(play, mutant.build), **limits)
    print(caught.value.__notes__)
