"""Open queues by their URL."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.event_log import EventLog
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import AnyMessage, M, Message, P, to_message_model
from holdfast.queues.settings import QueueOptions, QueueSettings, SqsSettings
from holdfast.settings import read_settings
from holdfast.telemetry.setup import make_telemetry, trace_queue
from holdfast.urls import QUEUES, Url, parse_url, split_database_path
from holdfast.variables import QUEUE_VARIABLE, find_misspelt

if TYPE_CHECKING:
    from holdfast.queues.sqs import SQSQueue as SQSQueue


class OpenOptions(QueueOptions, total=False):
    """The keywords of `open_queue`."""

    create: bool
    clock: Clock
    events: Events | None
    env: Mapping[str, str] | None


QueueUrl = str | os.PathLike[str]


@overload
def open_queue(
    url: QueueUrl | None = None, **options: Unpack[OpenOptions]
) -> QueueManager[AnyMessage]: ...


@overload
def open_queue(
    url: QueueUrl | None = None, model: type[M] = ..., **options: Unpack[OpenOptions]
) -> QueueManager[M]: ...


@overload
def open_queue(
    url: QueueUrl | None = None, model: type[P] = ..., **options: Unpack[OpenOptions]
) -> QueueManager[Message[P]]: ...


def open_queue(
    url: QueueUrl | None = None,
    model: type[Any] = AnyMessage,
    *,
    create: bool = True,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    env: Mapping[str, str] | None = None,
    **given: Any,
) -> QueueManager[Any]:
    """Open the queue behind a URL. Code that uses it need not know which kind it is.

    Without a URL it is that of HOLDFAST_QUEUE, so configuration alone chooses the queue.
    `model` is the type of its messages: a QueueMessage, or a dataclass or pydantic model of
    your own, which is then the payload of each message.

        enrich                        data/queues/default/enrich   (data: HOLDFAST_DATA_DIR)
        acme/enrich                   data/queues/acme/enrich
        ./work/acme/enrich            ./work/queues/acme/enrich
        file:/srv/work/acme/enrich    /srv/work/queues/acme/enrich
        sqlite:work.db                the queue "default" in the SQLite file work.db
        sqlite:/srv/work.db/enrich    the queue "enrich" there, or sqlite:…/acme/enrich
        sqs:enrich                    the SQS queue of that name, with the usual AWS settings
        https://sqs.…/1234/enrich     the SQS queue with that URL
        memory:                       in this process, for tests

    Settings (`lease_seconds`, `max_attempts`, `backoff`, `durability`, `dedupe`, `access`;
    for SQS `on_nack`, `group_by`, `dead_letters`) come from keywords, the URL's query
    (`enrich?lease_seconds=30`), or HOLDFAST_LEASE_SECONDS and so on.
    """
    env = os.environ if env is None else env
    parsed = parse_url(resolve_queue_url(url, env), QUEUES)
    kind = SqsSettings if parsed.scheme == "sqs" else QueueSettings
    settings = read_settings(kind, env, parsed.options, given)
    opened = _open(
        parsed, to_message_model(model), settings, create, clock=clock, events=events
    )
    return trace_queue(opened, env)


def _open(
    parsed: Url, model: type[M], settings: QueueSettings, create: bool, **connection: Any
) -> QueueManager[M]:
    options = {name: value for name, value in settings if name != "data_dir"} | connection
    if parsed.scheme in ("sqs", "memory"):  # they have one durability and one access
        del options["durability"], options["access"]
    match parsed.scheme:
        case "sqs":
            from holdfast.queues.sqs import SQSQueue

            return SQSQueue(parsed.path, model, **options)
        case "memory":
            from holdfast.queues.sqlite.memory_queue import MemoryQueue

            return MemoryQueue(model, name=parsed.path or "memory", **options)
        case "sqlite":
            from holdfast.queues.sqlite.queue import SQLiteQueue

            file, name = split_database_path(parsed.path)
            return SQLiteQueue(file, model, queue=name, create=create, **options)
    from holdfast.queues.files import FilesystemQueue

    root, campaign, queue = parse_queue_address(parsed.path, settings.data_dir)
    return FilesystemQueue(
        root, model, campaign=campaign, queue=queue, create=create, **options
    )


def resolve_queue_url(url: QueueUrl | None, env: Mapping[str, str]) -> str:
    """Return the given URL, or else that of HOLDFAST_QUEUE. Raises ConfigError for none."""
    if url is not None:
        return os.fspath(url)
    if variable := env.get(QUEUE_VARIABLE):
        return variable
    hint = f"pass its URL, such as 'sqlite:work.db', or set {QUEUE_VARIABLE}"
    raise ConfigError(f"no queue is given: {'; '.join([hint, *find_misspelt(env)])}")


def make_queue_opener(
    model: type[M],
    *,
    answer_seconds: float,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    env: Mapping[str, str] | None = None,
    **given: Unpack[QueueOptions],
) -> "Callable[[str], SQSQueue[M]]":
    """Return a function that opens an SQS queue by its ARN, its URL or its name.

    It opens the queue of a Lambda event source. Settings are those of open_queue and are
    checked now. A call to SQS fails if no response comes within `answer_seconds`. Without
    `events`, events go to the application's log, and to the metrics that the environment
    asks for.
    """
    env = os.environ if env is None else env
    settings = read_settings(SqsSettings, env, given=given)
    telemetry = make_telemetry(env) if events is None else []

    def open_source(address: str) -> "SQSQueue[M]":
        from holdfast.queues.sqs.address import make_client_and_address

        client, name = make_client_and_address(address.removeprefix("sqs:"), answer_seconds)
        observed = (
            Events(EventLog(min_level=logging.INFO), *telemetry) if events is None else events
        )
        connection = {"clock": clock, "events": observed, "client": client}
        queue = _open(Url("sqs", name), model, settings, create=False, **connection)
        return cast("SQSQueue[M]", trace_queue(queue, env))

    return open_source


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


def find_queue_path(
    url: str | os.PathLike[str], env: Mapping[str, str] | None = None
) -> Path | None:
    """Return the folder or the database of a local queue, or None for any other queue."""
    parsed = parse_url(os.fspath(url), QUEUES)
    if parsed.scheme == "sqlite":
        return split_database_path(parsed.path)[0]
    if parsed.scheme != "file":
        return None
    from holdfast.queues.files.layout import get_queue_folder

    settings = read_settings(QueueSettings, os.environ if env is None else env, parsed.options)
    root, campaign, queue = parse_queue_address(parsed.path, settings.data_dir)
    return get_queue_folder(Path(root), campaign, queue)
