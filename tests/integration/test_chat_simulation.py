"""Whole lives of conversations under every kind of trouble, decided by seeds.

3 conversations, 2 stagers, 3 processors, a sweeper; the real Stager, BatchProcessor and
Sweeper. Every call of a port is a place where somebody else goes on, time passes, a process
dies, or a call is lost. After each call the promises are checked; when the trouble is over
everything must come to rest. HOLDFAST_CHAT_SEEDS: how many lives in each weather.

R002: I-MS-1…7; MS-01…09, 13, 14, 20, 21. T5.
"""

import os

import pytest

from conversations.lives import simulate
from conversations.mutants import MUTANTS, Mutant
from conversations.weather import STORM, WEATHERS
from conversations.witness import Violation

SEEDS = int(os.environ.get("HOLDFAST_CHAT_SEEDS", "25"))
SEEDS_FOR_A_MUTANT = 80


@pytest.mark.parametrize("name", WEATHERS)
def test_each_message_is_answered_once_or_parked_whatever_the_weather(name: str) -> None:
    turns = sum(simulate(WEATHERS[name], seed).witness.turns for seed in range(SEEDS))
    assert turns > SEEDS  # or nothing was proved


def test_a_seed_tells_the_same_story_every_time() -> None:
    first, second = simulate(STORM, 7), simulate(STORM, 7)
    assert len(first.story) > 50
    assert [line[:3] for line in first.story] == [line[:3] for line in second.story]


@pytest.mark.parametrize("element", MUTANTS)
def test_each_element_of_the_protocol_is_needed(element: str) -> None:
    mutant = MUTANTS[element]
    for seed in range(SEEDS_FOR_A_MUTANT):
        if (broken := violation_of(mutant, seed)).startswith(mutant.breaks):
            print(f"seed {seed}: {broken}")
            return
    pytest.fail(f"nobody noticed in {SEEDS_FOR_A_MUTANT} lives")


def violation_of(mutant: Mutant, seed: int) -> str:
    try:
        simulate(mutant.weather, seed, mutant.build)
    except Violation as violation:
        return str(violation)
    return ""
