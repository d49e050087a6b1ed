"""SQSHeartbeat in a process without settings: requirements that need one."""

import os
import subprocess
import sys
from textwrap import dedent

import pytest

from support.sqs.heartbeats import URL


def run_alone(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a process without a region, account or settings."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    kept = {**kept, "AWS_EC2_METADATA_DISABLED": "true", **env}
    code = dedent(code)
    return subprocess.run(
        [sys.executable, "-c", code], env=kept, capture_output=True, text=True, timeout=60
    )


@pytest.mark.requirement("R000-009")
def test_a_process_ends_though_its_heartbeat_was_never_stopped() -> None:
    """The thread is a daemon."""
    ended = run_alone(
        """
        from holdfast.utils.sqs_heartbeat import SQSHeartbeat
        SQSHeartbeat("https://a/b/c", "h", 3000, 6000, client=object()).start()
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_process_that_ends_ends_its_heartbeats() -> None:
    """No call begins while the interpreter is taken apart."""
    ended = run_alone(
        """
        import atexit
        atexit.register(lambda: print(heartbeat._stop_event.is_set()))  # runs last
        from holdfast.utils.sqs_heartbeat import SQSHeartbeat
        heartbeat = SQSHeartbeat("https://a/b/c", "h", 3000, 6000, client=object())
        heartbeat.start()
        """
    )
    assert (ended.stdout, ended.stderr) == ("True\n", "")


@pytest.mark.requirement("R000-040", "R000-077")
def test_it_makes_its_own_client_for_the_queues_region() -> None:
    """Boto3's, and its calls cannot hang for an interval (HB-08)."""
    made = run_alone(
        f"""
        from holdfast.utils.sqs_heartbeat import SQSHeartbeat
        client = SQSHeartbeat({URL!r}, "h", 6)._sqs_client.get_boto3_client()
        config = client.meta.config
        print(client.meta.service_model.service_name, client.meta.region_name)
        print(config.read_timeout, config.connect_timeout)
        """
    )
    assert made.stdout.split() == ["sqs", "eu-west-1", "3.0", "3.0"], made.stderr


@pytest.mark.requirement("R000-040")
def test_a_client_that_cannot_be_made_is_a_clear_error() -> None:
    """One line names the problem, not botocore's error."""
    refused = run_alone(
        """
        from holdfast.errors import ConfigError
        from holdfast.utils.sqs_heartbeat import SQSHeartbeat
        try:
            SQSHeartbeat("orders", "h", 6)
        except ConfigError as error:
            print(error)
        """
    )
    assert "no region for sqs: set AWS_REGION" in refused.stdout, refused.stderr
    assert "region" in refused.stdout
