"""Region, endpoint and credentials of a lean client are those that boto3 chooses.

boto3 is asked by making a client and looking at the request that it would send.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSResponse
from botocore.endpoint_provider import EndpointProvider
from botocore.exceptions import PartialCredentialsError
from botocore.loaders import create_loader
from botocore.session import Session

from holdfast.aws import clients
from holdfast.aws.json_client.client import JsonClient
from holdfast.aws.json_client.settings import (
    SERVICES,
    ask_botocore,
    can_be_called,
    read_environment,
)
from holdfast.errors import ConfigError

CALLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sqs": ("list_queues", {}),
    "dynamodb": ("list_tables", {}),
    "stepfunctions": ("list_activities", {}),
}
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
CONFIG = """
[default]
region = eu-north-1
[profile fips]
region = us-west-2
use_fips_endpoint = true
[profile dual]
use_dualstack_endpoint = true
[profile local]
endpoint_url = http://127.0.0.1:4566
[profile services]
services = mine
[services mine]
sqs =
  endpoint_url = http://127.0.0.1:1111
dynamodb =
  endpoint_url = http://127.0.0.1:2222
sfn =
  endpoint_url = http://127.0.0.1:3333
"""


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment in which only the tests set what AWS's SDKs read."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for sessions in ("_sessions", "_boto3_sessions"):
        monkeypatch.setattr(clients, sessions, {})
    return monkeypatch


_loader = create_loader()  # shared, because reading the models takes most of the time


def make_session() -> Session:
    """Make a session of botocore that has not read the environment yet."""
    session = Session()
    session.register_component("data_loader", _loader)
    return session


class Asked:
    """The address and the signature of a request that boto3 would send."""

    def __init__(self, service: str, region: str | None, endpoint: str | None) -> None:
        client = make_session().create_client(
            service, region_name=region, endpoint_url=endpoint
        )
        client.meta.events.register("before-send", self._note)
        operation, arguments = CALLS[service]
        getattr(client, operation)(**arguments)

    def _note(self, request: Any, **_: Any) -> AWSResponse:
        parts = urlsplit(request.url)
        self.endpoint = f"{parts.scheme}://{parts.netloc}"
        self.authorization = request.headers["Authorization"].decode()
        return AWSResponse(request.url, 200, {}, _Body())


class _Body:
    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield b"{}"


def check_equal(service: str, region: str | None = None, endpoint: str | None = None) -> None:
    """Fail unless a lean client calls what boto3 calls, with a signature of the same scope."""
    client = clients.make_retrying_client(service, region_name=region, endpoint_url=endpoint)
    assert isinstance(client, JsonClient)
    asked = Asked(service, region, endpoint)
    assert client.meta.endpoint_url.rstrip("/") == asked.endpoint
    signed = client._signer.sign({}, b"", client._credentials.get_frozen_credentials(), 0.0)
    scope, asked_scope = (
        text.partition("Credential=")[2].partition(",")[0].split("/")
        for text in (signed["authorization"], asked.authorization)
    )
    del scope[1], asked_scope[1]  # the day
    assert scope == asked_scope


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("region", ["us-east-1", "eu-central-2", "cn-north-1", "us-gov-west-1"])
def test_every_common_partition_has_its_host(
    environ: pytest.MonkeyPatch, service: str, region: str
) -> None:
    environ.setenv("AWS_DEFAULT_REGION", region)
    check_equal(service)


@pytest.mark.parametrize("service", SERVICES)
def test_the_host_is_boto3s_in_every_region_that_is_not_left_to_boto3(
    environ: pytest.MonkeyPatch, service: str
) -> None:
    """Otherwise the pattern of the regions is too wide."""
    session, known = make_session(), Counter[str]()
    loader = session.get_component("data_loader")
    rules = loader.load_service_model(service, "endpoint-rule-set-1")
    provider = EndpointProvider(rules, loader.load_data("partitions"))
    for partition in session.get_available_partitions():
        for region in session.get_available_regions(service, partition):
            settings = read_environment(service, region, None, KEYS)
            asked = ask_botocore(session, service, region, None)
            if settings is None:
                assert asked is None
                continue
            assert asked is not None
            assert (settings.region, settings.endpoint) == (asked.region, asked.endpoint)
            resolved = provider.resolve_endpoint(
                Region=region, UseFIPS=False, UseDualStack=False
            )
            assert settings.endpoint == resolved.url
            known[partition] += 1
    assert known.keys() == {"aws", "aws-cn", "aws-us-gov"}
    assert known["aws"] > 20


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    "variables",
    [
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:4566"},
        {"AWS_ENDPOINT_URL": "https://aws.internal/"},
        {"AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:1", "AWS_ENDPOINT_URL": "http://[::1]:80"},
        {"AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:1"},
        {"AWS_ENDPOINT_URL_SFN": "http://127.0.0.1:1"},
        {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true", "AWS_ENDPOINT_URL": "http://x:1"},
        {"AWS_SESSION_TOKEN": "token"},
        {"AWS_SECURITY_TOKEN": "token"},
    ],
)
def test_the_variables_of_botocore_count(
    environ: pytest.MonkeyPatch, service: str, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        environ.setenv(name, value)
    check_equal(service, "us-east-1")


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("profile", ["default", "local", "services"])
def test_the_profile_counts(
    environ: pytest.MonkeyPatch, tmp_path: Path, service: str, profile: str
) -> None:
    (tmp_path / "config").write_text(CONFIG)
    environ.setenv("AWS_PROFILE", profile)
    region = None if profile == "default" else "us-east-1"
    check_equal(service, region)


@pytest.mark.parametrize("name", ["config", "credentials"])
def test_the_default_profile_counts_without_being_named(
    environ: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("[default]\nendpoint_url = http://127.0.0.1:4566\n")
    environ.setenv("AWS_REGION", "us-east-1")
    check_equal("sqs", "us-east-1")


def test_the_host_of_a_queue_counts_unless_an_endpoint_is_configured(
    environ: pytest.MonkeyPatch,
) -> None:
    environ.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    check_equal("sqs", endpoint="http://queues.internal:9324")
    environ.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    client = clients.make_retrying_client("sqs", endpoint_url="http://queues.internal:9324")
    assert client.meta.endpoint_url == "http://127.0.0.1:1"


def test_credentials_come_from_botocore_if_the_environment_has_none(
    environ: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in KEYS:
        environ.delenv(name)
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = from-file\naws_secret_access_key = s\nregion = eu-west-3\n"
    )
    environ.setenv("AWS_PROFILE", "work")
    check_equal("sqs")


def test_half_of_the_credentials_are_refused_as_boto3_does(
    environ: pytest.MonkeyPatch,
) -> None:
    environ.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(PartialCredentialsError, match="AWS_SECRET_ACCESS_KEY"):
        make_session().create_client("sqs", region_name="eu-west-1")
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY"):
        clients.make_retrying_client("sqs", region_name="eu-west-1")


# -- what only boto3 can do


@pytest.mark.parametrize(
    "variables",
    [
        {"AWS_CSM_ENABLED": "true"},
        {"AWS_USE_FIPS_ENDPOINT": "true"},
        {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
        {"AWS_PROFILE": "fips"},
        {"AWS_PROFILE": "dual"},
        {"AWS_DEFAULT_REGION": "us-iso-east-1"},
        {"AWS_DEFAULT_REGION": "eusc-de-east-1"},
        {"AWS_ENDPOINT_DISCOVERY_ENABLED": "true"},
        {"AWS_ACCOUNT_ID_ENDPOINT_MODE": "required"},
        {"AWS_AUTH_SCHEME_PREFERENCE": "sigv4a"},
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:4566/with/a/path"},
        {"HTTPS_PROXY": "http://proxy.internal:3128"},
        {"AWS_DEFAULT_REGION": "fips-us-east-1"},
    ],
)
def test_an_unusual_setting_is_left_to_boto3(
    environ: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str]
) -> None:
    (tmp_path / "config").write_text(CONFIG)
    environ.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert isinstance(clients.make_retrying_client("dynamodb"), JsonClient)
    for name, value in variables.items():
        environ.setenv(name, value)
    assert not isinstance(clients.make_retrying_client("dynamodb"), JsonClient)


@pytest.mark.parametrize(
    ("variables", "endpoint", "is_called"),
    [
        ({}, "https://sqs.example", True),
        ({"HTTPS_PROXY": "http://p:1"}, "https://sqs.example", False),
        ({"https_proxy": "p:1"}, "https://sqs.example", False),
        ({"HTTP_PROXY": "http://p:1"}, "https://sqs.example", True),
        ({"HTTP_PROXY": "http://p:1"}, "http://sqs.example:80", False),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".example"}, "https://sqs.example", True),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a,127.0.0.1"}, "https://127.0.0.1:2", True),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, "https://sqs.example", True),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "b"}, "https://a", False),
    ],
)
def test_a_proxy_of_the_environment_is_left_to_boto3(
    environ: pytest.MonkeyPatch, variables: dict[str, str], endpoint: str, is_called: bool
) -> None:
    for name, value in variables.items():
        environ.setenv(name, value)
    assert can_be_called(endpoint) is is_called
