"""The errors of the service, as boto3 shows them, and the ranges of its parameters.

SQS uses JSON today and adds the code of its old protocol in a header. boto3 puts the old
code in `Error.Code` and the new one in `Error.QueryErrorCode`.
"""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

_PREFIX = "AWS.SimpleQueueService."

NO_QUEUE = f"{_PREFIX}NonExistentQueue"

# The new codes that differ from the old ones without their prefix.
_NEW_CODES = {
    NO_QUEUE: "QueueDoesNotExist",
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
    "QueueAlreadyExists": "QueueNameExists",
}

_STATUSES = {
    "AccessDenied": 403,
    "AccessDeniedException": 403,
    "ExpiredToken": 403,
    "InternalError": 500,
    "InternalFailure": 500,
    "InvalidClientTokenId": 403,
    "OverLimit": 403,
    "ReceiptHandleIsInvalid": 404,
    "RequestThrottled": 403,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
}

# The code and the text of refusals that always read the same.
QUEUE_MISSING = NO_QUEUE, "The specified queue does not exist."
# A handle that the queue never gave, or that is stale. AWS repeats the handle in its text.
# Here it is omitted, because receipts must not be logged.
INVALID_HANDLE = "ReceiptHandleIsInvalid", "The input receipt handle is invalid."
NOT_IN_FLIGHT = f"{_PREFIX}MessageNotInflight", "The specified message isn't in flight."
EXPIRED_FIFO_HANDLE = (
    "InvalidParameterValue",
    "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
)
MESSAGE_GONE = (
    "InvalidParameterValue",
    "Value for parameter ReceiptHandle is invalid. Reason: Message does not exist "
    "or is not available for visibility timeout change.",
)

_OUT_OF_RANGE = "Must be between {} and {}, if provided."
_OWN_REASONS = {"DelaySeconds": "DelaySeconds must be >= {} and <= {}."}

# The range of each number in a request.
_RANGES = {
    "DelaySeconds": (0, 900),
    "MaxNumberOfMessages": (1, 10),
    "VisibilityTimeout": (0, 43_200),
    "WaitTimeSeconds": (0, 20),
}


class ServiceError(Exception):
    """A refusal by the service, before it is known which call it refuses."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.status = _STATUSES.get(code, 400)
        self.is_senders_fault = self.status < 500

    def as_client_error(self, operation: str, request_id: str) -> ClientError:
        """Return the exception that boto3 would raise."""
        new_code = _NEW_CODES.get(self.code, self.code.removeprefix(_PREFIX))
        error = {
            "Message": self.message,
            "Code": self.code,
            "QueryErrorCode": new_code,
            "Type": "Sender" if self.is_senders_fault else "Receiver",
        }
        metadata: Any = make_response_metadata(self.status, request_id)
        return ClientError({"Error": error, "ResponseMetadata": metadata}, operation)

    def as_failed_entry(self, entry_id: str) -> dict[str, Any]:
        """Return the failed entry of a batch response."""
        return {
            "Id": entry_id,
            "SenderFault": self.is_senders_fault,
            "Code": self.code,
            "Message": self.message,
        }


def make_response_metadata(status: int, request_id: str) -> dict[str, Any]:
    """Return the metadata that boto3 adds to each response."""
    return {
        "RequestId": request_id,
        "HTTPStatusCode": status,
        "HTTPHeaders": {"x-amzn-requestid": request_id},
        "RetryAttempts": 0,
    }


def sqs_error(kind: str, message: str) -> ServiceError:
    """Return an error with one of SQS's own codes (`EmptyBatchRequest`, ...)."""
    return ServiceError(f"{_PREFIX}{kind}", message)


def invalid_value_error(message: str) -> ServiceError:
    """Return the error for an invalid parameter value."""
    return ServiceError("InvalidParameterValue", message)


def out_of_range_error(name: str, value: object, reason: str) -> ServiceError:
    """Return the error for a parameter value that is not allowed."""
    return invalid_value_error(
        f"Value {value} for parameter {name} is invalid. Reason: {reason}"
    )


def missing_parameter_error(parameter: str) -> ServiceError:
    """Return the error for a required parameter that is missing."""
    return ServiceError(
        "MissingParameter", f"The request must contain the parameter {parameter}."
    )


def read_number(params: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number of a request, or the default. Raises ServiceError if out of range."""
    if (value := params.get(name)) is None:
        return default
    low, high = _RANGES[name]
    if not low <= value <= high:
        reason = _OWN_REASONS.get(name, _OUT_OF_RANGE).format(low, high)
        raise out_of_range_error(name, value, reason)
    return int(value)
