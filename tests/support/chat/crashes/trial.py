"""A place, the processes that are struck there, and the checks afterwards."""

import signal
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from support.chat.crashes.kill_point import describe_blow
from support.chat.crashes.signalled_process import (
    Act,
    Struck,
    copy_place,
    list_owed,
    make_doom,
)
from support.chat.crashes.totals import Books, is_being_sent, read_books
from support.chat.crashes.worker_process import (
    AWAY_SECONDS,
    STEP_SECONDS,
    Life,
    Place,
    must_park,
)

# The maximum wait, the grace and a margin; windows of dead processes would exist longer.
SWEPT_SECONDS = 30.0 + 60.0 + 2 * STEP_SECONDS + 10.0


class Trial:
    """A sequence of blows and their checks. A failure reports the calls before each blow."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._blows: list[str] = []
        self._life: Life | None = None
        self._struck: list[Struck] = []
        self._unclear = 0  # blows while a part was being sent
        self._must_park = False
        self._more_asked = 0  # how often the writer may have been asked again
        self._owed: set[str] = set()  # accepted or stored, so their webhooks are not repeated

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        for struck in self._struck:
            struck.end()
        self._stop_other()
        self.place.store.close()
        if error is not None:
            error.add_note("; then ".join(self._blows))

    def copy(self, folder: Path) -> "Trial":
        """Return a copy of this trial in another folder."""
        other = Trial(copy_place(self.place, folder))
        other._blows, other._owed = list(self._blows), set(self._owed)
        other._unclear, other._more_asked = self._unclear, self._more_asked
        return other

    # -- blows

    def kill(self, act: Act, calls: list[str], after: int, away: float = 0.0) -> None:
        """Kill a process after this many of its `calls`."""
        self._blows.append(describe_blow(calls, after))
        assert self._strike(act, after, signal.SIGKILL, away).killed, "it was not struck"
        assert self.place.read_last_calls() == calls[:after], "it made other calls"
        self._more_asked += not self.place.scene.threads and is_reply_lost(calls[:after])

    def freeze(self, act: Act, calls: list[str], after: int, away: float = 0.0) -> Struck:
        """Freeze a process after this many of its `calls`."""
        self._blows.append(describe_blow(calls, after))
        self._more_asked += 1  # it may be about to
        struck = self._strike(act, after, signal.SIGSTOP, away)
        assert struck.frozen, "it was not struck"
        assert self.place.read_last_calls() == calls[:after], "it made other calls"
        return struck

    def _strike(self, act: Act, after: int, by: signal.Signals, away: float) -> Struck:
        self._stop_other()
        struck = Struck(self.place, act, after, by, away)
        self._struck.append(struck)
        self._owed |= list_owed(self.place)
        self._must_park = bool(list(self.place.store.parked())) or must_park(self.place)
        self._unclear += is_being_sent(self.place)
        return struck

    # -- the next process

    def recover(self, *, sweep: bool = False) -> None:
        """Let another process work, a while later, until nothing is left to do."""
        life = self._start_other()
        began = life.clock.time()
        life.run_until_quiet(sweep=sweep)
        assert not sweep or life.clock.time() - began < SWEPT_SECONDS, "swept too late"

    def deliver_again(self, sids: Iterable[str]) -> None:
        """Stage messages again in another process."""
        self._start_other().stage(sids)

    def _start_other(self) -> Life:
        if self._life is None:
            at = self.place.now() + AWAY_SECONDS
            self._life = Life(self.place, at, make_doom(self.place))
        else:
            self._life.clock.advance(AWAY_SECONDS)
        return self._life

    def _stop_other(self) -> None:
        if self._life is not None:
            self._life.close()
            self._life = None

    # -- the checks

    def judge(self) -> None:
        """Check all promises, then once more after a further message."""
        all_sids = sorted(self._owed | list_owed(self.place))
        totals = self._check(all_sids)
        assert bool(totals.parked) == self._must_park, (
            "the send was not unclear, but the batch is parked"
            if totals.parked
            else "the send was unclear, but the batch is not parked"
        )
        self.deliver_again([*all_sids, "epilogue"])
        self.recover()
        after = self._check([*all_sids, "epilogue"])
        assert after.count_answered()["epilogue"] == 1, "new messages are not answered"
        assert after.parked == totals.parked

    def _check(self, sids: Iterable[str]) -> Books:
        at_least_once = self.place.scene.in_doubt == "at_least_once"
        totals = read_books(self.place)
        totals.check(
            sids, at_most=1 + self._unclear * at_least_once, asked=1 + self._more_asked
        )
        return totals


def is_reply_lost(calls: list[str]) -> bool:
    """Check whether the process was struck when a reply was known but not noted."""
    return calls[-1:] == ["writer.write"]
