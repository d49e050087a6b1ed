"""`holdfast chat work` as a real process: signals, logs, and a command that waits."""

import json
import signal
import socketserver
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from holdfast.chat.building import open_conversations
from holdfast.chat.model import ConversationKey
from support.cli.commands import clean_env, real, start
from support.waiting import WAIT_TIMEOUT_SECONDS

NUMBER = "+4930123456789"
MAIL = "ada@example.org"
CANARY = "body-canary"


class SlowPost(socketserver.ThreadingTCPServer):
    """A mail server that accepts a message only when its gate is open."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Talk)
        self.arrived, self.gate = Event(), Event()
        self.letters: list[bytes] = []


class _Talk(socketserver.StreamRequestHandler):
    server: SlowPost

    def handle(self) -> None:
        self._say("220 here")
        for line in self.rfile:
            verb = line[:4].upper().strip()
            if verb == b"DATA":
                self._take()
            elif verb == b"QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 fine")

    def _take(self) -> None:
        self._say("354 go on")
        letter = b"".join(iter(self.rfile.readline, b".\r\n"))
        self.server.arrived.set()
        self.server.gate.wait(WAIT_TIMEOUT_SECONDS)
        self.server.letters.append(letter)
        self._say("250 taken")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def post() -> Iterator[SlowPost]:
    with SlowPost() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.gate.set()
        server.shutdown()
        thread.join()


def settings(post: SlowPost) -> dict[str, str]:
    by_mail = {"provider": "smtp", "host": "127.0.0.1", "tls": "none"}
    by_mail["port"] = str(post.server_address[1])
    echo = {"provider": "echo"}
    profiles = {
        "shop@example.org": {"channel_config": by_mail, "ai_config": echo},
        "*": {"channel_config": {"provider": "outbox"}, "ai_config": echo},
    }
    return {
        "HOLDFAST_CHAT_WINDOW_SECONDS": "0.5",
        "HOLDFAST_CHAT_QUIET_SECONDS": "0",
        "HOLDFAST_CHAT_PROFILES": json.dumps(profiles),
    }


@pytest.mark.requirement("R002-082")
def test_sigterm_lets_a_running_reply_be_sent(tmp_path: Path, post: SlowPost) -> None:
    """The turn is finished, and nothing private is in the log."""
    env = settings(post)
    worker = start(tmp_path, "chat", "work", "--json", env=clean_env(**env))
    try:
        waited = real(tmp_path, "chat", "send", CANARY, "--from", NUMBER, "--wait", env=env)
        assert (waited.code, waited.out) == (0, f"You said: {CANARY}\n"), waited.err
        words = ("--from", MAIL, "--to", "shop@example.org", "--id", "mail")
        assert real(tmp_path, "chat", "send", CANARY, *words, env=env).code == 0
        assert post.arrived.wait(WAIT_TIMEOUT_SECONDS)
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        log = b""
        while b"draining: 1 running" not in log:
            line = worker.stderr.readline()
            assert line, log
            log += line
        post.gate.set()
        out, rest = worker.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0, rest
    assert json.loads(out)["completed"] == 2
    assert len(post.letters) == 1
    with open_conversations(tmp_path / "data/chat.db") as store:
        [asked, answered] = store.history(ConversationKey(MAIL, "mail"))
        assert (asked.body, answered.body) == (CANARY, f"You said: {CANARY}")
        assert list(store.parked()) == list(store.waiting()) == []
    for private in (CANARY, NUMBER, MAIL, "shop@example.org"):
        assert private.encode() not in log + rest
