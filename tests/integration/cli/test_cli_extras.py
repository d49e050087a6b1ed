"""Every command without the package that it needs: one line that says what to install."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.cli.commands import Ran, prepend_path, real, require_one_line

PACKAGES = {
    "aws": ("boto3", "botocore"),
    "export": ("pycurl",),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry",),
    "web": ("starlette",),
}

_HIDE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""

AWS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_MAX_ATTEMPTS": "1",
}
CLOUD_CHAT = {"HOLDFAST_CHAT_STORE": "dynamodb:", **AWS}
SQS_CHAT = {
    **{f"HOLDFAST_CHAT_{channel}_QUEUE": "sqs:q" for channel in ("WHATSAPP", "SMS", "EMAIL")},
    **AWS,
}


def profiles(**profile: Any) -> dict[str, str]:
    whole = {
        "channel_config": {"provider": "outbox"},
        "ai_config": {"provider": "echo"},
        **profile,
    }
    return {"HOLDFAST_CHAT_PROFILES": json.dumps({"*": whole}), **AWS}


SECRET = profiles(
    ai_config={"provider": "openai", "model": "m", "ai_api_key_reference": "the-key"},
)

SEND = ("chat", "send", "hello")

# The extra, the command and its environment. Each needs the hidden package.
NEEDS: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
    ("aws", ("push", "sqs:q", "{}"), AWS),
    ("aws", ("work", "sqs:q", "tasks:handle"), AWS),
    ("aws", ("status", "sqs:q"), AWS),
    ("aws", ("doctor", "sqs:q"), AWS),
    ("aws", ("dead", "list", "sqs:q"), AWS),
    ("aws", ("dead", "redrive", "sqs:q", "--all"), AWS),
    ("aws", ("export", "list", "--jobs", "dynamodb:"), AWS),
    ("aws", ("export", "tables", "--jobs", "dynamodb:", "--create"), AWS),
    ("aws", ("export", "run", "files.txt", "--to", "s3://bucket/x"), AWS),
    ("aws", ("export", "serve", "sqs:q", "--to", "out"), AWS),
    ("aws", SEND, CLOUD_CHAT),
    ("aws", ("chat", "tables", "--create"), CLOUD_CHAT),
    ("aws", ("chat", "work", "--until-idle"), SQS_CHAT),
    ("export", ("export", "run", "files.txt", "--to", "out"), {}),
    ("export", ("demo", "--act", "export"), {}),
    ("metrics", ("work", "q", "tasks:handle", "--metrics-port", "0"), {}),
    ("web", ("web", "q", "--port", "0"), {}),
    ("otel", ("work", "q", "tasks:handle", "--until-empty"), {"HOLDFAST_OTEL": "links"}),
    ("otel", ("push", "q", "{}"), {"HOLDFAST_OTEL": "links"}),
]

# doctor continues, and the missing package is one of its results.
DOCTORS: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
    ("aws", ("export", "doctor", "--jobs", "dynamodb:"), AWS),
    ("aws", ("export", "doctor", "--to", "s3://bucket/x"), AWS),
    (
        "aws",
        (
            "export",
            "doctor",
            "--state-machine",
            "arn:aws:states:us-east-1:123456789012:stateMachine:m",
        ),
        AWS,
    ),
    ("aws", ("chat", "doctor"), CLOUD_CHAT),
    ("aws", ("chat", "doctor"), SQS_CHAT),
    ("aws", ("chat", "doctor"), SECRET),
    ("export", ("export", "doctor"), {}),
]

# Commands that need none of them.
LOCAL: list[tuple[str, ...]] = [
    ("push", "q", "{}"),
    ("work", "q", "tasks:handle", "--until-empty"),
    ("status", "q"),
    ("list", "q"),
    ("doctor", "q"),
    ("dead", "list", "q"),
    ("purge", "q", "--older-than", "1h"),
    SEND,
    ("chat", "work", "--until-idle"),
    ("chat", "show"),
    ("chat", "outbox"),
    ("chat", "parked"),
    ("chat", "sweep"),
    ("chat", "doctor"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text("def handle(message, ctx):\n    pass\n")
    (tmp_path / "files.txt").write_text("https://example.org/a\n")
    return tmp_path


def run_without(folder: Path, extras: list[str], words: tuple[str, ...], env: Any) -> Ran:
    hidden = [package for extra in extras for package in PACKAGES[extra]]
    (folder / "sitecustomize.py").write_text(_HIDE.format(hidden=hidden))
    return real(folder, *words, env={**env, "PYTHONPATH": prepend_path(folder)})


@pytest.mark.requirement("R001-049")
@pytest.mark.parametrize(
    ("extra", "words", "env"), NEEDS, ids=[" ".join(words) for _, words, _ in NEEDS]
)
def test_a_command_without_its_package_says_in_one_line_what_to_install(
    folder: Path, extra: str, words: tuple[str, ...], env: dict[str, str]
) -> None:
    ran = run_without(folder, [extra], words, env)
    assert ran.code == 2, ran.err
    assert f"pip install '.[{extra}]'" in require_one_line(ran)


@pytest.mark.parametrize(
    ("extra", "words", "env"), DOCTORS, ids=[" ".join(words) for _, words, _ in DOCTORS]
)
def test_doctor_finds_that_a_package_is_missing(
    folder: Path, extra: str, words: tuple[str, ...], env: dict[str, str]
) -> None:
    ran = run_without(folder, [extra], (*words, "--json"), env)
    assert (ran.code, ran.err) == (1, "")
    texts = [result["found"] + result["remedy"] for result in ran.json]
    assert any(f"pip install '.[{extra}]'" in text for text in texts), texts


def test_without_boto3_folders_still_work(folder: Path) -> None:
    ran = run_without(folder, ["aws"], ("push", "enrich", "{}"), {})
    assert ran.code == 0, ran.err


@pytest.mark.nightly
def test_local_use_needs_no_extra(folder: Path) -> None:
    for words in (
        LOCAL
    ):  # in one folder, in this order, because later commands use what earlier ones create
        ran = run_without(folder, list(PACKAGES), words, {})
        assert ran.code == 0, (words, ran.err)
