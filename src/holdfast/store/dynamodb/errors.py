"""Translate DynamoDB's error codes, in one table.

The texts name the operation and the code, and nothing that was sent, because a task token is
part of it.
"""

from holdfast.aws.errors import (
    BAD_CREDENTIALS,
    DENIED,
    TRANSIENT,
    describe_cause,
    get_error_code,
    get_http_status,
)
from holdfast.errors import ConfigError, HoldfastError, StoreUnavailable

CONDITION_FAILED = "ConditionalCheckFailedException"
TRANSACTION_CANCELLED = "TransactionCanceledException"
IN_USE = "ResourceInUseException"
NO_TABLE = frozenset({"ResourceNotFoundException", "TableNotFoundException"})

# Another writer is changing the row, or the service is overloaded. A later try may succeed.
BUSY = TRANSIENT | {
    "InternalServerError",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "TransactionConflictException",
    "TransactionInProgressException",
}
# The same, for one row of a transaction.
BUSY_ROW = frozenset(
    {"ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
)


def is_busy(error: BaseException) -> bool:
    """Return whether another try here is worthwhile.

    It is not if no response came, because the client has already tried that several times.
    """
    return get_error_code(error) in BUSY or get_http_status(error) >= 500


# A transaction has no permission of its own.
_TRANSACTION_PERMISSIONS = {
    "TransactWriteItems": "dynamodb:PutItem, UpdateItem, DeleteItem and ConditionCheckItem",
}


def explain_error(operation: str, error: BaseException, tables_command: str) -> HoldfastError:
    """Return an error with one clear line and a remedy.

    `tables_command` is the command that shows and creates the tables.
    """
    code, kind = get_error_code(error), type(error).__name__
    if code in NO_TABLE:
        return ConfigError(
            "DynamoDB has no such table: check the region and the names, or create the tables "
            f"with `{tables_command} --create`"
        )
    if code in DENIED:
        permission = _TRANSACTION_PERMISSIONS.get(operation, f"dynamodb:{operation}")
        return ConfigError(f"DynamoDB denied access: the role needs {permission}")
    if code in BAD_CREDENTIALS:
        return ConfigError(f"DynamoDB does not accept the credentials ({code})")
    if code == "ValidationException":
        return ConfigError(
            f"DynamoDB refused {operation} ({code}): do the tables have the keys and the "
            f"index that `{tables_command}` shows?"
        )
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        return ConfigError("DynamoDB found no AWS credentials: set a profile or a role")
    if kind == "ParamValidationError":
        return ConfigError(
            f"DynamoDB {operation} has invalid parameters: check the table names"
        )
    return StoreUnavailable(f"DynamoDB {operation}: {describe_cause(error)}")


def to_api_name(operation: str) -> str:
    """Return an operation's name as the service and its permissions write it.

    For example, update_item becomes UpdateItem.
    """
    return "".join(part.capitalize() for part in operation.split("_"))
