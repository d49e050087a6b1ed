"""bootstrap: doctors that start processes, and the server of the metrics."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.bootstrap import examine_queue, serve_metrics
from holdfast.core.errors import ConfigError


def test_doctor_is_chosen_by_the_queues_url(tmp_path: Path) -> None:
    results = list(examine_queue(f"q?data_dir={tmp_path}", env={}))
    assert results[0].check == "queue"
    assert str(tmp_path) in results[0].found
    with pytest.raises(ConfigError, match="folders"):
        examine_queue("memory:q", env={})


def test_metrics_are_served_until_closed() -> None:
    server = serve_metrics(0)
    assert server.port > 0
    server.close()


def test_a_queue_is_opened_without_conversations_exports_and_doctor(tmp_path: Path) -> None:
    script = (
        "import sys; from holdfast.bootstrap import open_queue\n"
        f"open_queue({str(tmp_path / 'acme/q')!r}, env={{}}).close()\n"
        "print([name for name in sys.modules if name.startswith(('holdfast.conversations', "
        "'holdfast.jobs', 'holdfast.doctor', 'holdfast.adapters.export', 'asyncio', 'boto'))])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ran.stdout == b"[]\n"
