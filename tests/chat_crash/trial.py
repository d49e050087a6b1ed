"""One place, the blows that fall there, and the judgement."""

import signal
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from chat_crash import books
from chat_crash.doom import told
from chat_crash.life import AWAY_SECONDS, STEP_SECONDS, Life, Place, in_doubt
from chat_crash.struck import Act, Struck, copied, doomed, owed

# The longest wait and the grace, and a moment: windows of the dead would live for longer.
SWEPT_SECONDS = 30.0 + 60.0 + 2 * STEP_SECONDS + 10.0


class Trial:
    """A failure says after which calls the blows fell."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._told: list[str] = []
        self._life: Life | None = None
        self._struck: list[Struck] = []
        self._doubts = 0  # times that somebody was struck with a part on its way
        self._must_park = False
        self._more_asked = 0  # times that the writer may have been asked once more
        self._owed: set[str] = set()  # taken, or stored: no webhook need come again

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
        self._rest()
        self.place.store.close()
        if error is not None:
            error.add_note("; then ".join(self._told))

    def copy(self, folder: Path) -> "Trial":
        """What became of this place so far, elsewhere."""
        other = Trial(copied(self.place, folder))
        other._told, other._owed = list(self._told), set(self._owed)
        other._doubts, other._more_asked = self._doubts, self._more_asked
        return other

    # -- blows

    def kill(self, act: Act, calls: list[str], after: int, away: float = 0.0) -> None:
        """`calls`: what it does when nothing strikes it; it dies after so many of them."""
        self._told.append(told(calls, after))
        assert self._strike(act, after, signal.SIGKILL, away).killed, "it got away"
        assert self.place.last_calls() == calls[:after], "it went another way"
        self._more_asked += not self.place.scene.threads and unheard(calls[:after])

    def freeze(self, act: Act, calls: list[str], after: int, away: float = 0.0) -> Struck:
        self._told.append(told(calls, after))
        self._more_asked += 1  # it may be about to
        struck = self._strike(act, after, signal.SIGSTOP, away)
        assert struck.frozen, "it got away"
        assert self.place.last_calls() == calls[:after], "it went another way"
        return struck

    def _strike(self, act: Act, after: int, by: signal.Signals, away: float) -> Struck:
        self._rest()
        struck = Struck(self.place, act, after, by, away)
        self._struck.append(struck)
        self._owed |= owed(self.place)
        self._must_park = bool(list(self.place.store.parked())) or in_doubt(self.place)
        self._doubts += books.on_its_way(self.place)
        return struck

    # -- who comes then

    def recover(self, *, sweep: bool = False) -> None:
        """Somebody else, a while later, until all is quiet."""
        life = self._other()
        began = life.clock.time()
        life.until_quiet(sweep=sweep)
        assert not sweep or life.clock.time() - began < SWEPT_SECONDS, "swept too late"

    def deliver_again(self, sids: Iterable[str]) -> None:
        self._other().stage(sids)

    def _other(self) -> Life:
        if self._life is None:
            at = self.place.now() + AWAY_SECONDS
            self._life = Life(self.place, at, doomed(self.place))
        else:
            self._life.clock.advance(AWAY_SECONDS)
        return self._life

    def _rest(self) -> None:
        if self._life is not None:
            self._life.close()
            self._life = None

    # -- the judgement

    def judge(self) -> None:
        everyone = sorted(self._owed | owed(self.place))
        found = self._check(everyone)
        assert bool(found.parked) == self._must_park, (
            "it was not in doubt, and is parked"
            if found.parked
            else "in doubt, and was not parked"
        )
        self.deliver_again([*everyone, "epilogue"])
        self.recover()
        after = self._check([*everyone, "epilogue"])
        assert after.answered()["epilogue"] == 1, "nobody answers any more"
        assert after.parked == found.parked

    def _check(self, sids: Iterable[str]) -> books.Books:
        at_least_once = self.place.scene.in_doubt == "at_least_once"
        found = books.read(self.place)
        found.check(sids, at_most=1 + self._doubts * at_least_once, asked=1 + self._more_asked)
        return found


def unheard(calls: list[str]) -> bool:
    """Struck in the one moment when a reply is known and not written down."""
    return calls[-1:] == ["writer.write"]
