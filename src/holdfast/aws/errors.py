"""What Amazon's error codes mean for a lease and for an operator. This is the only table.

Codes are matched, never texts. A code that is not in the table counts as a refusal if the
service says that the sender is at fault, and as an outage otherwise.
"""

from typing import Any
from urllib.parse import urlsplit

from holdfast.aws.json_client.responses import InvalidResponse
from holdfast.errors import ConfigError, HoldfastError, QueueUnavailable

# The receipt handle is no longer valid; each version of the API has its own code for it.
RECEIPT_GONE = frozenset(
    {
        "ReceiptHandleIsInvalid",
        "InvalidParameterValue",
        "MessageNotInflight",
        "AWS.SimpleQueueService.MessageNotInflight",
    }
)

NO_QUEUE = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})

# The last is that of SNS.
DENIED = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError"}
)

# The signature was refused. If the clocks differ by minutes, that may be the reason.
BAD_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)

# SQS refuses the message itself: it is too large, or contains characters that SQS does not
# carry.
MESSAGE_REFUSED = frozenset(
    {
        "AWS.SimpleQueueService.BatchRequestTooLong",
        "BatchRequestTooLong",
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidParameterValueException",
    }
)

# Worth another try, even if the response says that the sender is at fault.
TRANSIENT = frozenset(
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


def get_client_errors() -> tuple[type[Exception], ...]:
    """Return the errors of `call_checked` with any client, for an `except` clause.

    Python evaluates that clause only after an error, so a cold start does not import them.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError, InvalidResponse


def get_error_code(error: BaseException) -> str:
    """Return the service's error code, or "" if the service did not respond."""
    response: Any = getattr(error, "response", None)
    details = response.get("Error", {}) if isinstance(response, dict) else {}
    return str(details.get("Code", ""))


def describe_cause(error: BaseException) -> str:
    """Return the service's error code, or else the kind of error and its endpoint.

    Of the endpoint's URL only the server is shown, because a query may hold a signature.
    """
    if code := get_error_code(error):
        return code
    if isinstance(error, InvalidResponse):
        return f"another server may have responded in its place, because {error}"
    kind = type(error).__name__
    url = urlsplit(str(getattr(error, "kwargs", {}).get("endpoint_url", "")))
    server = url.netloc.rpartition("@")[2]
    return f"{kind}: no response from {url.scheme}://{server}" if server else kind


def get_cause_code(error: BaseException) -> str:
    """Return the service's code of an error that `translate_error` made."""
    return get_error_code(error.__cause__ or error)


def get_http_status(error: BaseException) -> int:
    """Return the HTTP status of the response, or 0 if the service did not respond."""
    response: Any = getattr(error, "response", None)
    metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    return int(metadata.get("HTTPStatusCode") or 0)


def is_transient(error: BaseException) -> bool:
    """Return whether another try may succeed.

    It may if the service did not respond, throttled the call, or failed by its own fault.
    """
    code, status = get_error_code(error), get_http_status(error)
    return not code or code in TRANSIENT or status >= 500 or status == 429


def is_transient_code(code: str, sender_fault: bool) -> bool:
    """Return whether another try may succeed for one entry of a batch."""
    return code in TRANSIENT or not (sender_fault or code in RECEIPT_GONE)


def translate_error(subject: str, error: BaseException) -> HoldfastError:
    """Return an error whose one line names the problem and the remedy.

    The line contains no request, receipt handle or message body.
    """
    code = get_error_code(error)
    if code in NO_QUEUE:
        return ConfigError(f"{subject}: there is no such queue: check name, region and account")
    if code in DENIED:
        return ConfigError(
            f"{subject}: access denied: the role needs {_name_permission(error)}"
        )
    if code in BAD_CREDENTIALS:
        return ConfigError(
            f"{subject}: the credentials are not accepted ({code}): check them and this "
            "machine's clock"
        )
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return ConfigError(f"{subject}: no AWS credentials found: set a profile or a role")
    if type(error).__name__ == "ParamValidationError":
        return ConfigError(f"{subject}: the request has invalid parameters")
    if is_transient(error):
        return QueueUnavailable(f"{subject}: {describe_cause(error)}")
    # If this were reported as an outage, callers would repeat the call for as long as a
    # lease can be held, which is twelve hours.
    return ConfigError(f"{subject}: the request was refused ({code}), repeating it cannot help")


def _name_permission(error: BaseException) -> str:
    # A batch needs the permission of the single call; there is none of its own.
    operation = getattr(error, "operation_name", "").removesuffix("Batch")
    return f"sqs:{operation}" if operation else "permission for this call"
