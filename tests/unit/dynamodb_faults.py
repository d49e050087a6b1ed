"""DynamoDB clients that misbehave: each wraps a real client and gets one thing wrong.

They stand where the network and the service stand; nothing of ours is replaced.
"""

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

READS = {"get_item", "batch_get_item", "query", "scan"}


class Client:
    """Passes every call on, and takes note of it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.calls.append((operation, arguments))
            return self.answer(operation, arguments)

        return call

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        return getattr(self.client, operation)(**arguments)

    def made(self, *operations: str) -> list[dict[str, Any]]:
        return [arguments for name, arguments in self.calls if name in operations]


class OneRowAtATime(Client):
    """Pages of one row, and batches of which one key is answered."""

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation == "query":
            return self.client.query(**{**arguments, "Limit": 1})
        if operation == "batch_get_item":
            return self._first_key(arguments["RequestItems"])
        return super().answer(operation, arguments)

    def _first_key(self, request: Mapping[str, Any]) -> Any:
        [(table, asked)] = request.items()
        first, *others = asked["Keys"]
        answer = self.client.batch_get_item(RequestItems={table: {**asked, "Keys": [first]}})
        left = {table: {**asked, "Keys": others}} if others else {}
        return {**answer, "UnprocessedKeys": left}


class LosesAnswers(Client):
    """Does what it is asked to write, and then says nothing, as often as it is told."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.to_lose = 0

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        answer = super().answer(operation, arguments)
        if self.to_lose and operation not in READS:
            self.to_lose -= 1
            raise ReadTimeoutError(endpoint_url="https://dynamodb.example")
        return answer


class TriesAgain(Client):
    """Loses the first answer of each write and returns the second, as botocore does."""

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation in ("put_item", "update_item"):
            super().answer(operation, arguments)
        return super().answer(operation, arguments)


class Refuses(Client):
    """Answers with errors, one after the other, before it does anything."""

    def __init__(self, client: Any, *errors: Exception, only: str | None = None) -> None:
        super().__init__(client)
        self.errors = list(errors)
        self.only = only

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if self.errors and self.only in (None, operation):
            raise self.errors.pop(0)
        return super().answer(operation, arguments)


class StaleIndex(Client):
    """Its index stands still from the first query on."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.page: Any = None

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation != "query":
            return super().answer(operation, arguments)
        self.page = self.page or super().answer(operation, arguments)
        return self.page


class Meanwhile(Client):
    """Lets somebody else go first, right before the first write."""

    def __init__(self, client: Any, somebody: Callable[[], object]) -> None:
        super().__init__(client)
        self.somebody: Callable[[], object] | None = somebody

    def answer(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation not in READS and (somebody := self.somebody):
            self.somebody = None
            somebody()
        return super().answer(operation, arguments)


def error(code: str, status: int = 400, **more: Any) -> ClientError:
    """What the service answers, in the shape that botocore gives it."""
    response = {
        "Error": {"Code": code, "Message": "said by the service"},
        "ResponseMetadata": {"HTTPStatusCode": status},
        **more,
    }
    return ClientError(response, "SomeCall")


def cancelled(*codes: str) -> ClientError:
    reasons = [{"Code": code} for code in codes]
    return error("TransactionCanceledException", CancellationReasons=reasons)
