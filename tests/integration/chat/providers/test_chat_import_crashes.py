"""A process that is killed while it imports what it sends with has surely sent nothing.

Real processes: Python tells an audit hook of each import, and the hook kills. What `make test`
runs of this is test_nothing_is_imported_between_the_note_and_the_send.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.chat.building import open_conversations
from holdfast.chat.model import ConversationKey
from support.cli.commands import clean_env, real
from support.vendors import VendorServer
from support.waiting import WAIT_TIMEOUT_SECONDS

KEY = ConversationKey("+491510000001", "chat")

KILLED = """
import os, signal, sys
fatal = sys.argv.pop(1)
def strike(event, args):
    if event == "import" and args[0] == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(strike)
from holdfast.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture
def vendors() -> Iterator[VendorServer]:
    with VendorServer() as server:
        yield server


def settings(vendors: VendorServer) -> dict[str, str]:
    channel = {
        "provider": "twilio",
        "base_url": vendors.twilio,
        "sender": "+4930000000",
        "credentials_id": "env:TWILIO",
    }
    profile = {"channel_config": channel, "ai_config": {"provider": "echo"}}
    return {
        "HOLDFAST_CHAT_PROFILES": json.dumps({"*": profile}),
        "HOLDFAST_CHAT_WINDOW_SECONDS": "0",
        "HOLDFAST_CHAT_QUIET_SECONDS": "0",
        "HOLDFAST_CHAT_MAX_WAIT_SECONDS": "0",
        "HOLDFAST_CHAT_LOCK_SECONDS": "5",
        "HOLDFAST_LEASE_SECONDS": "5",
        "TWILIO": json.dumps({"account_sid": "AC1", "auth_token": "token"}),
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    "fatal",
    [
        "twilio",
        pytest.param("twilio.base.exceptions", marks=pytest.mark.nightly),
        pytest.param("twilio.rest", marks=pytest.mark.nightly),
        pytest.param("twilio.http.http_client", marks=pytest.mark.nightly),
        "twilio.rest.api.v2010.account.message",
        pytest.param("requests", marks=pytest.mark.nightly),
    ],
)
def test_a_kill_while_the_senders_library_is_imported_leaves_no_unclear_send(
    fatal: str, tmp_path: Path, vendors: VendorServer
) -> None:
    env = settings(vendors)
    words = ("--from", KEY.primary_channel, "--id", KEY.conversation_id)
    assert real(tmp_path, "chat", "send", "hello", *words, env=env).code == 0
    work = ("chat", "work", "--channel", "sms", "--until-idle")
    struck = subprocess.run(
        [sys.executable, "-P", "-c", KILLED, fatal, *work],
        cwd=tmp_path,
        env=clean_env(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAIT_TIMEOUT_SECONDS,
        check=False,
    )
    assert struck.returncode == -signal.SIGKILL, struck.stderr
    assert vendors.books.messages == []
    after = real(tmp_path, *work, env=env)
    assert after.code == 0, after.err
    with open_conversations(tmp_path / "data/chat.db") as store:
        assert list(store.parked()) == []
        assert [message.body for message in store.history(KEY)] == ["hello", "You said: hello"]
    assert [message["body"] for message in vendors.books.messages] == ["You said: hello"]
