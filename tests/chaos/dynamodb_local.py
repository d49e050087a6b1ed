"""DynamoDB Local: Amazon's own server, for Java."""

import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from chaos.walled import Walled, walled

_JAR = Path(sys.prefix) / "dynamodb-local" / "package" / "emulator" / "DynamoDBLocal.jar"
_PORT = 8000


def why_not() -> str:
    """Return why it cannot run here, or nothing."""
    if not shutil.which("java"):
        return "DynamoDB Local needs Java, and there is no java on the PATH"
    if not _JAR.exists():
        return f"DynamoDB Local is not installed: `make chaos` puts it at {_JAR}"
    return ""


def serving() -> AbstractContextManager[Walled]:
    command = ["java", f"-Djava.library.path={_JAR.parent / 'DynamoDBLocal_lib'}"]
    command += ["-jar", str(_JAR), "-inMemory", "-disableTelemetry", "-port", str(_PORT)]
    # It writes a file about itself into the current folder.
    return walled(command, _PORT, stdin=subprocess.DEVNULL, cwd=_JAR.parent)
