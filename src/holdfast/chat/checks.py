"""Checks of conversations: settings, store, queues, webhook, profiles, waiting messages.

Nothing is created, and nothing is sent to a customer.
"""

import hmac
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from holdfast.chat.building import ChatProviders, create_chat_tables, open_conversations
from holdfast.chat.model import Channel, ConversationKey, ConversationProfile
from holdfast.chat.ports import ConversationStore, SecretStore
from holdfast.chat.replies import ProviderResolver
from holdfast.chat.settings import PROBE_URL, ChatSettings, read_trigger_settings
from holdfast.chat.sqlite_conversations import CONVERSATIONS
from holdfast.doctor.checks import CheckFailed, CheckResult, fail, grade, ok, run_checks, warn
from holdfast.doctor.stores import StoreKind, StoreTables, check_store
from holdfast.doctor.targets import examine_queue
from holdfast.errors import ConfigError, HoldfastError, QueueNotFound
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.queues.opening import open_queue
from holdfast.settings import read_settings
from holdfast.text import format_count
from holdfast.urls import QUEUES, parse_url

# A customer of each channel. Nothing is sent to them.
_CUSTOMERS = {
    Channel.WHATSAPP: "whatsapp:customer",
    Channel.SMS: "customer",
    Channel.EMAIL: "customer@example.org",
}


_TOKEN, _URL = map(ChatSettings.to_variable, ("twilio_secret", "webhook_url"))
_RESPONSE_SECONDS = 15.0  # as long as Twilio waits
_TWIML = b"<Response>"  # in the response to what the function accepts
_REFUSED = (403, b"")  # the function does not say why; a firewall in front of it might


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations with valid settings."""

    env: Mapping[str, str]
    settings: ChatSettings
    trigger_leases: list[float]
    providers: ChatProviders


def examine_conversations(target: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check conversations and yield the results one by one."""

    def examine(env: Mapping[str, str]) -> Iterator[CheckResult]:
        settings = read_settings(ChatSettings, env)
        leases = [queue.lease_seconds for queue in read_trigger_settings(settings, env)]
        providers = ChatProviders(settings, env, SYSTEM_CLOCK)
        return run_checks(Conversations(env, settings, leases, providers), *CHECKS)

    return run_checks(env, ("settings", examine))


# -- settings


def _check_settings(chat: Conversations) -> Iterator[CheckResult]:
    policy = chat.settings.policy
    yield ok(
        f"a batch is answered {policy.window_seconds:g} to {policy.max_wait_seconds:g} s after "
        f"its first message; a reply that may have been sent: {policy.in_doubt}",
    )


def _check_leases(chat: Conversations) -> Iterator[CheckResult]:
    """Compare the lock with the leases of the queues.

    After a crash the trigger is redelivered when its lease ends, and meets the lock if that
    lasts longer.
    """
    min_lease, max_lease = min(chat.trigger_leases), max(chat.trigger_leases)
    policy = chat.settings.policy
    held = f"the lock holds {policy.lock_seconds:g} s"
    text = f"{held}, triggers are leased for {min_lease:g} s"
    if min_lease < policy.lock_seconds / 2:
        yield warn(
            f"{text}: after a crash a trigger is redelivered too early, and each delivery "
            "uses an attempt",
            f"set {ChatSettings.to_variable('lock_seconds')} to about the lease of the queues",
        )
    elif max_lease > policy.lock_seconds + policy.grace_seconds:
        yield warn(
            f"{held}, triggers are leased for {max_lease:g} s: after a "
            "crash a conversation waits longer than it needs to",
            "make the lease of the queues as short as the lock: `?lease_seconds=` in the URL",
        )
    else:
        yield ok(text)


# -- the store


def _check_store(chat: Conversations) -> Iterator[CheckResult]:
    return check_store(CONVERSATION_STORE, chat.settings.store_url, chat.env)


def _define_tables(prefix: str) -> StoreTables:
    from holdfast.chat.dynamodb import tables

    names = tables.tables_from_prefix(prefix)
    command = tables.format_tables_command(prefix)
    return StoreTables(tables.define_tables(names), names.expiring, command)


