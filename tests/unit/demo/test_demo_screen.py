"""The screen of the demo on a terminal."""

import io
from pathlib import Path

import pytest

from holdfast.demo.act import DemoSizes, QueueKind
from holdfast.demo.queue_act import QueueAct
from holdfast.demo.screen import DemoScreen


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_line_that_is_longer_than_the_terminal_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "60", "LINES": "60", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    words = [f"word{number}" for number in range(20)]
    terminal = Terminal()
    screen = DemoScreen(terminal, "a title")
    act = QueueAct(tmp_path, screen, DemoSizes(), QueueKind.FILE)
    with act.resources, screen:
        screen.report(" ".join(words))
        screen.draw(act)
    shown = terminal.getvalue()
    assert [word for word in words if word in shown] == words
    assert "…" not in shown
