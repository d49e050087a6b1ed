"""Secrets by reference.

A missing secret is reported by its name, and a
secret that could not be fetched is retried (MS-22)."""

import json
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto import mock_aws

from holdfast.chat.errors import PermanentError, TransientError
from holdfast.chat.providers.secrets import SecretResolver
from holdfast.errors import ConfigError
from holdfast.testing.clock import ManualClock
from support.http_server import LoopbackServer, status

CANARY = "canary-7f3a"


def render_error(error: BaseException) -> str:
    """Return everything a log could show of an error, including its causes."""
    lines = traceback.format_exception(error)
    return "".join([repr(error), str(error), *lines])


# -- the environment and files


def test_a_secret_of_the_environment_is_an_object_or_one_text() -> None:
    values = {"account_sid": "AC1", "auth_token": "t"}
    secrets = SecretResolver({"TWILIO": json.dumps(values), "KEY": " sk-1\n"})
    assert secrets.get("env:TWILIO").reveal("auth_token") == "t"
    assert secrets.get("env:KEY").reveal("api_key") == "sk-1"
    assert secrets.get("env:KEY").reveal("password") == "sk-1"


def test_the_environment_is_read_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = SecretResolver()
    monkeypatch.setenv("HOLDFAST_TEST_KEY", "old")
    assert secrets.get("env:HOLDFAST_TEST_KEY").reveal("api_key") == "old"
    monkeypatch.setenv("HOLDFAST_TEST_KEY", "new")
    secrets.forget("env:HOLDFAST_TEST_KEY")
    assert secrets.get("env:HOLDFAST_TEST_KEY").reveal("api_key") == "new"


def test_a_secret_of_a_file_may_be_behind_a_link(tmp_path: Path) -> None:
    """Kubernetes mounts secrets like this."""
    (tmp_path / "data").write_text('{"api_key": "sk-ä"}')
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert SecretResolver({}).get(f"file:{tmp_path}/link").reveal("api_key") == "sk-ä"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        (f'{{"api_key": "{CANARY}"', "not valid JSON"),
        (f'{{"api_key": ["{CANARY}"]}}', "'api_key' is not a text"),
        ('{"api_key": 5}', "'api_key' is not a text"),
        ('{"a":' * 100_000, "not valid JSON"),
    ],
)
def test_an_invalid_secret_is_named_and_not_shown(text: str, words: str) -> None:
    with pytest.raises(PermanentError, match=words) as caught:
        SecretResolver({"KEY": text}).get("env:KEY")
    assert "env:KEY" in str(caught.value)
    assert CANARY not in render_error(caught.value)


@pytest.mark.requirement("R002-050")
def test_a_missing_value_is_reported_by_its_name() -> None:
    secret = SecretResolver({"KEY": '{"api_key": ""}'}).get("env:KEY")
    for name in ("api_key", "password"):
        with pytest.raises(PermanentError, match=f"'env:KEY' has no '{name}'"):
            secret.reveal(name)


