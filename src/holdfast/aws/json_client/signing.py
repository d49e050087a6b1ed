"""AWS Signature Version 4 for POST requests to the root of an endpoint.

botocore's signer can sign any request. It takes half of a lean call's CPU time, so this one
signs only the requests that the lean client makes. A test compares both signatures.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from holdfast.errors import ConfigError
from holdfast.lease.clock import to_utc

_ALGORITHM = "AWS4-HMAC-SHA256"


class Signer:
    """Signs requests to one service in one region. Threads may share it."""

    def __init__(self, signing_name: str, region: str) -> None:
        self._signing_name = signing_name
        self._region = region
        # The day and the secret key that the signing key was derived from, and the key.
        self._derived: tuple[str, str, bytes] | None = None

    def sign(
        self, headers: Mapping[str, str], body: bytes, credentials: Any, epoch_seconds: float
    ) -> dict[str, str]:
        """Return the headers together with those that sign the request.

        The names of `headers` are in lower case, and all of them are signed. `credentials` are
        those that `freeze_credentials` returned.
        """
        timestamp = to_utc(epoch_seconds).strftime("%Y%m%dT%H%M%SZ")
        signed = {**headers, "x-amz-date": timestamp}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = sorted(signed)
        # Services sign a value without the blanks around it, and with single ones within it.
        lines = "".join([f"{name}:{' '.join(signed[name].split())}\n" for name in names])
        signed_names = ";".join(names)
        request = f"POST\n/\n\n{lines}\n{signed_names}\n{sha256(body).hexdigest()}"
        scope = f"{timestamp[:8]}/{self._region}/{self._signing_name}/aws4_request"
        digest = sha256(request.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{digest}"
        key = self._derive_key(timestamp[:8], credentials.secret_key)
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed_names}, Signature={signature}"
        )
        return signed

    def _derive_key(self, day: str, secret_key: str) -> bytes:
        derived = self._derived  # a local, because another thread may replace it
        if derived is None or derived[:2] != (day, secret_key):
            key = f"AWS4{secret_key}".encode()
            for part in (day, self._region, self._signing_name, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            derived = self._derived = (day, secret_key, key)
        return derived[2]


def freeze_credentials(credentials: Any) -> Any:
    """Return botocore's credentials as they are now. botocore refreshes them if need be.

    Raises ConfigError if they cannot be sent or are still expired, because repeating the call
    cannot help. It names the value that is wrong, without its content.
    """
    try:
        frozen = credentials.get_frozen_credentials()
    except RuntimeError:  # botocore's, for credentials that a refresh brought
        raise ConfigError(
            "the AWS credentials are expired, and their source returned expired ones again: "
            "check that source and this machine's clock"
        ) from None
    _check_header_value("access key", frozen.access_key)
    _check_header_value("session token", frozen.token or "")
    if not _can_encode(frozen.secret_key, "utf-8"):
        raise ConfigError("the AWS secret key is not a text: set it again")
    return frozen


def _check_header_value(name: str, value: str) -> None:
    if "\n" in value or "\r" in value:  # it would add a header of its own
        raise ConfigError(f"the AWS {name} has a line break: set it again")
    if not _can_encode(value, "latin-1"):
        raise ConfigError(f"the AWS {name} has a character that HTTP cannot send: set it again")


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
