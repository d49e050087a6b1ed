"""Check a queue of any kind."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.doctor.checks import CheckResult
from holdfast.errors import ConfigError
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.opening import parse_queue_address
from holdfast.queues.settings import QueueSettings, SqsSettings
from holdfast.settings import read_settings
from holdfast.urls import QUEUES, parse_url, split_database_path


def examine_queue(
    url: str | os.PathLike[str],
    *,
    clock: Clock = SYSTEM_CLOCK,
    env: Mapping[str, str] | None = None,
) -> Iterator[CheckResult]:
    """Check a queue for doctor, and return the results one by one.

    The queue need not exist yet. Raises ConfigError if this kind of queue has no checks.
    """
    parsed = parse_url(os.fspath(url), QUEUES)
    env = os.environ if env is None else env
    if parsed.scheme == "memory":
        raise ConfigError(
            "doctor can check folders, SQLite files and SQS queues, but not memory: URLs"
        )
    if parsed.scheme == "sqs":
        from holdfast.doctor.sqs_queue import examine_sqs_queue

        sqs = read_settings(SqsSettings, env, parsed.options)
        return examine_sqs_queue(parsed.path, sqs, clock=clock)
    settings = read_settings(QueueSettings, env, parsed.options)
    if parsed.scheme == "sqlite":
        from holdfast.doctor.sqlite_queue import examine_sqlite_queue

        return examine_sqlite_queue(*split_database_path(parsed.path), clock=clock)
    from holdfast.doctor.file_queue import examine_file_queue
    from holdfast.doctor.filesystem import FileQueue
    from holdfast.queues.files.layout import get_queue_folder

    root, campaign, queue = parse_queue_address(parsed.path, settings.data_dir)
    return examine_file_queue(FileQueue(get_queue_folder(Path(root), campaign, queue), clock))