def _examine_store(store: ConversationStore, env: Mapping[str, str]) -> Iterator[CheckResult]:
    # It needs write permission but changes nothing: the conversation does not exist.
    store.set_status(ConversationKey("holdfast", "holdfast-doctor"), "")
    policy = read_settings(ChatSettings, env).policy
    ages = [SYSTEM_CLOCK.time() - waiting.oldest_staged_at for waiting in store.waiting()]
    if late := sum(age > policy.max_wait_seconds + policy.grace_seconds for age in ages):
        yield warn(
            f"{format_count(late, 'conversation')} waiting for a reply, the longest for "
            f"{max(ages):.0f} s",
            "check that `holdfast chat work` or the Lambda function is running",
            check="waiting",
        )
    else:
        waiting = format_count(len(ages), "conversation")
        yield ok(f"{waiting}, none for too long", check="waiting")
    parked = sum(1 for _ in store.parked())
    batches = f"{format_count(parked, 'batch', 'batches')} waiting for an operator"
    yield grade(
        batches if parked else "nothing",
        "`holdfast chat parked` shows why",
        warns=parked > 0,
        check="parked",
    )


CONVERSATION_STORE = StoreKind(
    CONVERSATIONS,
    _define_tables,
    create_chat_tables,
    open_conversations,
    _examine_store,
    "message",
    ChatSettings.to_variable("store"),
)


# -- queues


def _check_queues(chat: Conversations) -> Iterator[CheckResult]:
    urls = {f"{channel} queue": url for channel, url in chat.settings.queue_urls.items()}
    if chat.settings.inbound_queue is not None:
        urls["inbound queue"] = chat.settings.inbound_queue
    for name, url in urls.items():
        if parse_url(url, QUEUES).scheme == "sqs":
            for result in run_checks(url, ("queue", partial(examine_queue, env=chat.env))):
                yield replace(result, check=f"{name}: {result.check}")
        else:
            yield from run_checks(url, (name, partial(_check_local_queue, env=chat.env)))


def _check_local_queue(url: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    try:
        with open_queue(url, create=False, env=env) as queue:
            stats = queue.stats()
    except QueueNotFound:
        yield ok(f"{url} does not exist yet; the first message creates it")
        return
    except ConfigError:
        raise
    except HoldfastError as error:
        raise CheckFailed(str(error), f"`holdfast doctor {url}` checks it in detail") from error
    yield ok(f"{url}: {stats.ready} ready, {stats.delayed} delayed")
    if stats.failed:
        letters = format_count(stats.failed, "dead letter")
        yield warn(letters, f"`holdfast dead list {url}` shows why")


# -- webhook: try Twilio's token and URL with a signed request that has no message
#
# The function answers it 200 and stages nothing. If the function refuses it, a second request,
# which signs a URL that no webhook has, tells whether at least the token is the same.


def _check_webhook(chat: Conversations) -> Iterator[CheckResult]:
    """Check that requests which Twilio signs with this token and this URL are accepted.

    Neither is shown, because the URL may contain a password. Raises CheckFailed.
    """
    settings, url = chat.settings, chat.settings.webhook_url
    if settings.twilio_secret is None:
        if url is None:
            yield ok("none is set")
        else:
            yield fail(
                f"{_URL} is set and {_TOKEN} is not, so every message of Twilio is lost",
                f"set {_TOKEN} to the name of the secret with Twilio's auth_token",
            )
        return
    token = _read_token(chat.providers.secrets, settings.twilio_secret)
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


# -- profiles


def _check_profiles(chat: Conversations) -> Iterator[CheckResult]:
    if not chat.settings.profiles:
        yield warn(
            "none are set, so the first message of a new customer is parked",
            f"set {chat.settings.to_variable('profiles')}, unless another system makes "
            "conversations",
        )
    resolver = ProviderResolver(chat.providers)
    for number, profile in enumerate(chat.settings.profiles, 1):
        check = partial(_check_profile, resolver)
        yield from run_checks(profile, (f"profile {number}", check))


def _check_profile(
    resolver: ProviderResolver, given: tuple[str, ConversationProfile]
) -> Iterator[CheckResult]:
    """Check that a profile's writer, sender and secrets exist.

    No secret is shown, and no provider is called.
    """
    address, profile = given
    channels = list(Channel) if address == "*" else [Channel.from_address(address)]
    try:
        resolver.resolve_writer(profile.ai_config)
        for channel in channels:
            customer = ConversationKey(_CUSTOMERS[channel], "holdfast-doctor")
            resolver.resolve_sender(profile.channel_config, customer)
    except HoldfastError as error:
        remedy = "correct the profile, or install or set what it needs"
        raise CheckFailed(str(error), remedy) from error
    yield ok("its writer, its sender and their secrets exist")


CHECKS = (
    _check_settings,
    _check_leases,
    _check_store,
    _check_queues,
    _check_webhook,
    _check_profiles,
)
