"""The commands of the pages, on stacks of infra/ that ministack has deployed."""

from typing import TYPE_CHECKING

import pytest
from stack.deployment import CODE_BUCKET, CODE_KEY, DeployedStack, upload_code
from typer.testing import CliRunner

from holdfast.cli.main import CommandTable, app
from support.paths import ROOT
from support.shell_commands import find_commands

if TYPE_CHECKING:
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

CODE = {"CodeBucket": CODE_BUCKET, "CodeKey": CODE_KEY}
NETWORK = {
    "Image": "1.dkr.ecr.us-east-1.amazonaws.com/shop:1",
    "Subnets": "s",
    "SecurityGroups": "g",
}
STACKS = {
    "queue": {"Consumer": "function", **CODE},
    "conversations": CODE,
    "exports": {"Bucket": CODE_BUCKET, **NETWORK},
}

COMMANDS = set(CommandTable(""))
# What changes something, or needs an id.
NOT_RUN = {"push", "redrive", "drop", "sweep"}
NOT_RUN |= {"--retry", "--sent", "--drop", "ID", "job-1"}


def list_inspecting_commands() -> list[tuple[str, ...]]:
    """Return the words of our commands in the pages that only inspect what is deployed."""
    texts = [(ROOT / "docs" / page).read_text() for page in ("how-to/deploy.md", "runbooks.md")]
    commands = {tuple(words[1:]) for text in texts for words in find_commands(text)}
    return sorted(
        words
        for words in commands
        if words[0] == "chat" or (words[0] in COMMANDS and "shop" in " ".join(words))
        if not NOT_RUN & set(words)
    )


@pytest.fixture(scope="module")
def _deployed(ministack: "Ministack") -> None:
    upload_code(ministack, {"tasks.py": ""})
    for template, parameters in STACKS.items():
        DeployedStack.deploy(ministack, template, template, Name="shop", **parameters)


@pytest.mark.usefixtures("_deployed")
@pytest.mark.parametrize("words", list_inspecting_commands(), ids=" ".join)
def test_a_command_of_the_pages_works_on_the_stacks(
    ministack: "Ministack",
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    for name, value in (ministack.env | {"HOLDFAST_CHAT_STORE": "dynamodb:shop-"}).items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
