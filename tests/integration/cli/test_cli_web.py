"""`holdfast web` and `holdfast top` as processes."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import AnyMessage, open_queue
from holdfast.cli.live_view import LiveView
from holdfast.cli.web import WebOptions
from support.cli.commands import Cli, OnTerminal, require_one_line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--host=0.0.0.0",), "other machines could open the console at 0.0.0.0: add"),
        (("--hostname=console.example",), "could open the console at console.example"),
        (("--token-file=none",), "cannot read 'none'"),
    ],
)
def test_an_unsafe_console_is_refused(cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    ran = cli("web", "enrich", "--port=0", *arguments)
    assert ran.code == 2
    assert text in require_one_line(ran)


def test_a_mistyped_store_of_conversations_is_refused(cli: Cli) -> None:
    ran = cli("web", "enrich", "--port=0", "--chat=ftp:chat.db")
    assert ran.code == 2
    assert "no store for ftp: URLs" in require_one_line(ran)


@pytest.mark.parametrize("option", ["--chat=chat.db", "--jobs=jobs.db"])
def test_a_store_can_be_shown_without_a_queue(
    cli: Cli, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WEB_TOKEN", "short")
    unlistenable = cli("web", option, "--host=127.0.0.1")
    assert "must have 16 characters or more, it has 5" in require_one_line(unlistenable)
    assert "no queue is given" in require_one_line(cli("web"))


def test_a_port_in_use_is_reported(cli: Cli) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = cli("web", "enrich", f"--port={taken.getsockname()[1]}")
    assert ran.code == 2
    assert "choose another --port" in require_one_line(ran)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_console_although_a_connection_is_open(cli: Cli, number: int) -> None:
    import httpx

    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "web", "enrich", "--port=0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    address = re.findall(r"http://\S+", process.stderr.readline())[0]
    with httpx.Client() as browser:  # which keeps its connection
        assert browser.get(address).status_code == 200
        process.send_signal(number)
        process.wait(10)
    with process.stderr:
        assert process.stderr.read() in ("", "interrupted\n")


def test_top_needs_a_terminal(cli: Cli) -> None:
    ran = cli("top", "enrich")
    assert ran.code == 2
    assert "use `holdfast list --state leased`" in require_one_line(ran)


def test_a_terminal_is_redrawn_until_ctrl_c(cli: Cli) -> None:
    with open_queue("enrich") as queue:
        queue.push_many([AnyMessage(id="held\x9b2J"), AnyMessage(id="waiting")])
        queue.poll()
        words = ("top", "enrich", "missing", "--every=0.2")
        terminal = OnTerminal(cli.folder, *words, stream="stdout", LINES="50")
        terminal.read(*[b"held for"] * 3)
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.read().decode()
        assert terminal.process.wait(10) == 0
    assert "working" in shown
    assert "held\\x9b2J" in shown
    assert "━" in shown
    assert "there is no queue at" in shown


def test_a_first_view_that_is_not_drawn_gives_the_screen_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come meanwhile, because the first view of `top` may wait for a slow queue."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stdout for a terminal
    monkeypatch.setenv("TERM", "xterm")

    def fail(hint: str) -> str:
        raise ValueError("no view")

    with pytest.raises(ValueError, match="no view"), LiveView(fail, screen=True) as view:
        view.draw()
    shown = capsys.readouterr().out
    assert shown.count("\x1b[?1049h") == shown.count("\x1b[?1049l") == 1


@pytest.mark.parametrize(("mode", "is_reported"), [(0o644, True), (0o600, False)])
def test_a_token_file_that_others_can_read_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, is_reported: bool
) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-twenty-chars\n")
    file.chmod(mode)
    WebOptions(token_file=file).make_app(["enrich"])
    assert ("run chmod 600" in capsys.readouterr().err) is is_reported
