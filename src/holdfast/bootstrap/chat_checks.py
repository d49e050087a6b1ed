"""What doctor finds about conversations: settings, store, queues, profiles, what waits."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.bootstrap.chat_providers import ChatProviders
from holdfast.bootstrap.chats import file_of, open_conversations, trigger_settings
from holdfast.bootstrap.queues import examine, open_queue
from holdfast.config.chat import ChatSettings, chat_settings, chat_variable
from holdfast.conversations.model import Channel, ConversationKey
from holdfast.conversations.policy import ConversationPolicy, ConversationProfile
from holdfast.conversations.ports import ConversationStore
from holdfast.conversations.reply_generator import ProviderResolver
from holdfast.core.checks import CheckLevel, CheckResult, check_inputs, fail, ok, warn
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.core.queue.message import AnyMessage


def chat_findings(
    env: Mapping[str, str] | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> Iterator[CheckResult]:
    """What doctor finds, one by one. Nothing is made, sent or left behind."""
    env = os.environ if env is None else env
    try:
        settings = chat_settings(env)
        triggers = trigger_settings(settings, env)
    except ConfigError as error:
        yield fail("settings", str(error), "mend it; nothing starts with this")
        return
    yield from _setting_findings(settings, env)
    yield from _lease_findings(settings.terms, [one.lease_seconds for one in triggers])
    yield from _store_findings(settings, clock)
    for channel, url in settings.queue_urls.items():
        yield from _queue_findings(f"{channel} queue", url, env, clock)
    if settings.inbound_queue is not None:
        yield from _queue_findings("inbound queue", settings.inbound_queue, env, clock)
    yield from _profile_findings(settings, env, clock)


# -- settings


def _setting_findings(settings: ChatSettings, env: Mapping[str, str]) -> Iterator[CheckResult]:
    known = {chat_variable(name) for name in ChatSettings.model_fields}
    unknown = sorted(n for n in env if n.startswith("HOLDFAST_CHAT_") and n not in known)
    if unknown:
        yield warn("settings", f"{', '.join(unknown)}: no such setting", "is it misspelt?")
    terms = settings.terms
    yield ok(
        "settings",
        f"a batch is answered {terms.window_seconds:g} to {terms.max_wait_seconds:g} s after "
        f"its first message; in doubt {terms.in_doubt}",
    )


def _lease_findings(terms: ConversationPolicy, leases: list[float]) -> Iterator[CheckResult]:
    """MS-27: after a crash the trigger comes back with its lease, and finds the lock."""
    shortest, longest, lock = min(leases), max(leases), terms.lock_seconds
    found = f"the lock holds {lock:g} s, triggers are leased for {shortest:g} s"
    if shortest < lock / 2:
        yield warn(
            "leases",
            f"{found}: after a crash a trigger comes back too early, for an attempt each time",
            f"set {chat_variable('lock_seconds')} near the lease of the queues",
        )
    elif longest > lock + terms.grace_seconds:
        yield warn(
            "leases",
            f"the lock holds {lock:g} s, triggers are leased for {longest:g} s: after a crash "
            "a conversation waits longer than it needs to",
            "make the lease of the queues as short as the lock: `?lease_seconds=` in the URL",
        )
    else:
        yield ok("leases", found)


# -- the store


def _store_findings(settings: ChatSettings, clock: Clock) -> Iterator[CheckResult]:
    url = settings.store_url
    file = file_of(url)
    if file is None:
        tables = list(check_inputs("table", chat_table_findings, url))
        yield from tables
        if any(one.level is CheckLevel.FAIL for one in tables):
            return  # the store would say the same again
    elif not file.exists():
        yield ok("store", f"{file} is not there yet; the first message makes it")
        return
    try:
        with open_conversations(url, clock=clock) as store:
            # A write, and there is no such conversation.
            store.set_status(ConversationKey("holdfast", "holdfast-doctor"), "")
            yield ok("store", f"{url} can be read and written")
            yield from _waiting_findings(store, settings.terms, clock.time())
    except HoldfastError as error:
        remedy = f"see {chat_variable('store')}, and who may write there"
        yield fail("store", f"{url}: {error}", remedy)


def _waiting_findings(
    store: ConversationStore, terms: ConversationPolicy, now: float
) -> Iterator[CheckResult]:
    ages = [now - one.oldest_staged_at for one in store.waiting()]
    late = sum(age > terms.max_wait_seconds + terms.grace_seconds for age in ages)
    if late:
        yield warn(
            "waiting",
            f"{late} conversations wait for a reply, the longest for {max(ages):.0f} s",
            "see that `holdfast chat work`, or the Lambda function, runs",
        )
    else:
        yield ok("waiting", f"{len(ages)} conversations, none for too long")
    parked = sum(1 for _ in store.parked())
    if parked:
        found = f"{parked} batches wait for a person"
        yield warn("parked", found, "`holdfast chat parked` says why")
    else:
        yield ok("parked", "nothing")


def chat_table_findings(url: str) -> Iterator[CheckResult]:
    """What doctor finds about the tables of a dynamodb: store."""
    from holdfast.adapters.aws.clients import patient
    from holdfast.adapters.aws.dynamodb.chat.doctor import examine as examine_tables

    return examine_tables(patient("dynamodb"), url.removeprefix("dynamodb:"))


def create_chat_tables(url: str) -> list[str]:
    """Make those that are not there; their names. Raises ConfigError, StoreUnavailable."""
    from holdfast.adapters.aws.clients import patient
    from holdfast.adapters.aws.dynamodb.chat.tables import create_tables

    return create_tables(patient("dynamodb"), url.removeprefix("dynamodb:"))


# -- queues


def _queue_findings(
    check: str, url: str, env: Mapping[str, str], clock: Clock
) -> Iterator[CheckResult]:
    if url.partition(":")[0].lower() in ("sqs", "http", "https"):
        for one in check_inputs("queue", lambda: examine(url, clock=clock, env=env)):
            yield CheckResult(f"{check}: {one.check}", one.level, one.found, one.remedy)
        return
    try:
        with open_queue(url, AnyMessage, create=False, clock=clock, env=env) as queue:
            stats = queue.stats()
    except ConfigError as error:
        yield fail(check, str(error), "mend it; nothing starts with this")
    except HoldfastError:
        yield ok(check, f"{url} is not there yet; the first message makes it")
    else:
        yield ok(check, f"{url}: {stats.ready} ready, {stats.delayed} delayed")
        if stats.failed:
            found = f"{stats.failed} dead letters"
            yield warn(check, found, f"`holdfast dead list {url}` says why")


# -- profiles


def _profile_findings(
    settings: ChatSettings, env: Mapping[str, str], clock: Clock
) -> Iterator[CheckResult]:
    if not settings.profiles:
        yield warn(
            "profiles",
            "there are none: who writes first has no conversation, and is parked",
            f"set {chat_variable('profiles')}, unless conversations are made elsewhere",
        )
    equipment = ProviderResolver(ChatProviders(settings, env, clock))
    for number, (address, profile) in enumerate(settings.profiles, 1):
        yield _profile_finding(f"profile {number}", address, profile, equipment)


def _profile_finding(
    check: str, address: str, profile: ConversationProfile, equipment: ProviderResolver
) -> CheckResult:
    """Its writer, sender and secrets are there. No secret is shown, and nobody is called."""
    try:
        equipment.writer(profile.ai_config)
        for key in _customers_of(address):
            equipment.sender(profile.channel_config, key)
    except HoldfastError as error:
        return fail(check, str(error), "mend the profile, or install or set what it needs")
    return ok(check, "its writer, its sender and their secrets are there")


def _customers_of(address: str) -> list[ConversationKey]:
    """Somebody of each channel that may write to it."""
    anybody: dict[Channel, Any] = {
        Channel.WHATSAPP: "whatsapp:somebody",
        Channel.SMS: "somebody",
        Channel.EMAIL: "somebody@example.org",
    }
    channels = list(Channel) if address == "*" else [Channel.of(address)]
    return [ConversationKey(anybody[channel], "holdfast-doctor") for channel in channels]
