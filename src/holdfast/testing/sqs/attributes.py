"""A queue's attributes: their defaults, their ranges, what they mean."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.testing.sqs.errors import ServiceError, bad_value

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
# Kept and shown, without effect here.
_WITHOUT_EFFECT = frozenset(
    {"KmsDataKeyReusePeriodSeconds", "KmsMasterKeyId", "Policy", "RedriveAllowPolicy"}
)
_FIFO_ONLY = frozenset({*_FIFO_DEFAULTS, "FifoQueue"})
_SETTABLE = frozenset({*_DEFAULTS, *_FIFO_ONLY, *_WITHOUT_EFFECT, "RedrivePolicy"})

# Told by the queue, not set on it.
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
    """Where a message goes that was received too often."""

    target_arn: str
    max_receives: int


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """Checked attributes, as texts: what AWS takes and gives."""

    texts: Mapping[str, str]

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> "QueueAttributes":
        """Those of a new queue."""
        fifo = attributes.get("FifoQueue") == "true"
        return cls(_DEFAULTS | (_FIFO_DEFAULTS if fifo else {})).changed(
            attributes, is_new=True
        )

    def changed(
        self, attributes: Mapping[str, str], *, is_new: bool = False
    ) -> "QueueAttributes":
        """With these set; an empty text takes an attribute away."""
        texts = {**self.texts, **attributes}
        for name, value in attributes.items():
            _check(name, value, is_fifo=texts.get("FifoQueue") == "true", is_new=is_new)
        after = QueueAttributes({name: value for name, value in texts.items() if value != ""})
        after.redrive  # noqa: B018  # a policy that cannot be read is refused here
        return after

    @property
    def visibility_seconds(self) -> int:
        return int(self.texts["VisibilityTimeout"])

    @property
    def delay_seconds(self) -> int:
        return int(self.texts["DelaySeconds"])

    @property
    def retention_seconds(self) -> int:
        return int(self.texts["MessageRetentionPeriod"])

    @property
    def wait_seconds(self) -> int:
        return int(self.texts["ReceiveMessageWaitTimeSeconds"])

    @property
    def max_bytes(self) -> int:
        return int(self.texts["MaximumMessageSize"])

    @property
    def is_fifo(self) -> bool:
        return self.texts.get("FifoQueue") == "true"

    @property
    def dedupes_by_content(self) -> bool:
        return self.texts.get("ContentBasedDeduplication") == "true"

    @property
    def dedupes_by_group(self) -> bool:
        return self.texts.get("DeduplicationScope") == "messageGroup"

    @property
    def redrive(self) -> RedrivePolicy | None:
        text = self.texts.get("RedrivePolicy", "")
        policy = _policy(text) if text else {}
        return (
            RedrivePolicy(policy["deadLetterTargetArn"], policy["maxReceiveCount"])
            if policy
            else None
        )


def _check(name: str, value: str, *, is_fifo: bool, is_new: bool) -> None:
    if name not in _SETTABLE or (name in _FIFO_ONLY and not is_fifo):
        raise ServiceError("InvalidAttributeName", f"Unknown Attribute {name}.")
    if name == "FifoQueue" and not (is_new and value == "true"):
        raise _bad_attribute(name, " Reason: Modifying queue type is not supported.")
    if name in _RANGES and value != "":
        low, high = _RANGES[name]
        if not value.isdecimal() or not low <= int(value) <= high:
            raise _bad_attribute(name)


def _bad_attribute(name: str, reason: str = "") -> ServiceError:
    return ServiceError(
        "InvalidAttributeValue", f"Invalid value for the parameter {name}.{reason}"
    )


def _policy(text: str) -> dict[str, Any]:
    """A redrive policy, its count as a number; empty when it says nothing."""
    try:
        policy = json.loads(text)
        if not policy:
            return {}
        count = int(policy["maxReceiveCount"])
        target = str(policy["deadLetterTargetArn"])
    except (ValueError, TypeError, KeyError):
        raise bad_policy(
            text, "It must name deadLetterTargetArn and maxReceiveCount."
        ) from None
    if not 1 <= count <= 1000:
        raise bad_policy(text, "Invalid value for maxReceiveCount.")
    return {"deadLetterTargetArn": target, "maxReceiveCount": count}


def bad_policy(text: str, reason: str) -> ServiceError:
    return bad_value(f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}")
