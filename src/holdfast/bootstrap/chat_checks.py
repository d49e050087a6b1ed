"""Check conversations for doctor: settings, store, queues, profiles, waiting messages."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.bootstrap.chat_providers import ChatProviders
from holdfast.bootstrap.chats import open_conversations, read_trigger_settings, to_store_path
from holdfast.bootstrap.queues import examine_queue, open_queue
from holdfast.config.chat import ChatSettings, read_chat_settings, to_chat_variable
from holdfast.conversations.model import Channel, ConversationKey
from holdfast.conversations.policy import ConversationPolicy, ConversationProfile
from holdfast.conversations.ports import ConversationStore
from holdfast.conversations.reply_generator import ProviderResolver
from holdfast.core.checks import CheckLevel, CheckResult, fail, ok, run_check, warn
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.core.queue.message import AnyMessage


def check_chat(
    env: Mapping[str, str] | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> Iterator[CheckResult]:
    """Check conversations and yield the results one by one. Nothing is created or sent."""
    env = os.environ if env is None else env
    try:
        settings = read_chat_settings(env)
        triggers = read_trigger_settings(settings, env)
    except ConfigError as error:
        yield fail("settings", str(error), "correct it; nothing starts with this setting")
        return
    yield from _check_settings(settings, env)
    yield from _check_leases(settings.policy, [queue.lease_seconds for queue in triggers])
    yield from _check_store(settings, clock)
    for channel, url in settings.queue_urls.items():
        yield from _check_queue(f"{channel} queue", url, env, clock)
    if settings.inbound_queue is not None:
        yield from _check_queue("inbound queue", settings.inbound_queue, env, clock)
    yield from _check_profiles(settings, env, clock)


# -- settings


def _check_settings(settings: ChatSettings, env: Mapping[str, str]) -> Iterator[CheckResult]:
    known = {to_chat_variable(name) for name in ChatSettings.model_fields}
    unknown = sorted(n for n in env if n.startswith("HOLDFAST_CHAT_") and n not in known)
    if unknown:
        yield warn("settings", f"{', '.join(unknown)}: unknown setting", "check the spelling")
    policy = settings.policy
    yield ok(
        "settings",
        f"a batch is answered {policy.window_seconds:g} to {policy.max_wait_seconds:g} s after "
        f"its first message; a reply that may have been sent: {policy.in_doubt}",
    )


def _check_leases(policy: ConversationPolicy, leases: list[float]) -> Iterator[CheckResult]:
    """Compare the lock with the leases of the queues.

    After a crash the trigger is redelivered when its lease ends, and meets the lock if that
    lasts longer.
    """
    min_lease, max_lease, lock = min(leases), max(leases), policy.lock_seconds
    text = f"the lock holds {lock:g} s, triggers are leased for {min_lease:g} s"
    if min_lease < lock / 2:
        yield warn(
            "leases",
            f"{text}: after a crash a trigger is redelivered too early, and each delivery "
            "uses an attempt",
            f"set {to_chat_variable('lock_seconds')} to about the lease of the queues",
        )
    elif max_lease > lock + policy.grace_seconds:
        yield warn(
            "leases",
            f"the lock holds {lock:g} s, triggers are leased for {max_lease:g} s: after a "
            "crash a conversation waits longer than it needs to",
            "make the lease of the queues as short as the lock: `?lease_seconds=` in the URL",
        )
    else:
        yield ok("leases", text)


# -- the store


def _check_store(settings: ChatSettings, clock: Clock) -> Iterator[CheckResult]:
    url = settings.store_url
    file = to_store_path(url)
    if file is None:
        tables = list(run_check("table", check_chat_tables, url))
        yield from tables
        if any(result.level is CheckLevel.FAIL for result in tables):
            return  # opening the store would only report the same problems
    elif not file.exists():
        yield ok("store", f"{file} does not exist yet; the first message creates it")
        return
    try:
        with open_conversations(url, clock=clock) as store:
            # It needs write permission but changes nothing: the conversation does not exist.
            store.set_status(ConversationKey("holdfast", "holdfast-doctor"), "")
            yield ok("store", f"{url} can be read and written")
            yield from _check_waiting(store, settings.policy, clock.time())
    except HoldfastError as error:
        remedy = f"check {to_chat_variable('store')} and the permissions"
        yield fail("store", f"{url}: {error}", remedy)


def _check_waiting(
    store: ConversationStore, policy: ConversationPolicy, now: float
) -> Iterator[CheckResult]:
    ages = [now - waiting.oldest_staged_at for waiting in store.waiting()]
    late = sum(age > policy.max_wait_seconds + policy.grace_seconds for age in ages)
    if late:
        yield warn(
            "waiting",
            f"{late} conversations wait for a reply, the longest for {max(ages):.0f} s",
            "check that `holdfast chat work` or the Lambda function is running",
        )
    else:
        yield ok("waiting", f"{len(ages)} conversations, none for too long")
    parked = sum(1 for _ in store.parked())
    if parked:
        text = f"{parked} parked batches wait for an operator"
        yield warn("parked", text, "`holdfast chat parked` shows why")
    else:
        yield ok("parked", "nothing")


def check_chat_tables(url: str) -> Iterator[CheckResult]:
    """Check the tables of a dynamodb: store."""
    from holdfast.adapters.aws.clients import make_retrying_client
    from holdfast.adapters.aws.dynamodb.chat.doctor import examine as examine_tables

    return examine_tables(make_retrying_client("dynamodb"), url.removeprefix("dynamodb:"))


def create_chat_tables(url: str) -> list[str]:
    """Create the missing tables and return their names.

    Raises ConfigError and StoreUnavailable.
    """
    from holdfast.adapters.aws.clients import make_retrying_client
    from holdfast.adapters.aws.dynamodb.chat.tables import create_tables

    return create_tables(make_retrying_client("dynamodb"), url.removeprefix("dynamodb:"))


# -- queues


def _check_queue(
    check: str, url: str, env: Mapping[str, str], clock: Clock
) -> Iterator[CheckResult]:
    if url.partition(":")[0].lower() in ("sqs", "http", "https"):
        for result in run_check("queue", lambda: examine_queue(url, clock=clock, env=env)):
            yield CheckResult(
                f"{check}: {result.check}", result.level, result.found, result.remedy
            )
        return
    try:
        with open_queue(url, AnyMessage, create=False, clock=clock, env=env) as queue:
            stats = queue.stats()
    except ConfigError as error:
        yield fail(check, str(error), "correct it; nothing starts with this setting")
    except HoldfastError:
        yield ok(check, f"{url} does not exist yet; the first message creates it")
    else:
        yield ok(check, f"{url}: {stats.ready} ready, {stats.delayed} delayed")
        if stats.failed:
            text = f"{stats.failed} dead letters"
            yield warn(check, text, f"`holdfast dead list {url}` shows why")


# -- profiles


def _check_profiles(
    settings: ChatSettings, env: Mapping[str, str], clock: Clock
) -> Iterator[CheckResult]:
    if not settings.profiles:
        yield warn(
            "profiles",
            "none are set, so the first message of a new customer is parked",
            f"set {to_chat_variable('profiles')}, unless another system makes conversations",
        )
    resolver = ProviderResolver(ChatProviders(settings, env, clock))
    for number, (address, profile) in enumerate(settings.profiles, 1):
        yield _check_profile(f"profile {number}", address, profile, resolver)


def _check_profile(
    check: str, address: str, profile: ConversationProfile, resolver: ProviderResolver
) -> CheckResult:
    """Check that a profile's writer, sender and secrets exist.

    No secret is shown, and no provider is called.
    """
    try:
        resolver.resolve_writer(profile.ai_config)
        for key in _make_customers(address):
            resolver.resolve_sender(profile.channel_config, key)
    except HoldfastError as error:
        return fail(check, str(error), "correct the profile, or install or set what it needs")
    return ok(check, "its writer, its sender and their secrets exist")


def _make_customers(address: str) -> list[ConversationKey]:
    """Return a customer of each channel that may write to an address."""
    customers: dict[Channel, Any] = {
        Channel.WHATSAPP: "whatsapp:customer",
        Channel.SMS: "customer",
        Channel.EMAIL: "customer@example.org",
    }
    channels = list(Channel) if address == "*" else [Channel.from_address(address)]
    return [ConversationKey(customers[channel], "holdfast-doctor") for channel in channels]
