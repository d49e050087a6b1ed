"""Check the signature of a received request with botocore's own signer."""

import re
from urllib.parse import urlunsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

from support.aws.credentials import Key
from support.http_server import Ask

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/"
    r"(?P<service>[^/]+)/aws4_request, SignedHeaders=(?P<headers>[^,]+), "
    r"Signature=(?P<signature>[0-9a-f]{64})"
)


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
