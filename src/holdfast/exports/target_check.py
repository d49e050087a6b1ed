"""Checks of an export's target: a folder, or a bucket and prefix in S3.

`holdfast export run` makes them at each start, so this module imports little.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.doctor.checks import CheckFailed, CheckResult, grade, ok, run_checks
from holdfast.exports.file_names import OWN_FOLDER
from holdfast.urls import TARGETS, parse_url

_PROBE = ".holdfast-doctor"


def examine_target(to: str, env: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check a target for doctor, and return the results one by one."""
    return run_checks(to, ("target", check_target))


def check_target(to: str) -> Iterator[CheckResult]:
    """Check a folder or s3://BUCKET/PREFIX."""
    return _check_s3(to) if parse_url(to, TARGETS).scheme == "s3" else _check_folder(to)


def _check_folder(to: str) -> Iterator[CheckResult]:
    """Check the target's folder, or the folder in which it would be made."""
    path = Path(to)
    if path.exists() and not path.is_dir():
        raise CheckFailed(f"{to} is a file", "name a folder")
    existing = next(
        above for above in (path.absolute(), *path.absolute().parents) if above.exists()
    )
    try:
        _try_to_write(existing, is_target=path.exists())
    except OSError as error:
        remedy = "allow this user to write there"
        raise CheckFailed(f"{existing}: {error.strerror}", remedy) from error
    made = "" if path.exists() else "; it will be made"
    yield ok(f"{to} can be written to{made}")
    free = shutil.disk_usage(existing).free
    is_little = free < 1 << 30
    text = f"{free / 1e6:,.0f} MB are free" if is_little else f"{free / 1e9:,.1f} GB are free"
    remedy = "free some space, or use another disk"
    yield grade(text, remedy, warns=is_little, check="space")


def _try_to_write(folder: Path, *, is_target: bool) -> None:
    from holdfast.exports.downloads.partial_files import PartialFiles

    probe = folder / f"{_PROBE}-{os.urandom(8).hex()}"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    probe.unlink()
    own = folder / OWN_FOLDER
    if is_target and own.exists():
        PartialFiles(str(own)).close()  # raises if a link is in its place


def _check_s3(to: str) -> Iterator[CheckResult]:
    """Begin a multipart upload and abort it.

    That needs the permissions of a put and leaves no object. Raises ConfigError if the
    client cannot be made.
    """
    from holdfast.aws.checked_call import call_checked
    from holdfast.aws.clients import make_retrying_client
    from holdfast.doctor.stores import explain_aws_errors

    client = make_retrying_client("s3")
    bucket, _, prefix = parse_url(to, TARGETS).path.partition("/")
    where = {"Bucket": bucket, "Key": "/".join(filter(None, (prefix.strip("/"), _PROBE)))}
    with explain_aws_errors(
        f"{to} cannot be written to",
        denied="allow the role s3:PutObject and s3:AbortMultipartUpload there",
        otherwise="check the bucket's name, the region and the credentials",
    ):
        upload = call_checked(client, "create_multipart_upload", **where)
        client.abort_multipart_upload(**where, UploadId=upload["UploadId"])
    yield ok(f"{to} accepts uploads")
