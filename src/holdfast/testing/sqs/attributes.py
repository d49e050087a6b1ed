"""A queue's attributes: their defaults, ranges and meanings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.testing.sqs.errors import ServiceError, invalid_value_error

_DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "30",
}
_FIFO_DEFAULTS = {
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
_RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
}
# Stored and shown, without an effect here.
_WITHOUT_EFFECT = frozenset(
    {"KmsDataKeyReusePeriodSeconds", "KmsMasterKeyId", "Policy", "RedriveAllowPolicy"}
)
_FIFO_ONLY = frozenset({*_FIFO_DEFAULTS, "FifoQueue"})
_SETTABLE = frozenset({*_DEFAULTS, *_FIFO_ONLY, *_WITHOUT_EFFECT, "RedrivePolicy"})

# Reported by the queue, not set on it.
MEASURED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
)
READABLE = frozenset({*_SETTABLE, *MEASURED, "All"})


@dataclass(frozen=True, slots=True)
class RedrivePolicy:
    """The target of messages that were received too often."""

    target_arn: str
    max_receives: int


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """Checked attributes as strings, the form that AWS accepts and returns."""

    texts: Mapping[str, str]

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> "QueueAttributes":
        """Return the attributes of a new queue, with the defaults filled in."""
        fifo = attributes.get("FifoQueue") == "true"
        return cls(_DEFAULTS | (_FIFO_DEFAULTS if fifo else {})).changed(
            attributes, is_new=True
        )

    def changed(
        self, attributes: Mapping[str, str], *, is_new: bool = False
    ) -> "QueueAttributes":
        """Return the attributes with these changes; an empty string removes an attribute."""
        texts = {**self.texts, **attributes}
        for name, value in attributes.items():
            _check(name, value, is_fifo=texts.get("FifoQueue") == "true", is_new=is_new)
        after = QueueAttributes({name: value for name, value in texts.items() if value != ""})
        after.redrive  # noqa: B018  # refuses a policy that cannot be read
        return after

    def get_number(self, name: str) -> int:
        """Return an attribute that has a range, such as VisibilityTimeout."""
        return int(self.texts[name])

    @property
    def is_fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.texts.get("FifoQueue") == "true"

    @property
    def redrive(self) -> RedrivePolicy | None:
        """The redrive policy, or None. Raises ServiceError if it cannot be read."""
        text = self.texts.get("RedrivePolicy") or "{}"
        try:
            if not (policy := json.loads(text)):
                return None
            target, count = policy["deadLetterTargetArn"], int(policy["maxReceiveCount"])
        except (ValueError, TypeError, KeyError):
            raise invalid_policy_error(
                text, "It must name deadLetterTargetArn and maxReceiveCount."
            ) from None
        if not 1 <= count <= 1000:
            raise invalid_policy_error(text, "Invalid value for maxReceiveCount.")
        return RedrivePolicy(str(target), count)


def _check(name: str, value: str, *, is_fifo: bool, is_new: bool) -> None:
    if name not in _SETTABLE or (name in _FIFO_ONLY and not is_fifo):
        raise ServiceError("InvalidAttributeName", f"Unknown Attribute {name}.")
    if name == "FifoQueue" and not (is_new and value == "true"):
        raise _invalid_attribute_error(name, " Reason: Modifying queue type is not supported.")
    if name in _RANGES and value != "":
        low, high = _RANGES[name]
        if not value.isdecimal() or not low <= int(value) <= high:
            raise _invalid_attribute_error(name)


def _invalid_attribute_error(name: str, reason: str = "") -> ServiceError:
    return ServiceError(
        "InvalidAttributeValue", f"Invalid value for the parameter {name}.{reason}"
    )


def invalid_policy_error(text: str, reason: str) -> ServiceError:
    """Return the error for a redrive policy that is not allowed."""
    return invalid_value_error(
        f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}"
    )
