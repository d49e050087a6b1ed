"""The faults of a simulation and their probabilities, all decided by one seed.

Without a sweeper a run has only one kind of fault, because a processor that continues after it
lost its trigger, and then fails, leaves its messages to the sweeper. With a sweeper a run has
all kinds.
"""

from dataclasses import dataclass, replace
from random import Random


class Died(BaseException):
    """The process is dead, so none of its handlers and `finally` blocks has an effect."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The probabilities of faults for each call of a port, and the rules of the run.

    sweeper          a sweeper runs; without it, everything must be finished all the same
    hooks_return     a message whose stager failed or died is always delivered again
    strict_receipts  only the newest receipt of a trigger can settle it
    """

    leap: float = 0.06  # time passes
    long_leap: float = 0.0  # longer than any lease
    frozen: float = 0.0  # a process does not renew meanwhile
    kill_processor: float = 0.0
    kill_stager: float = 0.0
    kill_sweeper: float = 0.0
    drop: float = 0.0
    lose_reply: float = 0.0
    twice: float = 0.0  # a trigger is delivered to two consumers at once
    lose_trigger: float = 0.0  # an operator purges the queue
    hook_twice: float = 0.2  # a message is delivered again
    writer_fails: float = 0.0
    sender_fails: float = 0.0
    stopping: float = 0.0  # the worker is being stopped
    max_attempts: int = 1_000
    sweeper: bool = False
    hooks_return: bool = True
    strict_receipts: bool = True
    strangers: bool = False  # one conversation is unknown and is not created
    park_after_seconds: float = 3 * 86_400.0


FROZEN = Weather(leap=0.1, long_leap=0.3, frozen=0.5, twice=0.05, hook_twice=0.3)
ROUGH = Weather(drop=0.03, lose_reply=0.03, writer_fails=0.15, sender_fails=0.2, stopping=0.02)
PROCESSORS_DIE = replace(ROUGH, kill_processor=0.03)
STAGERS_DIE = Weather(long_leap=0.1, kill_stager=0.12)
STORM = replace(
    ROUGH,
    long_leap=0.15,
    frozen=0.4,
    twice=0.05,
    kill_processor=0.015,
    kill_stager=0.06,
    kill_sweeper=0.05,
    lose_trigger=0.03,
    max_attempts=5,
    sweeper=True,
    hooks_return=False,
    strict_receipts=False,
    strangers=True,
)
LATE = replace(STORM, park_after_seconds=100.0, long_leap=0.6, max_attempts=50, strangers=False)

WEATHERS = {
    "processes freeze": FROZEN,
    "calls are lost": ROUGH,
    "processors die": PROCESSORS_DIE,
    "stagers die": STAGERS_DIE,
    "storm": STORM,
    "parked when late": LATE,
}


class Fate:
    """The random decisions. If `calm` is set, no fault happens."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.random = Random(seed)
        self.weather = weather
        self.calm = False

    def strikes(self, chance: float) -> bool:
        return not self.calm and self.random.random() < chance

    def leap_seconds(self, lease_seconds: float) -> float:
        if self.random.random() < self.weather.long_leap:
            return lease_seconds * self.random.uniform(1.1, 3.0)
        return self.random.choice((0.1, 0.5, 2.0, 12.0))
