"""ARNs of what a part uses. `neighbour` is an ARN in the same partition, region and account."""

from collections.abc import Mapping

from holdfast.queues.sqs.address import parse_address
from holdfast.urls import QUEUES, parse_url

_SQS_URLS = ("sqs:", "https://")


def shorten_arn(text: str) -> str:
    """Return the name of a resource from its ARN or URL, and a name as it is."""
    return text.rstrip("/").rpartition("/")[2].rpartition(":")[2]


def make_arn(neighbour: str, service: str, resource: str) -> str:
    """Return the ARN of a resource. Those of S3 have no region and no account."""
    _, partition, _, region, account, *_ = neighbour.split(":", 5)
    if service == "s3":
        region = account = ""
    return f"arn:{partition}:{service}:{region}:{account}:{resource}"


def make_log_arn(neighbour: str, group: str) -> str:
    """Return the ARN of a log stream in a group."""
    return make_arn(neighbour, "logs", f"log-group:{group}:log-stream:any")


def find_queue(neighbour: str, url: str) -> dict[str, Mapping[str, str]]:
    """Return the ARN of the queue with that URL of ours, with the options in the URL.

    The result is empty if it is not an SQS queue. Raises ConfigError.
    """
    if not url.startswith(_SQS_URLS):
        return {}
    parsed = parse_url(url, QUEUES)
    return {make_arn(neighbour, "sqs", parse_address(parsed.path).name): parsed.options}
