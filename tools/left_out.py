"""Print what `make nightly` leaves out on this machine, and why."""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from tools.other_pythons import find_python  # noqa: E402

from emulators import dynamodb_local, localstack_sqs  # noqa: E402

PYTHONS = ("3.11", "3.12", "3.13")


def list_reasons() -> list[str]:
    """Return a reason for each thing that is missing."""
    reasons = [dynamodb_local.explain_unavailable(), localstack_sqs.explain_unavailable()]
    reasons += [
        f"Python {version} was found neither on the path nor in pyenv"
        for version in PYTHONS
        if find_python(version) is None
    ]
    if not shutil.which("chromium"):
        reasons.append("There is no chromium for the tests of the web console")
    return [reason for reason in reasons if reason]


if __name__ == "__main__":
    for reason in list_reasons() or ["nothing"]:
        print(f"left out: {reason}")
