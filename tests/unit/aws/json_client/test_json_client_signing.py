"""The lean client's signer against botocore's."""

from datetime import UTC, datetime
from unittest.mock import patch

import botocore.auth
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from holdfast.aws.json_client.signing import Signer, freeze_credentials
from holdfast.errors import ConfigError

SECRET = "canary-of-a-secret-key"

# Header values as the client has them: visible ASCII characters.
words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
hosts = st.sampled_from(["sqs.eu-west-1.amazonaws.com", "127.0.0.1:4566", "[::1]:8000"])
seconds = st.integers(min_value=946_684_800, max_value=4_102_444_800)


@given(
    service=words,
    region=words,
    access_key=words,
    secret_key=st.text(min_size=1, max_size=40),
    token=st.none() | st.text(st.characters(codec="latin-1", exclude_characters="\r\n")),
    target=words,
    host=hosts,
    is_sqs=st.booleans(),
    body=st.binary(max_size=200),
    now=seconds,
)
def test_both_signers_make_the_same_signature(
    service: str,
    region: str,
    access_key: str,
    secret_key: str,
    token: str | None,
    target: str,
    host: str,
    is_sqs: bool,
    body: bytes,
    now: int,
) -> None:
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "host": host,
        "x-amz-target": target,
    }
    if is_sqs:
        headers["x-amzn-query-mode"] = "true"
    credentials = Credentials(access_key, secret_key, token)
    request = AWSRequest("POST", f"http://{host}/", headers=dict(headers), data=body)
    with patch.object(botocore.auth, "get_current_datetime") as get_time:
        get_time.return_value = datetime.fromtimestamp(now, UTC)
        SigV4Auth(credentials, service, region).add_auth(request)
    signed = Signer(service, region).sign(headers, body, credentials, now)
    expected = {name.lower(): value for name, value in request.headers.items()}
    assert signed == expected


def test_the_key_of_yesterday_or_of_other_credentials_is_not_used() -> None:
    signer, day = Signer("sqs", "eu-west-1"), 86_400
    first, second = Credentials("a", "first"), Credentials("a", "second")
    calls = [(first, 0), (first, day), (second, day), (first, day), (first, 0)]
    for credentials, now in calls:
        fresh = Signer("sqs", "eu-west-1")
        assert signer.sign({}, b"", credentials, now) == fresh.sign({}, b"", credentials, now)


@pytest.mark.parametrize("position", ["access key", "session token"])
@pytest.mark.parametrize("text", ["\n", "\r", "\r\nx-other: 1", "ü\u0107", "\udcff"])
def test_credentials_that_cannot_be_sent_are_refused_by_name(position: str, text: str) -> None:
    values = {"access key": "a", "session token": "t"}
    values[position] += f"{text}{SECRET}"
    credentials = Credentials(values["access key"], SECRET, values["session token"])
    with pytest.raises(ConfigError, match=position) as raised:
        freeze_credentials(credentials)
    assert SECRET not in str(raised.value)


def test_a_secret_key_that_is_not_a_text_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="secret key") as raised:
        freeze_credentials(Credentials("a", f"{SECRET}\udcff"))
    assert SECRET not in str(raised.value)
