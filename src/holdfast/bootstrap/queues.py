"""Open queues by their URL, and check them for doctor."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from holdfast.config.queue import QueueSettings, SqsSettings, read_queue_settings
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError
from holdfast.core.events import Events
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import AnyMessage, M

if TYPE_CHECKING:
    from holdfast.adapters.aws.sqs import SQSQueue as SQSQueue
    from holdfast.core.checks import CheckResult


def open_queue(
    url: str | os.PathLike[str],
    model: type[M] = AnyMessage,  # type: ignore[assignment]  # the default of M
    *,
    create: bool = True,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    env: Mapping[str, str] | None = None,
    **given: Any,
) -> QueueManager[M]:
    """Open the queue behind a URL. Code that uses it need not know which kind it is.

        enrich                        data/queues/default/enrich   (data: HOLDFAST_DATA_DIR)
        acme/enrich                   data/queues/acme/enrich
        ./work/acme/enrich            ./work/queues/acme/enrich
        file:/srv/work/acme/enrich    /srv/work/queues/acme/enrich
        sqs:enrich                    the SQS queue of that name, with the usual AWS settings
        https://sqs.…/1234/enrich     the SQS queue with that URL
        memory:                       in this process, for tests

    Settings (`lease_seconds`, `max_attempts`, `durability`, `dedupe`, `access`; for SQS
    `on_nack`, `group_by`, `dead_letters`) come from keywords, the URL's query
    (`enrich?lease_seconds=30`), or HOLDFAST_LEASE_SECONDS and so on.
    """
    scheme, rest = _split_scheme(os.fspath(url))
    path, _, text = rest.partition("?")
    query = dict(parse_qsl(text, keep_blank_values=True))
    env = os.environ if env is None else env
    match scheme:
        case "file":
            settings = read_queue_settings(env, query, given, QueueSettings)
            return _open_file_queue(path, model, settings, create, clock, events)
        case "sqs":
            return _open_sqs_queue(
                path, model, _read_sqs_settings(env, query, given), clock, events
            )
        case "http" | "https":
            address = f"{scheme}:{path}"
            return _open_sqs_queue(
                address, model, _read_sqs_settings(env, query, given), clock, events
            )
        case "memory":
            settings = read_queue_settings(env, query, given, QueueSettings)
            return _open_memory_queue(path, model, settings, clock, events)
        case _:
            raise ConfigError(
                f"no queue for {scheme}: URLs; use a path, file:ROOT/CAMPAIGN/QUEUE, "
                "sqs:NAME, the URL of an SQS queue, or memory:"
            )


def _read_sqs_settings(
    env: Mapping[str, str], query: Mapping[str, str], given: Mapping[str, Any]
) -> SqsSettings:
    return read_queue_settings(env, query, given, SqsSettings)


def _split_scheme(url: str) -> tuple[str, str]:
    head, colon, rest = url.partition(":")
    if not colon or not head.isalnum():
        return "file", url
    return head.lower(), unquote(rest)


def _open_file_queue(
    path: str,
    model: type[M],
    settings: QueueSettings,
    create: bool,
    clock: Clock,
    events: Events | None,
) -> QueueManager[M]:
    from holdfast.adapters.local.filesystem import FilesystemQueue

    root, campaign, queue = parse_queue_address(path, settings.data_dir)
    return FilesystemQueue(
        root,
        model,
        campaign=campaign,
        queue=queue,
        lease_seconds=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        durability=settings.durability,
        dedupe=settings.dedupe,
        access=settings.access,
        create=create,
        clock=clock,
        events=events,
    )


def _open_sqs_queue(
    address: str,
    model: type[M],
    settings: SqsSettings,
    clock: Clock,
    events: Events | None,
    client: Any = None,
) -> "SQSQueue[M]":
    from holdfast.adapters.aws.sqs import SQSQueue

    return SQSQueue(
        address,
        model,
        lease_seconds=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        dedupe=settings.dedupe,
        on_nack=settings.on_nack,
        group_by=settings.group_by,
        dead_letters=settings.dead_letters,
        client=client,
        clock=clock,
        events=events,
    )


def make_queue_opener(
    model: type[M],
    *,
    answer_seconds: float,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    env: Mapping[str, str] | None = None,
    **given: Any,
) -> "Callable[[str], SQSQueue[M]]":
    """Return a function that opens an SQS queue by its ARN, its URL or its name.

    It opens the queue of a Lambda event source. Settings are those of open_queue and are
    checked now. A call to SQS fails if no response comes within `answer_seconds`. Without
    `events`, events go to the application's log.
    """
    settings = _read_sqs_settings(os.environ if env is None else env, {}, given)

    def open_source(address: str) -> "SQSQueue[M]":
        from holdfast.adapters.aws.sqs.event_source import make_client_and_address
        from holdfast.adapters.observe.logging import EventLog

        client, name = make_client_and_address(address.removeprefix("sqs:"), answer_seconds)
        observed = Events(EventLog()) if events is None else events
        return _open_sqs_queue(name, model, settings, clock, observed, client)

    return open_source


def _open_memory_queue(
    name: str, model: type[M], settings: QueueSettings, clock: Clock, events: Events | None
) -> QueueManager[M]:
    from holdfast.testing.memory_queue import MemoryQueue

    return MemoryQueue(
        model,
        name=name or "memory",
        lease_seconds=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        dedupe=settings.dedupe,
        clock=clock,
        events=events,
    )


def parse_queue_address(path: str, data_dir: str) -> tuple[str, str, str]:
    """Return (root, campaign, queue) of a path, which may also be the queue's own folder."""
    while path.startswith("//"):  # browsers write file:///srv/…
        path = path[1:]
    parts = PurePosixPath(path).parts
    if not parts:
        raise ConfigError("the queue needs a name, for example 'enrich' or 'acme/enrich'")
    *above, queue = parts
    campaign = above.pop() if above and above[-1] != "/" else "default"
    if above and above[-1] == "queues":  # the path is the queue's own folder
        above.pop()
    root = str(PurePosixPath(*above)) if above else data_dir
    return root, campaign, queue


