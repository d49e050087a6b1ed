"""Export `SQSHeartbeat` for `from holdfast.utils.sqs_heartbeat import SQSHeartbeat`."""

from holdfast.aws.heartbeat import (
    SQSHeartbeat,
    interval_from_env,
    stop_all,
    visibility_timeout_of,
)
from holdfast.aws.heartbeat_run import DEFAULT_VISIBILITY_TIMEOUT_EXTENSION_SEC

__all__ = [
    "DEFAULT_VISIBILITY_TIMEOUT_EXTENSION_SEC",
    "SQSHeartbeat",
    "interval_from_env",
    "stop_all",
    "visibility_timeout_of",
]
