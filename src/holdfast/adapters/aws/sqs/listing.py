"""The names of an account's queues."""

from collections.abc import Iterator
from typing import Any

from holdfast.adapters.aws.errors import get_client_errors, translate_error

_PAGE = 1000  # the most that SQS returns at once


def list_queue_names(prefix: str, client: Any) -> Iterator[str]:
    """Yield the names that begin with `prefix`. Raises ConfigError and QueueUnavailable."""
    request = {"QueueNamePrefix": prefix} if prefix else {}
    pages = client.get_paginator("list_queues").paginate(
        PaginationConfig={"PageSize": _PAGE}, **request
    )
    try:
        for page in pages:
            for url in page.get("QueueUrls", ()):
                yield url.rpartition("/")[2]
    except get_client_errors() as error:
        raise translate_error(f"queues of 'sqs:{prefix}'", error) from error