def examine_queue(
    url: str | os.PathLike[str],
    *,
    clock: Clock = SYSTEM_CLOCK,
    env: Mapping[str, str] | None = None,
) -> "Iterator[CheckResult]":
    """Check a queue for doctor, and return the results one by one.

    The queue need not exist yet. Raises ConfigError if this kind of queue has no checks.
    """
    scheme, rest = _split_scheme(os.fspath(url))
    path, _, text = rest.partition("?")
    query = dict(parse_qsl(text, keep_blank_values=True))
    env = os.environ if env is None else env
    match scheme:
        case "file":
            settings = read_queue_settings(env, query, {}, QueueSettings)
            return _check_folder(path, settings, clock)
        case "sqs":
            return _check_sqs(path, _read_sqs_settings(env, query, {}), clock)
        case "http" | "https":
            return _check_sqs(f"{scheme}:{path}", _read_sqs_settings(env, query, {}), clock)
        case _:
            raise ConfigError(
                f"doctor can check folders and SQS queues, but not {scheme}: URLs"
            )


def _check_folder(path: str, settings: QueueSettings, clock: Clock) -> "Iterator[CheckResult]":
    from holdfast.adapters.local.filesystem.doctor import FilesystemDoctor
    from holdfast.adapters.local.filesystem.layout import get_queue_folder

    root, campaign, queue = parse_queue_address(path, settings.data_dir)
    return FilesystemDoctor(
        get_queue_folder(Path(root), campaign, queue), clock=clock
    ).examine()


def _check_sqs(address: str, settings: SqsSettings, clock: Clock) -> "Iterator[CheckResult]":
    from holdfast.adapters.aws.sqs.doctor import SQSDoctor

    return SQSDoctor(
        address,
        lease_seconds=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        dead_letters=settings.dead_letters,
        clock=clock,
    ).examine()
