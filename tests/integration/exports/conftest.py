"""A server and a target for exports, for the tests in this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from export_place import ExportPlace

from support.http_server import LoopbackServer


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ExportPlace]:
    with LoopbackServer() as server:
        yield ExportPlace(server, tmp_path / "target")
