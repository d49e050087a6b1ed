"""Opening a queue imports only what that queue needs."""

import subprocess
import sys
from pathlib import Path


def test_a_queue_is_opened_without_conversations_exports_and_doctor(tmp_path: Path) -> None:
    script = (
        "import sys; from holdfast.queues.opening import open_queue\n"
        f"open_queue({str(tmp_path / 'acme/q')!r}, env={{}}).close()\n"
        "print([name for name in sys.modules if name.startswith(('holdfast.chat', "
        "'holdfast.doctor', 'holdfast.exports', 'asyncio', 'boto'))])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ran.stdout == b"[]\n"
