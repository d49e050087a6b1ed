"""What the service answers when it refuses, as boto3 shows it.

SQS speaks JSON today and adds the code of its old protocol in a header. boto3 puts the
old code in `Error.Code` and the new one in `Error.QueryErrorCode`.
"""

from typing import Any

from botocore.exceptions import ClientError

_PREFIX = "AWS.SimpleQueueService."

NO_QUEUE = f"{_PREFIX}NonExistentQueue"
NOT_IN_FLIGHT = f"{_PREFIX}MessageNotInflight"

# The new code, where it is not the old one without its prefix.
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
    """The service's no, before it is known which call it answers."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        return _STATUSES.get(self.code, 400)

    @property
    def is_senders_fault(self) -> bool:
        return self.status < 500

    def as_client_error(self, operation: str, request_id: str) -> ClientError:
        """The exception boto3 would raise."""
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
                "ResponseMetadata": answered(self.status, request_id),
            },
            operation,
        )

    def as_failed_entry(self, entry_id: str) -> dict[str, Any]:
        """The same for one entry of a batch."""
        return {
            "Id": entry_id,
            "SenderFault": self.is_senders_fault,
            "Code": self.code,
            "Message": self.message,
        }


def answered(status: int, request_id: str) -> dict[str, Any]:
    """The metadata boto3 adds to each answer."""
    return {
        "RequestId": request_id,
        "HTTPStatusCode": status,
        "HTTPHeaders": {"x-amzn-requestid": request_id},
        "RetryAttempts": 0,
    }


def no_such_queue() -> ServiceError:
    return ServiceError(NO_QUEUE, "The specified queue does not exist.")


def bad_value(message: str) -> ServiceError:
    return ServiceError("InvalidParameterValue", message)


def out_of_range(name: str, value: object, reason: str) -> ServiceError:
    return bad_value(f"Value {value} for parameter {name} is invalid. Reason: {reason}")


def not_a_handle() -> ServiceError:
    # AWS repeats the handle in its text. Here it is left out: receipts belong in no log.
    return ServiceError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")


def handle_expired() -> ServiceError:
    return bad_value(
        "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )


def message_gone() -> ServiceError:
    return bad_value(
        "Value for parameter ReceiptHandle is invalid. Reason: Message does not exist "
        "or is not available for visibility timeout change."
    )


def not_in_flight() -> ServiceError:
    return ServiceError(NOT_IN_FLIGHT, "The specified message isn't in flight.")


def missing(parameter: str) -> ServiceError:
    return ServiceError(
        "MissingParameter", f"The request must contain the parameter {parameter}."
    )


def batch_refused(kind: str, message: str) -> ServiceError:
    """A whole batch refused, for one of SQS's own reasons (`EmptyBatchRequest`, ...)."""
    return ServiceError(f"{_PREFIX}{kind}", message)
