"""Credentials that a test can recognise, a server that rotates them, and signatures."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlunsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from support.http_server import Ask, Wire

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/"
    r"(?P<service>[^/]+)/aws4_request, SignedHeaders=(?P<headers>[^,]+), "
    r"Signature=(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class Key:
    """One set of credentials."""

    id: str
    secret: str
    token: str

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.id, self.secret, self.token)

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_SESSION_TOKEN": self.token,
        }


FIRST = Key("AKIAFIRST", "first-secret-canary", "first-token-canary")
SECOND = Key("AKIASECOND", "second-secret-canary", "second-token-canary")


class CredentialServer:
    """A route that hands out credentials, as the agent of a container does."""

    def __init__(self, key: Key, valid_seconds: float) -> None:
        self.key = key
        self.valid_seconds = valid_seconds
        self.is_broken = False

    def __call__(self, ask: Ask, wire: Wire) -> None:
        expires = datetime.now(UTC) + timedelta(seconds=self.valid_seconds)
        content = {
            "AccessKeyId": self.key.id,
            "SecretAccessKey": self.key.secret,
            "Token": self.key.token,
            "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        # Nothing of them in an error, because botocore quotes its body.
        body = b"out of order" if self.is_broken else json.dumps(content).encode()
        status = "500 Broken" if self.is_broken else "200 OK"
        wire.head(status, f"Content-Length: {len(body)}", "Content-Type: application/json")
        wire.send(body)


# -- signatures, checked with botocore's own signer


def parse_authorization(ask: Ask) -> dict[str, str]:
    """Return the parts of a request's signature by name."""
    match = _AUTHORIZATION.fullmatch(ask.headers.get("authorization", ""))
    assert match, "the request is not signed"
    return match.groupdict()


def check_signature(ask: Ask, key: Key) -> None:
    """Fail unless the request is signed with this key, as it was received."""
    parts = parse_authorization(ask)
    names = parts["headers"].split(";")
    url = urlunsplit(("http", ask.headers["host"], ask.path, ask.query, ""))
    request = AWSRequest(
        ask.method, url, headers={name: ask.headers[name] for name in names}, data=ask.body
    )
    request.context["timestamp"] = ask.headers["x-amz-date"]
    signer = SigV4Auth(key.credentials, parts["service"], parts["region"])
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert parts["key"] == key.id
    assert parts["signature"] == signer.signature(text, request)
    assert ask.headers.get("x-amz-security-token") == key.token