def bytes_of_no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("make", [Path.mkdir, bytes_of_no_text, lambda path: None])
def test_a_file_that_holds_no_secret_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    make(tmp_path / "secret")
    with pytest.raises(PermanentError, match="file:"):
        SecretResolver({}).get(f"file:{tmp_path}/secret")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Opening a pipe without a writer would wait forever."""
    os.mkfifo(tmp_path / "pipe")
    refused = []

    def read() -> None:
        with pytest.raises(PermanentError, match="not a file"):
            SecretResolver({}).get(f"file:{tmp_path}/pipe")
        refused.append(True)

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(30)
    assert refused


@pytest.mark.requirement("R002-050")
@pytest.mark.parametrize("reference", ["env:NONE", "env:", "file:", "file:\x00"])
def test_a_reference_that_leads_nowhere_is_permanent(reference: str) -> None:
    with pytest.raises(PermanentError):
        SecretResolver({}).get(reference)


# -- Secrets Manager


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("secretsmanager", "eu-central-1")


@pytest.mark.requirement("R002-048")
def test_a_secret_is_fetched_once_until_it_is_old_or_forgotten(manager: Any) -> None:
    clock = ManualClock()
    manager.create_secret(Name="twilio", SecretString='{"auth_token": "one"}')
    secrets = SecretResolver({}, lambda: manager, cache_seconds=300, clock=clock)

    def token_after(value: str) -> str:
        manager.put_secret_value(SecretId="twilio", SecretString=value)
        return secrets.get("twilio").reveal("auth_token")

    assert secrets.get("twilio").reveal("auth_token") == "one"
    clock.advance(299)
    assert token_after('{"auth_token": "two"}') == "one"
    clock.advance(2)
    assert token_after('{"auth_token": "three"}') == "three"
    assert token_after('{"auth_token": "four"}') == "three"
    secrets.forget("twilio")
    assert secrets.get("twilio").reveal("auth_token") == "four"


def test_a_refusal_is_not_remembered(manager: Any) -> None:
    secrets = SecretResolver({}, lambda: manager)
    with pytest.raises(PermanentError, match=r"'late'.* no secret has that name"):
        secrets.get("late")
    manager.create_secret(Name="late", SecretString="sk-1")
    assert secrets.get("late").reveal("api_key") == "sk-1"


def test_a_secret_that_is_deleted_or_binary_is_permanent(manager: Any) -> None:
    manager.create_secret(Name="gone", SecretString="x")
    manager.delete_secret(SecretId="gone")
    manager.create_secret(Name="binary", SecretBinary=CANARY.encode())
    secrets = SecretResolver({}, lambda: manager)
    with pytest.raises(PermanentError, match="being deleted"):
        secrets.get("gone")
    with pytest.raises(PermanentError, match="binary") as caught:
        secrets.get("binary")
    assert CANARY not in render_error(caught.value)


@pytest.mark.requirement("R002-051")
@pytest.mark.parametrize(
    ("code", "number", "kind", "words"),
    [
        ("AccessDeniedException", 400, PermanentError, "secretsmanager:GetSecretValue"),
        ("DecryptionFailure", 400, PermanentError, "kms:Decrypt"),
        ("InvalidParameterException", 400, PermanentError, "name is not valid"),
        ("ThrottlingException", 400, TransientError, "Throttling"),
        ("InternalServiceError", 500, TransientError, "InternalServiceError"),
        ("ExpiredTokenException", 400, TransientError, "ExpiredToken"),
    ],
)
def test_each_error_of_secrets_manager_is_translated(
    own_manager: Any, code: str, number: int, kind: type[Exception], words: str
) -> None:
    """Moto cannot produce these errors."""
    client, server = own_manager
    body = json.dumps({"__type": code, "message": "no: / the words of the manager"}).encode()
    server.on("/", status(f"{number} Error", body=body))
    with pytest.raises(kind, match=words) as caught:
        SecretResolver({}, lambda: client).get("twilio")
    assert "'twilio'" in str(caught.value)
    assert "no: /" not in render_error(caught.value)  # how the manager's own text begins


@pytest.fixture(scope="module")
def own_manager() -> Iterator[tuple[Any, LoopbackServer]]:
    """Return a client, and its server, which does as it is told."""
    with LoopbackServer() as server:
        client = boto3.client(
            "secretsmanager",
            "eu-central-1",
            endpoint_url=server.url(""),
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            config=Config(retries={"total_max_attempts": 1}),
        )
        yield client, server


def test_a_manager_that_does_not_answer_is_passing(own_manager: Any) -> None:
    client, server = own_manager
    server.on("/", lambda ask, wire: wire.close())
    with pytest.raises(TransientError, match="ConnectionClosedError"):
        SecretResolver({}, lambda: client).get("twilio")


def test_a_server_that_responds_for_the_manager_is_an_outage(own_manager: Any) -> None:
    """A retry helps, so the messages of customers must not be parked."""
    client, server = own_manager
    server.on("/", status("200 OK", body=b'{"ok": true}'))
    with pytest.raises(TransientError, match="'twilio'"):
        SecretResolver({}, lambda: client).get("twilio")


# -- both kinds


def test_the_reference_says_where_a_secret_is(manager: Any) -> None:
    made = []

    def make_client() -> Any:
        made.append(1)
        return manager

    manager.create_secret(Name="prod/key", SecretString="of amazon")
    secrets = SecretResolver({"KEY": "of the environment"}, make_client)
    assert secrets.get("env:KEY").reveal("api_key") == "of the environment"
    assert made == []
    for _ in range(2):
        assert secrets.get("prod/key").reveal("api_key") == "of amazon"
    assert made == [1]


def test_without_boto3_the_remedy_is_named() -> None:
    def make_client() -> Any:
        raise ConfigError("Amazon's services need boto3: pip install '.[aws]'")

    secrets = SecretResolver({}, make_client)
    with pytest.raises(PermanentError, match=r"\.\[aws\].*env:NAME or file:PATH"):
        secrets.get("prod/key")


@pytest.mark.requirement("R002-050")
@pytest.mark.parametrize(
    ("reference", "words"), [("", "no secret"), ("sk-1", "contains a key")]
)
def test_a_config_that_names_no_secret_is_permanent(reference: str, words: str) -> None:
    """A key in place of a name is not shown, either."""
    with pytest.raises(PermanentError, match=words) as caught:
        SecretResolver({}).get(reference)
    assert "sk-1" not in str(caught.value)
