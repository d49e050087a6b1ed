"""The composition root: the only place that names an adapter."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote

from holdfast.config import QueueSettings, queue_settings
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError
from holdfast.core.events import Events, Subscriber
from holdfast.core.message import AnyMessage, M
from holdfast.core.queue import QueueManager

if TYPE_CHECKING:
    from holdfast.adapters.local.filesystem.doctor import Finding as Finding
    from holdfast.adapters.observe.metrics import MetricsServer as MetricsServer


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
        memory:                       in this process, for tests

    Settings (`lease_seconds`, `max_attempts`, `durability`, `dedupe`) come from keywords,
    the URL's query (`enrich?lease_seconds=30`), or HOLDFAST_LEASE_SECONDS and so on.
    """
    scheme, rest = _scheme(os.fspath(url))
    path, _, query = rest.partition("?")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    settings = queue_settings(os.environ if env is None else env, asked, given)
    match scheme:
        case "file":
            return _file_queue(path, model, settings, create, clock, events)
        case "memory":
            return _memory_queue(path, model, settings, clock, events)
        case _:
            raise ConfigError(
                f"no queue for {scheme}: URLs; use a path, file:ROOT/CAMPAIGN/QUEUE or memory:"
            )


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
        create=create,
        clock=clock,
        events=events,
    )


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
) -> "Iterator[Finding]":
    """What doctor finds about a queue, which need not exist yet; one by one."""
    scheme, rest = _scheme(os.fspath(url))
    if scheme != "file":
        raise ConfigError(f"doctor looks at folders; there is nothing to look at in {scheme}:")
    from holdfast.adapters.local.filesystem.doctor import Doctor
    from holdfast.adapters.local.filesystem.layout import queue_folder

    path, _, query = rest.partition("?")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    settings = queue_settings(os.environ if env is None else env, asked, {})
    root, campaign, queue = queue_address(path, settings.data_dir)
    return Doctor(queue_folder(Path(root), campaign, queue), clock=clock).examine()


def log_events(
    write_line: Callable[[str], None],
    style: Literal["text", "json"] = "text",
    *,
    at_least: str = "info",
) -> Subscriber:
    """A subscriber that makes one line of each event."""
    import logging

    from holdfast.adapters.observe.logging import line_log

    level = logging.getLevelNamesMapping()[at_least.upper()]
    return line_log(write_line, style, at_least=level)


def serve_metrics(port: int, host: str = "127.0.0.1") -> "MetricsServer":
    """Prometheus metrics at http://host:port/metrics; subscribe its `subscriber`."""
    from holdfast.adapters.observe.metrics import MetricsServer

    return MetricsServer(port, host)
