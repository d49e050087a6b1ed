"""Entry points for AWS Lambda.

Each is loaded on first use, so that a cold start imports only what it needs.
"""

from holdfast._lazy import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "aws.lambdas.batch": "sqs_batch",
    },
)
