"""What tests of many rooms share: the command line in a folder of its own."""

from pathlib import Path

import pytest

from support.cli.commands import Cli


@pytest.fixture
def cli(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    return Cli(tmp_path, capsys, monkeypatch)
