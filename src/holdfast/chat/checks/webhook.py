"""Check Twilio's webhook: try the token and the URL with a signed request that has no message.

The function answers it 200 and stages nothing. If the function refuses it, a second request,
which signs a URL that no webhook has, tells whether at least the token is the same.
"""

import hmac
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from holdfast.chat.ports import SecretStore
from holdfast.chat.settings import PROBE_URL, ChatSettings
from holdfast.doctor.checks import CheckFailed, CheckResult, fail, ok, warn
from holdfast.errors import HoldfastError

_TOKEN, _URL = map(ChatSettings.to_variable, ("twilio_secret", "webhook_url"))
_RESPONSE_SECONDS = 15.0  # as long as Twilio waits
_TWIML = b"<Response>"  # in the response to what the function accepts
_REFUSED = (403, b"")  # the function does not say why; a firewall in front of it might


def check_webhook(settings: ChatSettings, secrets: SecretStore) -> Iterator[CheckResult]:
    """Check that requests which Twilio signs with this token and this URL are accepted.

    Neither is shown, because the URL may contain a password. Raises CheckFailed.
    """
    url = settings.webhook_url
    if settings.twilio_secret is None:
        if url is None:
            yield ok("none is set")
        else:
            yield fail(
                f"{_URL} is set and {_TOKEN} is not, so every message of Twilio is lost",
                f"set {_TOKEN} to the name of the secret with Twilio's auth_token",
            )
        return
    token = _read_token(secrets, settings.twilio_secret)
    if url is None:
        yield ok(f"its token exists; set {_URL} to the URL entered at Twilio to try that, too")
        return
    try:
        yield _try_signature(url, token)
    except (OSError, HTTPException, ValueError) as error:
        yield warn(
            f"{_URL} cannot be tried from here: "
            # Other texts may quote the URL.
            f"{getattr(error, 'strerror', None) or type(error).__name__}",
            "check its host and port, and try it from a machine with access to the internet",
        )


def _read_token(secrets: SecretStore, reference: str) -> str:
    try:
        return secrets.get(reference).reveal("auth_token")
    except HoldfastError as error:
        raise CheckFailed(
            f"{_TOKEN}: {error}; while the function lacks it, every message of Twilio is lost",
            f"let {_TOKEN} name a secret with Twilio's auth_token",
        ) from error


def _try_signature(url: str, token: str) -> CheckResult:
    answer = _post(url, _sign(url, token))
    if answer == _REFUSED:
        answer = _post(url, _sign(PROBE_URL, token))
    match answer:
        case 200, body if _TWIML in body:
            return ok("a request that was signed for this URL with this token is accepted")
        case refused if refused == _REFUSED:
            return fail(
                "the token is wrong: the function refuses a signature that is made with it",
                f"let {_TOKEN} name the secret with Twilio's auth_token, here and at the "
                "function, and deploy this version there, which can tell URL and token apart",
            )
        case 421, _:
            return fail(
                "the URL is wrong: the function has this token and checks another URL",
                f"set {_URL} of the function to exactly the URL entered at Twilio",
            )
        case 503, _:
            return fail(
                "the function answers 503, so every message of Twilio is lost",
                "`webhook_failed` in its log says why",
            )
    return fail(
        f"the URL is wrong: its response, HTTP {answer[0]}, is not that of the function",
        "enter the URL of staging; a proxy must pass POST, headers and body on unchanged",
    )


def _sign(url: str, token: str) -> str:
    """Sign a request without a form, as Twilio's documentation describes it."""
    return b64encode(hmac.digest(token.encode(), url.encode(), "sha1")).decode()


def _post(url: str, signature: str) -> tuple[int, bytes]:
    """Post an empty form, and return the status and the beginning of the body."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.netloc.rpartition("@")[2], timeout=_RESPONSE_SECONDS)
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Twilio-Signature": signature,
    }
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", target, b"", headers)
        response = connection.getresponse()
        return response.status, response.read(1000)
    finally:
        connection.close()
