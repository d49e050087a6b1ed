"""DynamoDB clients with faults, each of which wraps a real client.

They take the place of the network and the service. No code of Holdfast is replaced.
"""

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

READS = {"get_item", "batch_get_item", "query", "scan"}


class RecordingClient:
    """A client that forwards every call and records it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.calls.append((operation, arguments))
            return self.respond(operation, arguments)

        return call

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Call the real client and return its response."""
        return getattr(self.client, operation)(**arguments)

    def list_calls(self, *operations: str) -> list[dict[str, Any]]:
        """Return the arguments of all calls of these operations."""
        return [arguments for name, arguments in self.calls if name in operations]


class SingleRowClient(RecordingClient):
    """A client that returns pages of one row, and one key of each batch."""

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation == "query":
            return self.client.query(**{**arguments, "Limit": 1})
        if operation == "batch_get_item":
            return self._first_key(arguments["RequestItems"])
        return super().respond(operation, arguments)

    def _first_key(self, request: Mapping[str, Any]) -> Any:
        [(table, keys)] = request.items()
        first, *others = keys["Keys"]
        response = self.client.batch_get_item(RequestItems={table: {**keys, "Keys": [first]}})
        unprocessed = {table: {**keys, "Keys": others}} if others else {}
        return {**response, "UnprocessedKeys": unprocessed}


class ResponseLosingClient(RecordingClient):
    """A client that makes writes and then loses the response, as often as configured."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.responses_to_lose = 0

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        response = super().respond(operation, arguments)
        if self.responses_to_lose and operation not in READS:
            self.responses_to_lose -= 1
            raise ReadTimeoutError(endpoint_url="https://dynamodb.example")
        return response


class RepeatingClient(RecordingClient):
    """A client that loses the first response of each write and repeats it, as botocore does."""

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation in ("put_item", "update_item"):
            super().respond(operation, arguments)
        return super().respond(operation, arguments)


class FailingClient(RecordingClient):
    """A client that raises errors, one after the other, before it makes any call."""

    def __init__(self, client: Any, *errors: Exception, only: str | None = None) -> None:
        super().__init__(client)
        self.errors = list(errors)
        self.only = only

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if self.errors and self.only in (None, operation):
            raise self.errors.pop(0)
        return super().respond(operation, arguments)


class StaleIndexClient(RecordingClient):
    """A client whose index does not change after the first query."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.page: Any = None

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation != "query":
            return super().respond(operation, arguments)
        self.page = self.page or super().respond(operation, arguments)
        return self.page


class InterleavingClient(RecordingClient):
    """A client that lets another writer go first, right before the first write."""

    def __init__(self, client: Any, other_writer: Callable[[], object]) -> None:
        super().__init__(client)
        self.other_writer: Callable[[], object] | None = other_writer

    def respond(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation not in READS and (other_writer := self.other_writer):
            self.other_writer = None
            other_writer()
        return super().respond(operation, arguments)


def make_error(code: str, status: int = 400, **more: Any) -> ClientError:
    """Return an error of the service, in the form that botocore gives it."""
    response = {
        "Error": {"Code": code, "Message": "text of the service"},
        "ResponseMetadata": {"HTTPStatusCode": status},
        **more,
    }
    return ClientError(response, "SomeCall")


def make_cancellation(*codes: str) -> ClientError:
    """Return the error of a cancelled transaction with these codes."""
    reasons = [{"Code": code} for code in codes]
    return make_error("TransactionCanceledException", CancellationReasons=reasons)
