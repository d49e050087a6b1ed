"""docs/how-to/answer-customers.md matches the code: names, numbers, permissions."""

import json
import re
from pathlib import Path

from holdfast.chat.lambdas import RESERVE_SECONDS, max_batch_seconds
from holdfast.chat.model import ConversationPolicy
from holdfast.chat.settings import ChatSettings
from holdfast.settings import read_settings
from support.paths import ROOT

PAGE = (ROOT / "docs/how-to/answer-customers.md").read_text()
SETTINGS, PROFILES, _ = (
    json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)
)


def test_its_settings_and_profiles_are_such(tmp_path: Path) -> None:
    (tmp_path / "profiles.json").write_text(json.dumps(PROFILES))
    settings = read_settings(
        ChatSettings, SETTINGS | {"HOLDFAST_CHAT_PROFILES": str(tmp_path / "profiles.json")}
    )
    assert [address for address, _ in settings.profiles] == list(PROFILES)
    read = {name: getattr(settings, name) for name in type(settings).model_fields}
    named = {name.removeprefix("HOLDFAST_CHAT_").lower() for name in SETTINGS}
    assert named <= read.keys()


def test_its_handlers_are_there() -> None:
    from importlib import import_module

    named = set(re.findall(r"holdfast\.lambdas\.(\w+)\.handler", PAGE))
    assert named == {"staging", "messaging", "sweeping"}
    assert all(callable(import_module(f"holdfast.lambdas.{name}").handler) for name in named)


def test_its_timeouts_are_those_of_the_code() -> None:
    policy = ConversationPolicy()
    needed = max_batch_seconds(policy) + RESERVE_SECONDS
    assert f"({needed:.0f} by default)" in PAGE
    more = needed - policy.writer_seconds - policy.sender_seconds
    assert f"`HOLDFAST_CHAT_SENDER_SECONDS` + {more:.0f}" in PAGE
    [timeout] = re.findall(r"messaging\.handler\n    Timeout: (\d+)", PAGE)
    assert int(timeout) > needed
    visibility = f"six times the timeout of messaging: {6 * int(timeout)} with {timeout}"
    assert visibility in PAGE
