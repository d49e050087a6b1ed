"""The region and endpoint of Amazon's services, set by the environment alone."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from support.sqs.server import Sqs

if TYPE_CHECKING:  # because pytest must load that module itself
    from support.ministack_server import Ministack

pytest_plugins = ["support.ministack_server"]

_CLIENTS = """
import json, sys
from holdfast.aws import clients
from holdfast.errors import HoldfastError

results = {}
for service in ("sqs", "dynamodb", "stepfunctions", "s3", "secretsmanager", "lambda"):
    for make in (clients.make_retrying_client, lambda s: clients.make_fail_fast_client(s, 60)):
        try:
            results[service] = make(service).meta.region_name
        except HoldfastError as error:
            results[service] = str(error)
print(json.dumps(results))
"""

_SERVICES = {"sqs", "dynamodb", "stepfunctions", "s3", "secretsmanager", "lambda"}


@pytest.fixture
def sqs(ministack: "Ministack") -> Sqs:
    return Sqs(ministack)


@pytest.fixture
def nowhere() -> str:
    """An address at which no server responds."""
    return "http://127.0.0.1:9"


def run(code: str, env: Mapping[str, str], *arguments: str) -> Any:
    """Run the code with only this environment, and return the JSON that it prints."""
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def remove_region(sqs: Sqs) -> dict[str, str]:
    return {name: value for name, value in sqs.env.items() if name != "AWS_DEFAULT_REGION"}


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-1"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
    ],
)
def test_both_variables_name_the_region_of_every_client(
    sqs: Sqs, regions: dict[str, str], expected: str
) -> None:
    results = run(_CLIENTS, {**remove_region(sqs), **regions})
    assert results == dict.fromkeys(_SERVICES, expected)


def test_the_region_of_the_profile_counts_where_no_variable_names_one(
    sqs: Sqs, tmp_path: Any
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile shop]\nregion = eu-north-1\n")
    profile = {"AWS_PROFILE": "shop", "AWS_CONFIG_FILE": str(config)}
    results = run(_CLIENTS, {**remove_region(sqs), **profile})
    assert results == dict.fromkeys(_SERVICES, "eu-north-1")


def test_without_a_region_the_error_names_both_variables(sqs: Sqs) -> None:
    results = run(_CLIENTS, remove_region(sqs))
    for service in _SERVICES - {"s3"}:  # S3 needs none
        assert f"no region for {service}" in results[service]
        assert "AWS_REGION or AWS_DEFAULT_REGION" in results[service]


_PUSH = """
import json, sys
from holdfast import AnyMessage, open_queue

queue = open_queue(sys.argv[1])
queue.push(AnyMessage(id="a"))
[message] = queue.poll(wait_seconds=10)
queue.ack(message)
print(json.dumps(message.id))
"""


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"])
def test_an_endpoint_that_is_set_wins_over_the_host_of_a_queues_url(
    sqs: Sqs, nowhere: str, variable: str
) -> None:
    path = sqs.url(sqs.new_queue()).partition("://")[2].partition("/")[2]
    env = {**sqs.env, variable: sqs.env["AWS_ENDPOINT_URL"]}
    assert run(_PUSH, env, f"{nowhere}/{path}") == "a"


def test_an_endpoint_of_the_profile_wins_as_well(sqs: Sqs, nowhere: str, tmp_path: Any) -> None:
    endpoint = sqs.env["AWS_ENDPOINT_URL"]
    config = tmp_path / "config"
    config.write_text(f"[default]\nendpoint_url = {endpoint}\n")
    env = {**sqs.env, "AWS_CONFIG_FILE": str(config)}
    del env["AWS_ENDPOINT_URL"]
    path = sqs.url(sqs.new_queue()).partition("://")[2].partition("/")[2]
    assert run(_PUSH, env, f"{nowhere}/{path}") == "a"


def test_the_endpoint_of_sqs_wins_over_that_of_all_services(sqs: Sqs, nowhere: str) -> None:
    env = {
        **sqs.env,
        "AWS_ENDPOINT_URL": nowhere,
        "AWS_ENDPOINT_URL_SQS": sqs.env["AWS_ENDPOINT_URL"],
    }
    assert run(_PUSH, env, f"sqs:{sqs.new_queue()}") == "a"


def test_without_a_configured_endpoint_a_queues_url_is_called_where_it_points(sqs: Sqs) -> None:
    env = dict(sqs.env)
    endpoint = env.pop("AWS_ENDPOINT_URL")
    path = sqs.url(sqs.new_queue()).partition("://")[2].partition("/")[2]
    assert run(_PUSH, env, f"{endpoint}/{path}") == "a"


_HEARTBEAT = """
import json, sys
from holdfast.aws.heartbeat import visibility_timeout_of

print(json.dumps(visibility_timeout_of(sys.argv[1])))
"""


def test_the_endpoint_wins_for_a_heartbeat_too(sqs: Sqs, nowhere: str) -> None:
    path = sqs.url(sqs.new_queue(VisibilityTimeout="77")).partition("://")[2].partition("/")[2]
    assert run(_HEARTBEAT, sqs.env, f"{nowhere}/{path}") == 77
