"""The names of an account's queues."""

from collections.abc import Iterator
from typing import Any

from holdfast.aws.checked_call import call_checked
from holdfast.aws.errors import get_client_errors, translate_error

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
