"""Entry points for AWS Lambda.

Each is loaded on first use, so that a cold start imports only what it needs.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.aws.lambdas.batch import sqs_batch as sqs_batch

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "aws.lambdas.batch": "sqs_batch",
    },
)
