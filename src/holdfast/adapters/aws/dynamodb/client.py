"""Calling DynamoDB: one client for each process, patience with what passes, clear errors.

A condition that does not hold is an answer, not a surprise: calls that carry one return
`ConditionFailed`, with the row as it is. Its exception ends here, for it holds that row, and the
row holds the task token.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.dynamodb import errors
from holdfast.adapters.aws.dynamodb.values import Attributes, decode
from holdfast.adapters.aws.errors import get_error_code
from holdfast.core.backoff import Backoff
from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.process import after_fork

_MAX_TRIES = 9  # about 8 seconds in all
_MAX_BATCH_WRITES = 25  # puts and deletes of one BatchWriteItem
_BACKOFF = Backoff(first_seconds=0.05, max_seconds=2.0)


@dataclass(frozen=True, slots=True)
class WriteDone:
    """It was done. `row`: what the call was asked to return, if anything."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConditionFailed:
    """The condition did not hold, nothing was changed. `row` is empty when there is none."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TransactionCancelled:
    """Nothing of the transaction was done. For each of its rows: None, or why not."""

    reasons: tuple[ConditionFailed | None, ...]


class DynamoDBClient:
    """Safe to share between threads; a forked child connects anew."""

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
        with self._connecting:  # or every thread makes one, and all but one are forgotten
            if self._client is None:
                self._client = clients.make_retrying_client("dynamodb")
            return self._client

    def close(self) -> None:
        """Let go of the connections; the next call makes new ones."""
        if self._client is not None and self._client is not self._given_client:
            self._client.close()
        self._reset()

    # -- reading

    def call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._retry_while_busy(
            lambda: self._call_once(operation, arguments)
        )
        return answer

    def read_pages(self, operation: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Every row of every page. A page may be empty and not be the last (JB-23)."""
        while True:
            answer = self.call(operation, **arguments)
            yield from map(decode, answer.get("Items", []))
            if not (last := answer.get("LastEvaluatedKey")):
                return
            arguments["ExclusiveStartKey"] = last

    def read_rows(self, table: str, keys: list[Attributes]) -> list[dict[str, Any]]:
        """The rows of up to 100 keys, as last written; in any order, missing ones left out."""
        found: list[dict[str, Any]] = []
        tries = 0
        while keys:
            request = {table: {"Keys": keys, "ConsistentRead": True}}
            answer = self.call("batch_get_item", RequestItems=request)
            came = answer.get("Responses", {}).get(table, [])
            found += map(decode, came)
            keys = answer.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
            # What is left is throttled, or more than one answer holds: then some came.
            tries = 0 if came else tries + 1
            if keys and tries:
                self._wait_before_retry(tries, "BatchGetItem: UnprocessedKeys")
        return found

    # -- writing

    def write(self, operation: str, **arguments: Any) -> WriteDone | ConditionFailed:
        """One put or update with a condition."""
        arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        answer = self._retry_while_busy(lambda: self._call_once(operation, arguments))
        if isinstance(answer, ConditionFailed):
            return answer
        assert not isinstance(answer, TransactionCancelled)
        return WriteDone(decode(answer.get("Attributes")))

    def transact(self, writes: list[dict[str, Any]]) -> WriteDone | TransactionCancelled:
        """All of them, or none.

        botocore gives each call a ClientRequestToken and repeats it when the answer does
        not come, so that its own second try is not a second transaction.
        """
        answer = self._retry_while_busy(
            lambda: self._call_once("transact_write_items", {"TransactItems": writes})
        )
        return answer if isinstance(answer, TransactionCancelled) else WriteDone({})

    def write_many(self, table: str, requests: list[dict[str, Any]]) -> None:
        """Puts and deletes without condition, in any order. What DynamoDB leaves over, and
        says so without raising, is sent again (MS-09)."""
        for start in range(0, len(requests), _MAX_BATCH_WRITES):
            left, tries = requests[start : start + _MAX_BATCH_WRITES], 0
            while left:
                answer = self.call("batch_write_item", RequestItems={table: left})
                over = answer.get("UnprocessedItems", {}).get(table, [])
                tries = 0 if len(over) < len(left) else tries + 1
                if over and tries:
                    self._wait_before_retry(tries, "BatchWriteItem: UnprocessedItems")
                left = over

    # -- one call

    def _retry_while_busy(self, call: Callable[[], Any]) -> Any:
        """Again while rows are busy, with jitter: two writers must not meet again and
        again; and not for ever: then it is the caller who knows what waits."""
        tries = 0
        while isinstance(answer := call(), _Busy):
            tries += 1
            self._wait_before_retry(tries, answer.why)
        return answer

    def _wait_before_retry(self, tries: int, why: str) -> None:
        if tries >= _MAX_TRIES:
            raise StoreUnavailable(f"DynamoDB {why}, {tries} times")
        self._clock.sleep(_BACKOFF.delay(tries, self._random))

    def _call_once(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        call = getattr(self.client, operation)  # first: it says what to install

        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

        try:
            return call(**arguments)
        except ParamValidationError as error:
            # Its text holds what was asked: it must not be the cause of what is raised.
            failed = self._explain(operation, error)
        except (BotoCoreError, ClientError) as error:
            if answer := _outcome_from_error(operation, error):
                return answer
            raise self._explain(operation, error) from error
        raise failed

    def _explain(self, operation: str, error: BaseException) -> HoldfastError:
        return errors.explain_error(errors.to_api_name(operation), error, self._tables_command)


@dataclass(frozen=True, slots=True)
class _Busy:
    why: str


def _outcome_from_error(
    operation: str, error: Any
) -> ConditionFailed | TransactionCancelled | _Busy | None:
    """What the error says, if it is one of those that a caller goes on from."""
    code = get_error_code(error)
    if code == errors.CONDITION_FAILED:
        return ConditionFailed(decode(error.response.get("Item")))
    if code == errors.TRANSACTION_CANCELLED:
        return _parse_cancellation(operation, error.response.get("CancellationReasons") or [])
    if errors.is_busy(error):
        return _Busy(f"{errors.to_api_name(operation)}: {code}")
    return None


def _parse_cancellation(
    operation: str, reasons: list[Mapping[str, Any]]
) -> TransactionCancelled | _Busy | None:
    """A condition that failed is final, whatever else there was; else it was others' haste."""
    codes = [str(reason.get("Code") or "None") for reason in reasons]
    if "ConditionalCheckFailed" in codes:
        pairs = zip(codes, reasons, strict=True)
        return TransactionCancelled(
            tuple(_parse_reason(code, reason) for code, reason in pairs)
        )
    hasty = [code for code in codes if code in errors.BUSY_ROW]
    return _Busy(f"{errors.to_api_name(operation)}: {hasty[0]}") if hasty else None


def _parse_reason(code: str, reason: Mapping[str, Any]) -> ConditionFailed | None:
    return (
        ConditionFailed(decode(reason.get("Item")))
        if code == "ConditionalCheckFailed"
        else None
    )
