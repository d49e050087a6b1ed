"""Call DynamoDB with one client per process, retries for transient faults, and clear errors.

A condition that does not hold is an expected result, so calls with a condition return
`ConditionFailed` with the current row. The exception itself ends here, because it contains that
row, and the row contains the task token.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Any

from holdfast.aws import clients
from holdfast.aws.checked_call import call_checked
from holdfast.aws.errors import get_client_errors, get_error_code
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.lease import after_fork
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import Clock
from holdfast.store.dynamodb import errors
from holdfast.store.dynamodb.values import Attributes, decode

_MAX_TRIES = 9  # about 8 seconds in total
_MAX_BATCH_KEYS = 100  # DynamoDB's limit for one BatchGetItem
_MAX_BATCH_WRITES = 25  # DynamoDB's limit for one BatchWriteItem
_BACKOFF = Backoff(first_seconds=0.05, max_seconds=2.0)


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The write was done. `row` is what the call was asked to return, if anything."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConditionFailed:
    """The condition did not hold and nothing was changed. `row` is empty if there is no row."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TransactionCancelled:
    """No write of the transaction was done. `reasons` has one entry per write, None for a write
    that was not at fault.
    """

    reasons: tuple[ConditionFailed | None, ...]


class DynamoDBClient:
    """A client that threads may share; a forked child connects again."""

    def __init__(self, client: Any, clock: Clock, *, tables_command: str) -> None:
        self._given_client = client
        self._tables_command = tables_command
        self._clock = clock
        self._reset()
        after_fork.run_after_fork(self, DynamoDBClient._reset)

    def _reset(self) -> None:
        self._client = self._given_client
        self._connecting = Lock()
        self._random = Random()

    @property
    def client(self) -> Any:
        """Return the client and create it on first use."""
        with self._connecting:  # otherwise every thread would create its own client
            if self._client is None:
                self._client = clients.make_retrying_client("dynamodb")
            return self._client

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        if self._client is not None and self._client is not self._given_client:
            self._client.close()
        self._reset()

    # -- reading

    def call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Call an operation without a condition and return its response."""
        response: Mapping[str, Any] = self._retry_while_busy(
            lambda: self._call_once(operation, arguments)
        )
        return response

    def get(self, table: str, key: Attributes) -> dict[str, Any]:
        """Return the current row, or an empty one if there is none."""
        response = self.call("get_item", TableName=table, Key=key, ConsistentRead=True)
        return decode(response.get("Item"))

    def read_pages(self, operation: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield every row of every page. An empty page may be followed by others."""
        while True:
            response = self.call(operation, **arguments)
            yield from map(decode, response.get("Items", []))
            if not (last_key := response.get("LastEvaluatedKey")):
                return
            arguments["ExclusiveStartKey"] = last_key

    def read_rows(self, table: str, keys: list[Attributes]) -> list[dict[str, Any]]:
        """Return the current rows of these keys, in any order and without missing ones."""
        rows: list[dict[str, Any]] = []
        for start in range(0, len(keys), _MAX_BATCH_KEYS):
            remaining, tries = keys[start : start + _MAX_BATCH_KEYS], 0
            while remaining:
                request = {table: {"Keys": remaining, "ConsistentRead": True}}
                response = self.call("batch_get_item", RequestItems=request)
                page = response.get("Responses", {}).get(table, [])
                rows += map(decode, page)
                remaining = response.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
                # The remaining keys were throttled, or did not fit into one response. In the
                # latter case some rows came.
                tries = 0 if page else tries + 1
                if remaining and tries:
                    self._wait_before_retry(tries, "BatchGetItem: UnprocessedKeys")
        return rows

    # -- writing

    def write(self, operation: str, **arguments: Any) -> WriteDone | ConditionFailed:
        """Make one conditional put, update or delete."""
        arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        result = self._retry_while_busy(lambda: self._call_once(operation, arguments))
        if isinstance(result, ConditionFailed):
            return result
        assert not isinstance(result, TransactionCancelled)
        return WriteDone(decode(result.get("Attributes")))

    def transact(self, writes: list[dict[str, Any]]) -> WriteDone | TransactionCancelled:
        """Make all writes or none.

        botocore gives each call a ClientRequestToken and repeats the call if no response comes.
        Because of the token, the repeated call is not a second transaction.
        """
        result = self._retry_while_busy(
            lambda: self._call_once("transact_write_items", {"TransactItems": writes})
        )
        return result if isinstance(result, TransactionCancelled) else WriteDone({})

    def write_many(self, table: str, requests: list[dict[str, Any]]) -> None:
        """Make puts and deletes without conditions, in any order.

        DynamoDB returns unprocessed writes without raising an error. They are sent again.
        """
        for start in range(0, len(requests), _MAX_BATCH_WRITES):
            remaining, tries = requests[start : start + _MAX_BATCH_WRITES], 0
            while remaining:
                response = self.call("batch_write_item", RequestItems={table: remaining})
                unprocessed = response.get("UnprocessedItems", {}).get(table, [])
                tries = 0 if len(unprocessed) < len(remaining) else tries + 1
                if unprocessed and tries:
                    self._wait_before_retry(tries, "BatchWriteItem: UnprocessedItems")
                remaining = unprocessed

    def create_table(self, definition: Mapping[str, Any]) -> bool:
        """Create a table. Return False if it exists already, whatever its definition is."""
        result = self._retry_while_busy(lambda: self._call_once("create_table", definition))
        return not isinstance(result, _TableExists)

    # -- one call

    def _retry_while_busy(self, call: Callable[[], Any]) -> Any:
        """Repeat the call while rows are busy.

        The jitter keeps two writers from colliding again and again. The number of tries is
        limited, because only the caller knows what waits for the result.
        """
        tries = 0
        while isinstance(result := call(), _Busy):
            tries += 1
            self._wait_before_retry(tries, result.reason)
        return result

    def _wait_before_retry(self, tries: int, reason: str) -> None:
        if tries >= _MAX_TRIES:
            raise StoreUnavailable(f"DynamoDB {reason}: gave up after {tries} tries")
        self._clock.sleep(_BACKOFF.delay(tries, self._random))

    def _call_once(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        client = self.client  # first, because it reports a missing boto3

        from botocore.exceptions import ParamValidationError

        try:
            return call_checked(client, operation, **arguments)
        except ParamValidationError as error:
            # Its text contains the arguments, so it must not become the cause of the raised
            # error.
            failed = self._explain(operation, error)
        except get_client_errors() as error:
            if outcome := _outcome_from_error(operation, error):
                return outcome
            raise self._explain(operation, error) from error
        raise failed

    def _explain(self, operation: str, error: BaseException) -> HoldfastError:
        return errors.explain_error(errors.to_api_name(operation), error, self._tables_command)


class _TableExists:
    """The table was not created, because there is one."""


@dataclass(frozen=True, slots=True)
class _Busy:
    """The rows are busy or the service is throttling; a later try may succeed."""

    reason: str


def _outcome_from_error(
    operation: str, error: Any
) -> ConditionFailed | TransactionCancelled | _TableExists | _Busy | None:
    """Return the outcome if the caller can continue after this error, otherwise None."""
    code = get_error_code(error)
    if code == errors.CONDITION_FAILED:
        return ConditionFailed(decode(error.response.get("Item")))
    if code == errors.TRANSACTION_CANCELLED:
        return _parse_cancellation(operation, error.response.get("CancellationReasons") or [])
    if code == errors.IN_USE and operation == "create_table":
        return _TableExists()
    if errors.is_busy(error):
        return _Busy(f"{errors.to_api_name(operation)}: {code}")
    return None


def _parse_cancellation(
    operation: str, reasons: list[Mapping[str, Any]]
) -> TransactionCancelled | _Busy | None:
    """Return why a transaction was cancelled.

    A failed condition is final, whatever else happened. Otherwise other writers or throttling
    were the cause.
    """
    codes = [str(reason.get("Code") or "None") for reason in reasons]
    if "ConditionalCheckFailed" in codes:
        pairs = zip(codes, reasons, strict=True)
        return TransactionCancelled(
            tuple(_parse_reason(code, reason) for code, reason in pairs)
        )
    busy_codes = [code for code in codes if code in errors.BUSY_ROW]
    return _Busy(f"{errors.to_api_name(operation)}: {busy_codes[0]}") if busy_codes else None


def _parse_reason(code: str, reason: Mapping[str, Any]) -> ConditionFailed | None:
    return (
        ConditionFailed(decode(reason.get("Item")))
        if code == "ConditionalCheckFailed"
        else None
    )
