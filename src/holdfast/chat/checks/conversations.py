"""Checks of conversations: settings, store, queues, webhook, profiles, waiting messages.

Nothing is created, and nothing is sent to a customer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from holdfast.chat import sqlite_conversations as conversations
from holdfast.chat.checks.tables import check_chat_tables
from holdfast.chat.checks.webhook import check_webhook
from holdfast.chat.model import Channel, ConversationKey
from holdfast.chat.policy import ConversationPolicy, ConversationProfile
from holdfast.chat.ports import ConversationStore, ProviderSource
from holdfast.chat.replies import ProviderResolver
from holdfast.chat.settings import (
    ChatSettings,
    read_chat_settings,
    read_trigger_settings,
)
from holdfast.doctor.checks import CheckResult, ok, warn
from holdfast.doctor.runner import CheckFailed, require_valid_settings, run_checks
from holdfast.doctor.stores import check_store
from holdfast.errors import HoldfastError, QueueNotFound
from holdfast.lease.clock import Clock
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage
from holdfast.text import format_count
from holdfast.urls import QUEUES, parse_url

# A customer of each channel. Nothing is sent to them.
_CUSTOMERS = {
    Channel.WHATSAPP: "whatsapp:customer",
    Channel.SMS: "customer",
    Channel.EMAIL: "customer@example.org",
}


@dataclass(frozen=True, slots=True)
class ChatWiring:
    """How the parts of conversations are opened, each only when its check needs it."""

    env: Mapping[str, str]
    clock: Clock
    open_store: Callable[[str], ConversationStore]
    open_queue: Callable[[str], QueueManager[AnyMessage]]
    examine_queue: Callable[[str], Iterator[CheckResult]]
    make_providers: Callable[[ChatSettings], ProviderSource]


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations with valid settings."""

    settings: ChatSettings
    trigger_leases: list[float]
    providers: ProviderSource
    wiring: ChatWiring


def examine_conversations(wiring: ChatWiring) -> Iterator[CheckResult]:
    """Check conversations and yield the results one by one."""

    def examine(wiring: ChatWiring) -> Iterator[CheckResult]:
        with require_valid_settings():
            settings = read_chat_settings(wiring.env)
            triggers = read_trigger_settings(settings, wiring.env)
        leases = [queue.lease_seconds for queue in triggers]
        providers = wiring.make_providers(settings)
        chat = Conversations(settings, leases, providers, wiring)
        return run_checks(chat, *CONVERSATIONS)

    return run_checks(wiring, ("settings", examine))


# -- settings


def _check_settings(chat: Conversations) -> Iterator[CheckResult]:
    known = {ChatSettings.to_variable(name) for name in ChatSettings.model_fields}
    prefix = ChatSettings.env_prefix
    unknown = sorted(
        name for name in chat.wiring.env if name.startswith(prefix) and name not in known
    )
    if unknown:
        yield warn(f"{', '.join(unknown)}: unknown setting", "check the spelling")
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
    def examine(store: ConversationStore) -> Iterator[CheckResult]:
        # It needs write permission but changes nothing: the conversation does not exist.
        store.set_status(ConversationKey("holdfast", "holdfast-doctor"), "")
        yield ok(f"{chat.settings.store_url} can be read and written")
        yield from _check_messages(store, chat.settings.policy, chat.wiring.clock.time())

    return check_store(
        chat.settings.store_url,
        chat.wiring.open_store,
        check_chat_tables,
        examine,
        schema=conversations.CONVERSATIONS,
        content="message",
        setting=ChatSettings.to_variable("store"),
    )


def _check_messages(
    store: ConversationStore, policy: ConversationPolicy, now: float
) -> Iterator[CheckResult]:
    ages = [now - waiting.oldest_staged_at for waiting in store.waiting()]
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
    if parked := sum(1 for _ in store.parked()):
        text = f"{format_count(parked, 'batch', 'batches')} waiting for an operator"
        yield warn(text, "`holdfast chat parked` shows why", check="parked")
    else:
        yield ok("nothing", check="parked")


# -- queues


def _check_queues(chat: Conversations) -> Iterator[CheckResult]:
    urls = {f"{channel} queue": url for channel, url in chat.settings.queue_urls.items()}
    if chat.settings.inbound_queue is not None:
        urls["inbound queue"] = chat.settings.inbound_queue
    for name, url in urls.items():
        if parse_url(url, QUEUES).scheme == "sqs":
            for result in run_checks(url, ("queue", chat.wiring.examine_queue)):
                yield replace(result, check=f"{name}: {result.check}")
        else:
            yield from run_checks(url, (name, partial(_check_local_queue, chat.wiring)))


def _check_local_queue(wiring: ChatWiring, url: str) -> Iterator[CheckResult]:
    try:
        with require_valid_settings(), wiring.open_queue(url) as queue:
            stats = queue.stats()
    except QueueNotFound:
        yield ok(f"{url} does not exist yet; the first message creates it")
        return
    except HoldfastError as error:
        raise CheckFailed(str(error), f"`holdfast doctor {url}` checks it in detail") from error
    yield ok(f"{url}: {stats.ready} ready, {stats.delayed} delayed")
    if stats.failed:
        letters = format_count(stats.failed, "dead letter")
        yield warn(letters, f"`holdfast dead list {url}` shows why")


# -- webhook


def _check_webhook(chat: Conversations) -> Iterator[CheckResult]:
    return check_webhook(chat.settings, chat.providers.secrets)


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


CONVERSATIONS = (
    ("settings", _check_settings),
    ("leases", _check_leases),
    ("store", _check_store),
    ("queues", _check_queues),
    ("webhook", _check_webhook),
    ("profiles", _check_profiles),
)
