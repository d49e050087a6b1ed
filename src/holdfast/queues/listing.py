"""List the queues of a data folder, a database or an AWS account, with their counts."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from holdfast.aws.checked_call import call_checked
from holdfast.aws.errors import get_client_errors, translate_error
from holdfast.errors import ConfigError, HoldfastError, QueueUnavailable
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.info import QueueStats
from holdfast.queue.manager import QueueManager
from holdfast.queues.settings import QueueSettings
from holdfast.settings import read_settings
from holdfast.urls import QUEUES, parse_url, split_database_path


@dataclass(frozen=True, slots=True)
class ListedQueue:
    """A queue: the URL that opens it, and its counts, or why it cannot be counted."""

    url: str
    stats: QueueStats | None
    problem: str | None = None


def list_queues(
    place: str = "",
    *,
    clock: Clock = SYSTEM_CLOCK,
    env: Mapping[str, str] | None = None,
) -> Iterator[ListedQueue]:
    """List the queues of a place, in the order of their names. Nothing is created.

        (empty)           the folder of HOLDFAST_DATA_DIR, or data
        work, file:work   another data folder
        sqlite:work.db    the queues in this file
        sqs:, sqs:acme-   the queues of the account and region, all or those with this prefix

    Raises ConfigError, and QueueUnavailable if the place does not exist.
    """
    env = os.environ if env is None else env
    parsed = parse_url(place, QUEUES)
    settings = read_settings(QueueSettings, env, parsed.options)
    match parsed.scheme:
        case "sqlite":
            return _list_database(parsed.path, clock)
        case "sqs":
            return _list_account(parsed.path)
        case "memory":
            raise ConfigError("memory: queues exist in their own process only")
        case _:
            return _list_folder(parsed.path, settings.data_dir)


def _list_folder(path: str, data_dir: str) -> Iterator[ListedQueue]:
    from holdfast.queues.files import FilesystemQueue

    root = Path(path or data_dir)
    if not root.is_dir():
        shown = repr(str(root))
        problem = f"{shown} is a file" if root.exists() else f"there is no data folder {shown}"
        raise QueueUnavailable(f"{problem}: check the path, or push to a queue first")
    for folder in sorted(root.glob("queues/*/*/pending")):
        campaign, queue = folder.parent.parts[-2:]
        name = f"{campaign}/{queue}"
        url = f"{path.rstrip('/')}/{name}" if path else name
        opener = partial(FilesystemQueue, root, campaign=campaign, queue=queue, create=False)
        yield _count(url, opener)


def _list_database(path: str, clock: Clock) -> Iterator[ListedQueue]:
    from holdfast.queues.sqlite.inspection import count_queues

    file, _ = split_database_path(path)
    if PurePosixPath(path).name != file.name:
        raise ConfigError(f"give a database, as in `holdfast queues sqlite:{file}`")
    for name, stats in count_queues(file, clock).items():
        yield ListedQueue(f"sqlite:{file}/{name}", stats)


def _list_account(prefix: str) -> Iterator[ListedQueue]:
    from holdfast.aws.clients import make_retrying_client
    from holdfast.queues.sqs import SQSQueue

    if "/" in prefix:
        raise ConfigError("give the beginning of names, as in `holdfast queues sqs:acme-`")
    client = make_retrying_client("sqs")  # one for all, because making one takes a while
    for name in sorted(list_queue_names(prefix, client)):
        yield _count(f"sqs:{name}", partial(SQSQueue, name, client=client))


def _count(url: str, open_one: Callable[[], QueueManager[Any]]) -> ListedQueue:
    try:
        with open_one() as queue:
            return ListedQueue(url, queue.stats())
    except HoldfastError as error:  # one bad queue must not hide the others
        return ListedQueue(url, None, str(error))


_PAGE = 1000  # the most that SQS returns at once


def list_queue_names(prefix: str, client: Any) -> Iterator[str]:
    """Yield the names that begin with `prefix`. Raises ConfigError and QueueUnavailable."""
    request: dict[str, Any] = {"QueueNamePrefix": prefix} if prefix else {}
    while True:
        try:
            page = call_checked(client, "list_queues", MaxResults=_PAGE, **request)
        except get_client_errors() as error:
            raise translate_error(f"queues of 'sqs:{prefix}'", error) from error
        for url in page.get("QueueUrls", ()):
            yield url.rpartition("/")[2]
        if (token := page.get("NextToken")) in (None, request.get("NextToken")):
            return
        request["NextToken"] = token
