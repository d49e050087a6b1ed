"""Amazon's own DynamoDB Local server, which needs Java."""

import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from emulators.isolated_server import IsolatedServer, run_isolated

_JAR = Path(sys.prefix) / "dynamodb-local" / "package" / "emulator" / "DynamoDBLocal.jar"
_PORT = 8000


def explain_unavailable() -> str:
    """Return why DynamoDB Local cannot run here, or an empty text."""
    if not shutil.which("java"):
        return "DynamoDB Local needs Java, and there is no java on the PATH"
    if not _JAR.exists():
        return f"DynamoDB Local is not installed: `make nightly` puts it at {_JAR}"
    return ""


def run_server() -> AbstractContextManager[IsolatedServer]:
    """Run the server until the block ends."""
    command = ["java", f"-Djava.library.path={_JAR.parent / 'DynamoDBLocal_lib'}"]
    command += ["-jar", str(_JAR), "-inMemory", "-disableTelemetry", "-port", str(_PORT)]
    # The server writes a file into the current folder.
    return run_isolated(command, _PORT, stdin=subprocess.DEVNULL, cwd=_JAR.parent)
