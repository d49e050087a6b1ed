"""What Amazon's error codes mean for a lease and for a person. The one table.

Codes are matched, never texts. A code that is not here passes through as a refusal when
the service says that the sender is at fault, as an outage otherwise.
"""

from typing import Any

from holdfast.core.errors import ConfigError, HoldfastError, QueueUnavailable

# The handle is not good any more, in the words of every version of the API.
GONE = frozenset(
    {
        "ReceiptHandleIsInvalid",
        "InvalidParameterValue",
        "MessageNotInflight",
        "AWS.SimpleQueueService.MessageNotInflight",
    }
)

NO_QUEUE = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})

DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})

BAD_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)

# The message itself is refused: too large, or with something that SQS does not carry.
MESSAGE_REFUSED = frozenset(
    {
        "AWS.SimpleQueueService.BatchRequestTooLong",
        "BatchRequestTooLong",
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidParameterValueException",
    }
)

# Worth another try, whoever is said to be at fault.
PASSING = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "KmsThrottled",
        "KMS.ThrottlingException",
        "OverLimit",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)


def code_of(error: BaseException) -> str:
    """The service's code; empty when it never answered."""
    response: Any = getattr(error, "response", None)
    details = response.get("Error", {}) if isinstance(response, dict) else {}
    return str(details.get("Code", ""))


def status_of(error: BaseException) -> int:
    response: Any = getattr(error, "response", None)
    metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    return int(metadata.get("HTTPStatusCode") or 0)


def passes(error: BaseException) -> bool:
    """Is it worth another try: no answer, throttled, or the service's own fault?"""
    code = code_of(error)
    return not code or code in PASSING or status_of(error) >= 500 or status_of(error) == 429


def passes_by(code: str, sender_fault: bool) -> bool:
    """The same for one entry of a batch."""
    return code in PASSING or not (sender_fault or code in GONE)


def explained(where: str, error: BaseException) -> HoldfastError:
    """One clear line, with the way out. No request, handle or body is in it."""
    code = code_of(error)
    if code in NO_QUEUE:
        return ConfigError(f"{where}: there is no such queue: check name, region and account")
    if code in DENIED:
        return ConfigError(f"{where}: access denied: the role needs {_action(error)}")
    if code in BAD_CREDENTIALS:
        return ConfigError(f"{where}: the credentials are not accepted ({code})")
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return ConfigError(f"{where}: no AWS credentials found: set a profile or a role")
    if passes(error):
        return QueueUnavailable(f"{where}: {code or type(error).__name__}")
    # Called an outage, it would be repeated as long as a lease can be held: twelve hours.
    return ConfigError(f"{where}: the request was refused ({code}), repeating it cannot help")


def _action(error: BaseException) -> str:
    operation = getattr(error, "operation_name", "")
    return f"sqs:{operation}" if operation else "permission for this call"
