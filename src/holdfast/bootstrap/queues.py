"""Queues by their URL, and what doctor finds about them."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from holdfast.config.settings import QueueSettings, SqsSettings, queue_settings
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
    model: type[M] = AnyMessage,  # type: ignore[assignment]  # what M is by default
    *,
    create: bool = True,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    env: Mapping[str, str] | None = None,
    **given: Any,
) -> QueueManager[M]:
    """The queue behind a URL; code that uses it need not know which kind it is.

        enrich                        data/queues/default/enrich   (data: HOLDFAST_DATA_DIR)
        acme/enrich                   data/queues/acme/enrich
        ./work/acme/enrich            ./work/queues/acme/enrich
        file:/srv/work/acme/enrich    /srv/work/queues/acme/enrich
        sqs:enrich                    the SQS queue of that name, by the usual AWS settings
        https://sqs.…/1234/enrich     the SQS queue with that URL
        memory:                       in this process, for tests

    Settings (`lease_seconds`, `max_attempts`, `durability`, `dedupe`, `access`; for SQS
    `on_nack`, `group_by`, `dead_letters`) come from keywords, the URL's query
    (`enrich?lease_seconds=30`), or HOLDFAST_LEASE_SECONDS and so on.
    """
    scheme, rest = _scheme(os.fspath(url))
    path, _, query = rest.partition("?")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    env = os.environ if env is None else env
    match scheme:
        case "file":
            settings = queue_settings(env, asked, given, QueueSettings)
            return _file_queue(path, model, settings, create, clock, events)
        case "sqs":
            return _sqs_queue(path, model, _sqs_settings(env, asked, given), clock, events)
        case "http" | "https":
            address = f"{scheme}:{path}"
            return _sqs_queue(address, model, _sqs_settings(env, asked, given), clock, events)
        case "memory":
            settings = queue_settings(env, asked, given, QueueSettings)
            return _memory_queue(path, model, settings, clock, events)
        case _:
            raise ConfigError(
                f"no queue for {scheme}: URLs; use a path, file:ROOT/CAMPAIGN/QUEUE, "
                "sqs:NAME, the URL of an SQS queue, or memory:"
            )


def _sqs_settings(
    env: Mapping[str, str], asked: Mapping[str, str], given: Mapping[str, Any]
) -> SqsSettings:
    return queue_settings(env, asked, given, SqsSettings)


def _scheme(url: str) -> tuple[str, str]:
    head, colon, rest = url.partition(":")
    if not colon or not head.isalnum():
        return "file", url
    return head.lower(), unquote(rest)


def _file_queue(
    path: str,
    model: type[M],
    settings: QueueSettings,
    create: bool,
    clock: Clock,
    events: Events | None,
) -> QueueManager[M]:
    from holdfast.adapters.local.filesystem import FilesystemQueue

    root, campaign, queue = queue_address(path, settings.data_dir)
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


def _sqs_queue(
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


def event_source(
    model: type[M],
    *,
    answer_seconds: float,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    env: Mapping[str, str] | None = None,
    **given: Any,
) -> "Callable[[str], SQSQueue[M]]":
    """Opens the queue of a Lambda event source: by its ARN, its URL or its name.

    Settings as for open_queue, checked now. A call to SQS that is not answered within
    `answer_seconds` fails. Without `events` they are logged.
    """
    settings = _sqs_settings(os.environ if env is None else env, {}, given)

    def opened(where: str) -> "SQSQueue[M]":
        from holdfast.adapters.aws.sqs.event_source import client_and_address
        from holdfast.adapters.observe.logging import EventLog

        client, address = client_and_address(where.removeprefix("sqs:"), answer_seconds)
        heard = Events(EventLog()) if events is None else events
        return _sqs_queue(address, model, settings, clock, heard, client)

    return opened


def _memory_queue(
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


def queue_address(path: str, data_dir: str) -> tuple[str, str, str]:
    """(root, campaign, queue) of a path. The queue's own folder is understood too."""
    while path.startswith("//"):  # file:///srv/… as browsers write it
        path = path[1:]
    parts = PurePosixPath(path).parts
    if not parts:
        raise ConfigError("the queue needs a name, for example 'enrich' or 'acme/enrich'")
    *above, queue = parts
    campaign = above.pop() if above and above[-1] != "/" else "default"
    if above and above[-1] == "queues":  # somebody named the folder itself
        above.pop()
    root = str(PurePosixPath(*above)) if above else data_dir
    return root, campaign, queue


def examine(
    url: str | os.PathLike[str],
    *,
    clock: Clock = SYSTEM_CLOCK,
    env: Mapping[str, str] | None = None,
) -> "Iterator[CheckResult]":
    """What doctor finds about a queue, which need not exist yet; one by one."""
    scheme, rest = _scheme(os.fspath(url))
    path, _, query = rest.partition("?")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    env = os.environ if env is None else env
    match scheme:
        case "file":
            settings = queue_settings(env, asked, {}, QueueSettings)
            return _folder_findings(path, settings, clock)
        case "sqs":
            return _sqs_findings(path, _sqs_settings(env, asked, {}), clock)
        case "http" | "https":
            return _sqs_findings(f"{scheme}:{path}", _sqs_settings(env, asked, {}), clock)
        case _:
            raise ConfigError(
                f"doctor looks at folders and at SQS; there is nothing to look at in {scheme}:"
            )


def _folder_findings(
    path: str, settings: QueueSettings, clock: Clock
) -> "Iterator[CheckResult]":
    from holdfast.adapters.local.filesystem.doctor import FilesystemDoctor
    from holdfast.adapters.local.filesystem.layout import queue_folder

    root, campaign, queue = queue_address(path, settings.data_dir)
    return FilesystemDoctor(queue_folder(Path(root), campaign, queue), clock=clock).examine()


def _sqs_findings(address: str, settings: SqsSettings, clock: Clock) -> "Iterator[CheckResult]":
    from holdfast.adapters.aws.sqs.doctor import SQSDoctor

    return SQSDoctor(
        address,
        lease_seconds=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        dead_letters=settings.dead_letters,
        clock=clock,
    ).examine()
