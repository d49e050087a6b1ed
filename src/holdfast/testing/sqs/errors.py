"""The errors of the service, as boto3 shows them.

SQS uses JSON today and adds the code of its old protocol in a header. boto3 puts the old
code in `Error.Code` and the new one in `Error.QueryErrorCode`.
"""

from typing import Any

from botocore.exceptions import ClientError

_PREFIX = "AWS.SimpleQueueService."

NO_QUEUE = f"{_PREFIX}NonExistentQueue"
NOT_IN_FLIGHT = f"{_PREFIX}MessageNotInflight"

# The new codes that differ from the old ones without their prefix.
_NEW_CODES = {
    NO_QUEUE: "QueueDoesNotExist",
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
    "QueueAlreadyExists": "QueueNameExists",
}

_STATUSES = {
    f"{_PREFIX}PurgeQueueInProgress": 403,
    "AccessDenied": 403,
    "AccessDeniedException": 403,
    "ExpiredToken": 403,
    "InternalError": 500,
    "InternalFailure": 500,
    "InvalidClientTokenId": 403,
    "OverLimit": 403,
    "ReceiptHandleIsInvalid": 404,
    "RequestThrottled": 403,
    "ResourceNotFoundException": 404,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
}


class ServiceError(Exception):
    """A refusal by the service, before it is known which call it refuses."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        return _STATUSES.get(self.code, 400)

    @property
    def is_senders_fault(self) -> bool:
        """Whether the response says that the sender is at fault."""
        return self.status < 500

    def as_client_error(self, operation: str, request_id: str) -> ClientError:
        """Return the exception that boto3 would raise."""
        return ClientError(
            {
                "Error": {
                    "Message": self.message,
                    "Code": self.code,
                    "QueryErrorCode": _NEW_CODES.get(
                        self.code, self.code.removeprefix(_PREFIX)
                    ),
                    "Type": "Sender" if self.is_senders_fault else "Receiver",
                },
                "ResponseMetadata": make_response_metadata(self.status, request_id),
            },
            operation,
        )

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


def queue_missing_error() -> ServiceError:
    """Return the error for a queue that does not exist."""
    return ServiceError(NO_QUEUE, "The specified queue does not exist.")


def invalid_value_error(message: str) -> ServiceError:
    """Return the error for an invalid parameter value."""
    return ServiceError("InvalidParameterValue", message)


def out_of_range_error(name: str, value: object, reason: str) -> ServiceError:
    """Return the error for a parameter value that is not allowed."""
    return invalid_value_error(
        f"Value {value} for parameter {name} is invalid. Reason: {reason}"
    )


def invalid_handle_error() -> ServiceError:
    """Return the error for a handle that the queue never gave, or that is stale."""
    # AWS repeats the handle in its text. Here it is omitted, because receipts must not be
    # logged.
    return ServiceError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")


def expired_handle_error() -> ServiceError:
    """Return the error of a FIFO queue for a stale handle."""
    return invalid_value_error(
        "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )


def message_gone_error() -> ServiceError:
    """Return the error for a message that no longer exists."""
    return invalid_value_error(
        "Value for parameter ReceiptHandle is invalid. Reason: Message does not exist "
        "or is not available for visibility timeout change."
    )


def not_in_flight_error() -> ServiceError:
    """Return the error for a message that is visible again."""
    return ServiceError(NOT_IN_FLIGHT, "The specified message isn't in flight.")


def missing_parameter_error(parameter: str) -> ServiceError:
    """Return the error for a required parameter that is missing."""
    return ServiceError(
        "MissingParameter", f"The request must contain the parameter {parameter}."
    )


def sqs_error(kind: str, message: str) -> ServiceError:
    """Return an error with one of SQS's own codes (`EmptyBatchRequest`, ...)."""
    return ServiceError(f"{_PREFIX}{kind}", message)
