"""Check an S3 target for `doctor`: may this user put objects there? No object appears."""

from collections.abc import Iterator
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.errors import DENIED, get_error_code
from holdfast.core.checks import CheckResult, fail, ok

_PROBE = ".holdfast-doctor"


def examine(target: str, client: Any = None) -> Iterator[CheckResult]:
    """Begin a multipart upload and abort it.

    That needs the permissions of a put and leaves no object. Raises ConfigError if the
    client cannot be made.
    """
    client = clients.make_retrying_client("s3") if client is None else client

    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = target.removeprefix("s3://").partition("/")
    where = {"Bucket": bucket, "Key": "/".join(filter(None, (prefix.strip("/"), _PROBE)))}
    try:
        upload = client.create_multipart_upload(**where)
        client.abort_multipart_upload(**where, UploadId=upload["UploadId"])
    except (BotoCoreError, ClientError) as error:
        code = get_error_code(error) or type(error).__name__
        yield fail("target", f"{target} cannot be written to ({code})", _choose_remedy(code))
        return
    yield ok("target", f"{target} accepts uploads")


def _choose_remedy(code: str) -> str:
    if code in DENIED:
        return "allow the role s3:PutObject and s3:AbortMultipartUpload there"
    return "check the bucket's name, the region and the credentials"
