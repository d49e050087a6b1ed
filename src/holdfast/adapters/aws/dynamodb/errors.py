"""What DynamoDB's error codes mean for a person. The one table.

Texts name the call and the code, nothing of what was sent: a task token is among it.
"""

from holdfast.adapters.aws.errors import (
    BAD_CREDENTIALS,
    DENIED,
    TRANSIENT,
    get_error_code,
    get_http_status,
)
from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.jobs.errors import StoreUnavailable

CONDITION_FAILED = "ConditionalCheckFailedException"
TRANSACTION_CANCELLED = "TransactionCanceledException"
IN_USE = "ResourceInUseException"
NO_TABLE = frozenset({"ResourceNotFoundException", "TableNotFoundException"})

# Somebody else is writing the row, or there is too much to do: soon it may work.
BUSY = TRANSIENT | {
    "InternalServerError",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "TransactionConflictException",
    "TransactionInProgressException",
}
# The same, said of one row of a transaction.
BUSY_ROW = frozenset(
    {"ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
)


def is_busy(error: BaseException) -> bool:
    """Is it worth another try here? Not when nobody answered: the client, which tried that
    several times, has waited long enough."""
    return get_error_code(error) in BUSY or get_http_status(error) >= 500


def explain_error(operation: str, error: BaseException, tables_command: str) -> HoldfastError:
    """One clear line, with the way out: `tables_command` shows the tables, and makes them."""
    code, kind = get_error_code(error), type(error).__name__
    if code in NO_TABLE:
        return ConfigError(
            "DynamoDB has no such table: check region and names, or create the tables "
            f"with `{tables_command} --create`"
        )
    if code in DENIED:
        return ConfigError(f"DynamoDB denied access: the role needs dynamodb:{operation}")
    if code in BAD_CREDENTIALS:
        return ConfigError(f"DynamoDB does not accept the credentials ({code})")
    if code == "ValidationException":
        return ConfigError(
            f"DynamoDB refused {operation} ({code}): do the tables have the keys and the "
            f"index that `{tables_command}` shows?"
        )
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        return ConfigError("DynamoDB: no AWS credentials found: set a profile or a role")
    if kind == "ParamValidationError":
        return ConfigError(
            f"DynamoDB {operation} cannot be asked like this: check the table names"
        )
    return StoreUnavailable(f"DynamoDB {operation}: {code or kind}")


def to_api_name(operation: str) -> str:
    """update_item → UpdateItem, as the service and its permissions call it."""
    return "".join(part.capitalize() for part in operation.split("_"))
