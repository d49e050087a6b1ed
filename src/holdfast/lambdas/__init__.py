"""Entry points for AWS Lambda.

Each is loaded on first use, so that a cold start imports only what it needs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.lambdas.batch import sqs_batch

__all__ = ["sqs_batch"]


def __getattr__(name: str) -> Any:
    if name == "sqs_batch":
        from holdfast.lambdas.batch import sqs_batch

        return sqs_batch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
