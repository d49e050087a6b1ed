"""Simulations of conversations under every kind of fault, decided by seeds.

3 conversations, 2 stagers, 3 processors, a sweeper; the real Stager, BatchProcessor and
Sweeper. At every call of a port another actor may continue, time may pass, a process may die,
or a call may be lost. After each call the promises are checked. When the faults end, all work
must end, too. HOLDFAST_CHAT_SEEDS is the number of simulations in each weather.

R002: I-MS-1…7; MS-01…09, 13, 14, 20, 21. T5.
"""

import os

import pytest

from support.chat.simulation.checked_store import Violation
from support.chat.simulation.fault_rates import STORM, WEATHERS
from support.chat.simulation.mutants import MUTANTS, Mutant
from support.chat.simulation.runs import simulate

SEEDS = int(os.environ.get("HOLDFAST_CHAT_SEEDS", "25"))
SEEDS_FOR_A_MUTANT = 80


@pytest.mark.parametrize("name", WEATHERS)
def test_each_message_is_answered_once_or_parked_whatever_the_weather(name: str) -> None:
    turns = sum(simulate(WEATHERS[name], seed).witness.turns for seed in range(SEEDS))
    assert turns > SEEDS  # otherwise the test would prove nothing


def test_a_seed_tells_the_same_story_every_time() -> None:
    first, second = simulate(STORM, 7), simulate(STORM, 7)
    assert len(first.story) > 50
    assert [line[:3] for line in first.story] == [line[:3] for line in second.story]


@pytest.mark.parametrize("element", MUTANTS)
def test_each_element_of_the_protocol_is_needed(element: str) -> None:
    mutant = MUTANTS[element]
    for seed in range(SEEDS_FOR_A_MUTANT):
        if (broken := find_violation(mutant, seed)).startswith(mutant.breaks):
            print(f"seed {seed}: {broken}")
            return
    pytest.fail(f"not detected in {SEEDS_FOR_A_MUTANT} simulations")


def find_violation(mutant: Mutant, seed: int) -> str:
    """Return the violation of a simulation, or ''."""
    try:
        simulate(mutant.weather, seed, mutant.build)
    except Violation as violation:
        return str(violation)
    return ""
