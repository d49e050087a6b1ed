"""Credentials that a test can recognise, and a server that hands them out and rotates them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from botocore.credentials import Credentials

from support.http_server import Ask, Wire


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
