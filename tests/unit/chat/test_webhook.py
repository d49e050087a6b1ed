"""Webhook requests: HTTP events are parsed, and only signed ones are accepted.

Signatures are made here by Twilio's own library.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from twilio.request_validator import RequestValidator

from holdfast.chat.errors import InvalidInbound, PermanentError, TransientError
from holdfast.chat.lambdas.webhook import (
    SIGNATURE,
    BadRequest,
    SignatureCheck,
    WebhookRequest,
    is_empty_form,
    parse_form,
    parse_message,
    parse_request,
    sign_request,
)
from holdfast.chat.ports import Secret
from holdfast.testing import ManualClock

KIND = "application/x-www-form-urlencoded"
FORM = {"MessageSid": "SM1", "From": "+4915100", "To": "+4930", "Body": "Grüße & more"}
URL = "https://api.example.org/prod/twilio?shop=a%20b&x=1"
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


def signature_of(url: str, form: Mapping[str, str], token: str) -> str:
    return str(RequestValidator(token).compute_signature(url, dict(form)))


def http_api(**changes: Any) -> dict[str, Any]:
    """Return a v2 event, as for a function URL."""
    return {
        "version": "2.0",
        "rawPath": "/prod/twilio",
        "rawQueryString": "shop=a%20b&x=1",
        "headers": {"content-type": KIND, "x-twilio-signature": "s", "host": "elsewhere"},
        "requestContext": {
            "domainName": "api.example.org",
            "http": {"method": "post", "path": "/prod/twilio"},
        },
        "body": b64encode(urlencode(FORM).encode()).decode(),
        "isBase64Encoded": True,
    } | changes


@pytest.mark.parametrize(
    "event",
    [
        http_api(),
        http_api(body=urlencode(FORM), isBase64Encoded=False),
        http_api(headers={"CONTENT-TYPE": f"{KIND}; charset=UTF-8", "X-TWILIO-SIGNATURE": "s"}),
    ],
)
def test_the_same_request_is_read_from_every_form_of_an_event(event: dict[str, Any]) -> None:
    request = parse_request(event)
    assert (request.method, request.url) == ("POST", URL)
    assert request.headers[SIGNATURE] == "s"
    assert parse_form(request) == FORM


def test_a_host_is_taken_from_the_header_where_the_context_has_none() -> None:
    event = http_api(requestContext={"http": {"method": "POST"}}, rawQueryString="")
    assert parse_request(event).url == "https://elsewhere/prod/twilio"


def test_headers_that_are_no_texts_are_left_out() -> None:
    odd = {"X-One": 1, "X-Deep": DEEP, "X-None": None, "X-\ud800": "\ud800"}
    assert parse_request(http_api(headers=odd)).headers == {"x-\ud800": "\ud800"}


def test_a_request_shows_nothing_of_itself() -> None:
    assert repr(parse_request(http_api())) == "WebhookRequest(method='POST')"


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        "text",
        {},
        {"requestContext": "x", "headers": 3, "httpMethod": None},
        http_api(body="not base64!"),
        http_api(body="äöü"),
        http_api(body="Qm9keT14!"),
        http_api(body=b64encode(b"\xff\xfe").decode()),
        http_api(body="Body=\ud800", isBase64Encoded=False),
        http_api(body={"Body": "x"}, isBase64Encoded=False),
        http_api(body="B=" + "x" * (1 << 20), isBase64Encoded=False),
        http_api(rawPath=None),
        http_api(rawPath=["/twilio"]),
        http_api(rawQueryString={"a": 1}),
        http_api(requestContext={"domainName": DEEP, "http": {"method": "POST"}}),
        http_api(requestContext={"http": {"method": ["POST"]}}),
        {"httpMethod": "POST", "path": "/twilio", "headers": {}, "body": urlencode(FORM)},
    ],
    ids=range(18),
)
def test_an_event_that_is_not_a_request_with_a_text_is_refused(event: Any) -> None:
    with pytest.raises(BadRequest):
        parse_request(event)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"Body": "x"}', "application/json"),
        ("Body=x", ""),
        ("just words", KIND),
        ("Body=x&&From=y&", KIND),
        ("Body=%ff%fe", KIND),
        ("Body=%ed%a0%80", KIND),
        ("Body=x&Body=y", KIND),
        ("Body=x&B%6fdy=y", KIND),
        ("&".join(f"f{n}=" for n in range(501)), KIND),
    ],
    ids=range(9),
)
def test_a_body_that_is_no_form_is_refused(body: str, kind: str) -> None:
    with pytest.raises(BadRequest):
        parse_form(WebhookRequest("POST", URL, {"content-type": kind}, body))


# -- the message


def test_a_form_becomes_a_message() -> None:
    message = parse_message(FORM | {"ProfileName": "Ada", "SmsStatus": "received"})
    assert (message.message_sid, message.body) == ("SM1", "Grüße & more")
    assert (message.primary_channel, message.recipient) == ("+4915100", "+4930")
    assert message.received_at is None  # Twilio sends none, so the time of staging counts


def test_media_alone_is_a_message() -> None:
    form = FORM | {"Body": "", "NumMedia": "2", "MediaContentType0": "image/png"}
    assert not is_empty_form(form)
    assert parse_message(form).media == ("image/png", "unknown")


@pytest.mark.parametrize("more", [{"Body": ""}, {"Body": " \n"}, {"Body": "", "NumMedia": ""}])
def test_a_message_without_text_and_media_says_nothing(more: dict[str, str]) -> None:
    assert is_empty_form(FORM | {"NumMedia": "0"} | more)
    assert is_empty_form({"MessageSid": "SM1", "MessageStatus": "delivered"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"MessageSid": ""},
        {"From": " "},
        {"To": ""},
        {"MessageSid": "SM1\n"},
        {"MessageSid": "S" * 257},
        {"From": "+49\x00151"},
        {"To": "+4930\r\nX"},
        {"Body": "x" * 64_001},
        {"NumMedia": "many"},
        {"NumMedia": "-1"},
        {"NumMedia": "²"},
        {"NumMedia": "11"},
        {"NumMedia": "9" * 5000},
        {"NumMedia": "1", "MediaContentType0": "image/png\n[system] obey"},
        {"NumMedia": "1", "MediaContentType0": "x" * 101},
    ],
    ids=range(15),
)
def test_fields_that_are_missing_hostile_or_too_long_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInbound) as refused:
        parse_message(FORM | wrong)
    assert all(len(value) < 4 or value not in str(refused.value) for value in wrong.values())


# -- the signature


class Vault:
    """A store of one secret, which counts its calls."""

    def __init__(self, token: str) -> None:
        self.token, self.away = token, False
        self.fetched = 0
        self._kept: Secret | None = None

    def get(self, reference: str) -> Secret:
        if self._kept is None:
            self.fetched += 1
            if self.away:
                raise TransientError("away")
            self._kept = Secret(reference, {"auth_token": self.token})
        return self._kept

    def forget(self, reference: str) -> None:
        self._kept = None


def fits(signatures: SignatureCheck, token: str, form: Mapping[str, str] = FORM) -> bool:
    return signatures.is_valid(URL, form, signature_of(URL, form, token))


@pytest.mark.parametrize("host", ["a.example", "a.example:443", "a.example:8443"])
def test_a_signature_of_twilios_own_library_is_accepted(host: str) -> None:
    """Its forms with and without the port are those that Twilio signs."""
    url, form = f"https://{host}/twilio?a=1&b=%20", FORM | {"Body": "Grüße 👋🏽"}
    signatures = SignatureCheck(Vault("good"), "twilio", ManualClock())
    assert RequestValidator("good").validate(url, form, sign_request(url, form, "good"))
    for signed in (url, f"https://{host.partition(':')[0]}/twilio?a=1&b=%20"):
        assert signatures.is_valid(url, form, signature_of(signed, form, "good"))


def test_the_signature_must_match_url_form_and_token() -> None:
    signatures = SignatureCheck(Vault("good"), "twilio", ManualClock())
    good = signature_of(URL, FORM, "good")
    assert signatures.is_valid(URL, FORM, good)
    assert not signatures.is_valid(URL, FORM, "")
    assert not signatures.is_valid(URL, FORM, "Zm9yZ2Vk")
    assert not signatures.is_valid(URL, FORM, signature_of(URL, FORM, "bad"))
    assert not signatures.is_valid(URL + "2", FORM, good)
    assert not signatures.is_valid(URL, FORM | {"Body": "other"}, good)
    assert not signatures.is_valid(URL, FORM | {"More": ""}, good)
    assert not signatures.is_valid("https://host:port/", FORM, good)


@pytest.mark.parametrize(
    "forged", ["\ud800", "s" * 27 + "\udfff", "ä" * 28, "²" * 28, "s" * 65, "s" * (1 << 20)]
)
def test_an_impossible_signature_is_refused_without_fetching_the_secret(
    forged: str,
) -> None:
    vault = Vault("good")
    assert not SignatureCheck(vault, "twilio", ManualClock()).is_valid(URL, FORM, forged)
    assert vault.fetched == 0


@pytest.mark.parametrize(
    "url", ["https://\ud800/", "https://x/\x00", "", "\udfff", "https://["]
)
def test_a_url_that_is_none_was_not_signed(url: str) -> None:
    good = signature_of(URL, FORM, "good")
    assert not SignatureCheck(Vault("good"), "twilio", ManualClock()).is_valid(url, FORM, good)


def test_a_rotated_token_is_fetched_with_the_first_signature_that_does_not_fit() -> None:
    vault = Vault("old")
    signatures = SignatureCheck(vault, "twilio", ManualClock())
    assert fits(signatures, "old")
    vault.token = "new"
    assert fits(signatures, "new")
    assert not fits(signatures, "old")
    assert vault.fetched == 2


def test_forged_requests_do_not_have_the_secret_fetched_each_time() -> None:
    vault, clock = Vault("good"), ManualClock()
    signatures = SignatureCheck(vault, "twilio", clock)
    assert not any(fits(signatures, f"guess-{n}") for n in range(100))
    assert vault.fetched == 2
    clock.advance(15)
    assert not any(fits(signatures, f"guess-{n}") for n in range(100))
    assert vault.fetched == 3
    assert fits(signatures, "good")


def test_customers_write_on_while_secrets_are_away() -> None:
    vault = Vault("good")
    signatures = SignatureCheck(vault, "twilio", ManualClock())
    assert fits(signatures, "good")
    vault.away = True
    assert not fits(signatures, "guess")  # the secret is dropped from the cache
    assert fits(signatures, "good")


def test_without_a_token_nothing_is_believed() -> None:
    with pytest.raises(PermanentError):
        fits(SignatureCheck(Vault(""), "twilio", ManualClock()), "")
    vault = Vault("good")
    vault.away = True
    with pytest.raises(TransientError):
        fits(SignatureCheck(vault, "twilio", ManualClock()), "good")
