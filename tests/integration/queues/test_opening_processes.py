"""bootstrap: doctors that start processes, and the server of the metrics."""

import subprocess
import sys
from pathlib import Path

import pytest
from holdfast.doctor.queues import examine_queue

from holdfast.errors import ConfigError


def test_doctor_is_chosen_by_the_queues_url(tmp_path: Path) -> None:
    results = list(examine_queue(f"q?data_dir={tmp_path}", env={}))
    assert results[0].check == "queue"
    assert str(tmp_path) in results[0].found
    with pytest.raises(ConfigError, match="folders"):
        examine_queue("memory:q", env={})


def test_a_queue_is_opened_without_conversations_exports_and_doctor(tmp_path: Path) -> None:
    script = (
        "import sys; from holdfast.queues.opening import open_queue\n"
        f"open_queue({str(tmp_path / 'acme/q')!r}, env={{}}).close()\n"
        "print([name for name in sys.modules if name.startswith(('holdfast.chat', "
        "'holdfast.doctor', 'holdfast.exports', 'asyncio', 'boto'))])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ran.stdout == b"[]\n"
