"""`holdfast dead`: list, show, redrive and drop dead letters."""

import fcntl
import time

import pytest

from holdfast import AnyMessage, open_queue
from holdfast.queues.files import layout
from support.cli.commands import Cli, OnTerminal, require_one_line
from support.waiting import wait_until

SHOWN_AFTER_SECONDS = 0.6  # longer than the progress bar waits before it appears


@pytest.fixture(autouse=True)
def three_dead_letters(cli: Cli) -> None:
    with open_queue("enrich") as queue:
        queue.push_many(AnyMessage(id=f"d{n}", secret="canary") for n in range(3))
        for message in queue.poll(3):
            queue.dead_letter(
                message, f"{message.id} has no website", detail="Traceback: line 1\nline 2"
            )
        queue.push(AnyMessage(id="alive"))


def counts(cli: Cli, queue: str = "enrich") -> tuple[int, int]:
    stats = cli("status", queue, "--json").json
    return stats["ready"], stats["failed"]


def test_dead_letters_are_listed_with_reasons_and_without_bodies(cli: Cli) -> None:
    text = cli("dead", "list", "enrich").out
    assert "d1\t1\td1 has no website" in text
    assert "canary" not in text
    letters = cli("dead", "list", "enrich", "--json", "--limit=2").json
    assert [letter["state"] for letter in letters] == ["failed", "failed"]
    assert "body" not in letters[0]


def test_a_dead_letter_is_shown_with_its_history_and_last_traceback(cli: Cli) -> None:
    text = cli("dead", "show", "enrich", "d1").out
    assert "why         d1 has no website" in text
    assert "    Traceback: line 1\n    line 2" in text
    [letter] = cli("dead", "show", "enrich", "d1", "--json", "--body").json
    assert letter["past"][0]["outcome"] == "dead-lettered"
    assert letter["body"]["secret"] == "canary"


def test_a_pending_message_is_not_a_dead_letter(cli: Cli) -> None:
    ran = cli("dead", "show", "enrich", "alive")
    assert ran.code == 1
    assert "no dead letter" in require_one_line(ran)


def test_a_long_redrive_shows_a_progress_bar_on_a_terminal(cli: Cli) -> None:
    with open_queue("once?dedupe=true") as queue:
        queue.push_many(AnyMessage(id=f"d{n}") for n in range(3))
        for message in queue.poll(3):
            queue.dead_letter(message, "no use")
    [path] = cli.folder.rglob(f".turn-{layout.hash_id('d1')[:2]}")
    with path.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # the second dead letter must wait for it
        redriving = OnTerminal(cli.folder, "dead", "redrive", "once", "--all")
        wait_until(lambda: counts(cli, "once") == (1, 2))
        time.sleep(SHOWN_AFTER_SECONDS)
    shown = redriving.read()
    assert redriving.process.communicate(timeout=60)[0] == b"redriven 3\n"
    assert b"redriving" in shown
    assert b"/3" in shown


def test_a_dead_letter_is_redriven(cli: Cli) -> None:
    assert cli("dead", "redrive", "enrich", "d1").out == "redriven 1\n"
    assert counts(cli) == (2, 2)
    [message] = cli("explain", "enrich", "d1", "--json").json
    assert (message["state"], message["attempts"]) == ("pending", 0)


@pytest.mark.requirement("R001-007")
def test_all_dead_letters_are_redriven(cli: Cli) -> None:
    ran = cli("dead", "redrive", "enrich", "--all", "--json")
    assert ran.json == {"redriven": 3, "missing": []}
    assert counts(cli) == (4, 0)


def test_missing_ids_are_named_and_the_others_are_redriven(cli: Cli) -> None:
    ran = cli("dead", "redrive", "enrich", "d0", "missing", "alive", "--json")
    assert ran.code == 1
    assert ran.json == {"redriven": 1, "missing": ["missing", "alive"]}
    assert "no dead letter 'missing', 'alive'" in ran.err
    assert counts(cli) == (2, 2)


def test_dropping_without_a_terminal_needs_yes(cli: Cli) -> None:
    ran = cli("dead", "drop", "enrich", "d0")
    assert ran.code == 2
    assert "add --yes" in require_one_line(ran)
    assert counts(cli) == (1, 3)


def test_a_dead_letter_is_dropped(cli: Cli) -> None:
    assert cli("dead", "drop", "enrich", "d0", "--yes").out == "dropped 1\n"
    assert counts(cli) == (1, 2)
    assert cli("explain", "enrich", "d0").code == 1


def test_a_pending_message_cannot_be_dropped(cli: Cli) -> None:
    assert cli("dead", "drop", "enrich", "alive", "--yes").code == 1
    assert counts(cli) == (1, 3)


@pytest.mark.parametrize("words", [["redrive", "enrich"], ["drop", "enrich", "--yes"]])
def test_giving_no_ids_does_not_mean_all(cli: Cli, words: list[str]) -> None:
    ran = cli("dead", *words)
    assert ran.code == 2
    assert counts(cli) == (1, 3)


def test_two_words_are_a_queue_and_an_id_even_when_the_environment_names_a_queue(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a dead letter of the wrong queue could be dropped."""
    cli("push", "other", "{}")
    monkeypatch.setenv("HOLDFAST_QUEUE", "enrich")
    assert cli("dead", "drop", "other", "d0", "--yes").code == 1
    assert counts(cli) == (1, 3)
    assert cli("dead", "drop", "d0", "--yes").code == 0
    assert cli("dead", "redrive", "--all").out == "redriven 2\n"
