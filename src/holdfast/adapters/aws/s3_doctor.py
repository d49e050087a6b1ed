"""doctor for an S3 target: may objects be put there? Nothing becomes visible."""

from collections.abc import Iterator
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.errors import DENIED, code_of
from holdfast.core.checks import CheckResult, fail, ok

_PROBE = ".holdfast-doctor"


def examine(target: str, client: Any = None) -> Iterator[CheckResult]:
    """Begins an upload of parts and abandons it: the rights of a put, without an object.

    Raises ConfigError when no client can be made.
    """
    client = clients.patient("s3") if client is None else client

    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = target.removeprefix("s3://").partition("/")
    where = {"Bucket": bucket, "Key": "/".join(filter(None, (prefix.strip("/"), _PROBE)))}
    try:
        upload = client.create_multipart_upload(**where)
        client.abort_multipart_upload(**where, UploadId=upload["UploadId"])
    except (BotoCoreError, ClientError) as error:
        code = code_of(error) or type(error).__name__
        yield fail("target", f"{target} cannot be written to ({code})", _way_out(code))
        return
    yield ok("target", f"{target} takes uploads")


def _way_out(code: str) -> str:
    if code in DENIED:
        return "the role needs s3:PutObject and s3:AbortMultipartUpload there"
    return "check the bucket's name, the region and the credentials"
