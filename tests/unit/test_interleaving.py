"""The scheduler of the interleaving tests, see tests/support/interleaving.py."""

from threading import Thread

from support.interleaving import Baton, Scripted


def test_a_scripted_choice_of_an_actor_that_has_ended_is_left_out() -> None:
    """Otherwise a run whose actor took fewer steps than before would never end."""
    baton, steps = Baton(Scripted([0, 1, 1, 1, 1, 0])), []

    def act(name: str) -> None:
        baton.step()
        steps.append(name)

    run = Thread(
        target=baton.run, args=([lambda: act("first"), lambda: act("second")],), daemon=True
    )
    run.start()
    run.join(10)
    assert not run.is_alive()
    assert sorted(steps) == ["first", "second"]
