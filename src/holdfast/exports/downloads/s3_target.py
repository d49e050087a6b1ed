"""The export target that is a bucket and a prefix in S3, and file lists in S3.

A file is uploaded from disk after it was verified. Its digest is sent with it, so S3 refuses
bytes that changed on the way. The mark of its task is sent, too, by which the next attempt
recognises it. The pieces of a large file are hashed while they are read; if together they are
not the verified file, the upload is aborted. A process that is killed during an upload leaves
invisible parts that cost money. Give the bucket a lifecycle rule that aborts incomplete
multipart uploads.
"""

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from holdfast.aws import clients, errors
from holdfast.aws.checked_call import call_checked
from holdfast.errors import ConfigError
from holdfast.exports.downloads.partial_files import PartialFile, PartialFiles
from holdfast.exports.downloads.task import RunningDownload, TaskError, TaskInput
from holdfast.exports.errors import InvalidJob, StoreUnavailable
from holdfast.urls import TARGETS, parse_url

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MARK = "holdfast-task"
_MAX_KEY_BYTES = 1024
_MAX_PARTS = 10_000
_PIECE_BYTES = 8 << 20  # in memory for each slot; larger only for files over 80 GB


class S3Target:
    """An export target that is a bucket and a prefix in S3.

    It is thread-safe. Its client must be made in the process that uses it.
    """

    digests: tuple[str, ...] = ("sha256",)

    def __init__(
        self,
        location: str,
        scratch: str,
        *,
        piece_bytes: int = _PIECE_BYTES,
        client: Any = None,
    ) -> None:
        bucket, prefix = _split_url(location)
        if not _BUCKET.fullmatch(bucket):
            raise ConfigError(f"target {location[:80]!r}: it must be s3://bucket/prefix")
        self.bucket: str | None = bucket
        self._prefix = prefix.strip("/")
        self._piece_bytes = piece_bytes
        self.partial_files = PartialFiles(os.path.abspath(scratch))
        self._client = clients.make_retrying_client("s3") if client is None else client

    def publish(self, part: PartialFile, key: str, run: RunningDownload) -> None:
        """Upload the file, replacing an object of that name. Raises TaskError.

        The file stays on disk until S3 has confirmed the object.
        """
        location = {"Bucket": self.bucket, "Key": self._make_full_key(key)}
        mark = {"Metadata": {_MARK: run.task.mark}}
        run.check()
        try:
            if part.size <= self._piece_bytes:
                self._put(part, location | mark)
            else:
                self._put_in_pieces(part, location, mark, run)
        except errors.get_client_errors() as error:
            raise _to_task_error(key, error) from error
        part.remove()

    def find_published(self, task: TaskInput) -> int | None:
        """Return the size of the object that an earlier attempt published, or None.

        If S3 does not respond or refuses the request, nothing is found.
        """
        location = {"Bucket": self.bucket, "Key": self._make_full_key(task.key)}
        try:
            found = call_checked(self._client, "head_object", **location)
        except errors.get_client_errors():
            return None
        return (
            int(found["ContentLength"]) if found["Metadata"].get(_MARK) == task.mark else None
        )

    def _make_full_key(self, key: str) -> str:
        full_key = f"{self._prefix}/{key}" if self._prefix else key
        if len(full_key.encode()) > _MAX_KEY_BYTES:
            raise TaskError("InvalidName", f"more than {_MAX_KEY_BYTES} bytes with the prefix")
        return full_key

    def _put(self, part: PartialFile, location: dict[str, Any]) -> None:
        data = os.pread(part.fd, part.size, 0)
        digest = _encode_base64(part.digests.get_digest("sha256"))
        checksum = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": digest}
        call_checked(self._client, "put_object", **location, Body=data, **checksum)

    def _put_in_pieces(
        self,
        part: PartialFile,
        location: dict[str, Any],
        mark: dict[str, Any],
        run: RunningDownload,
    ) -> None:
        about = {**location, **mark, "ChecksumAlgorithm": "SHA256"}
        started = call_checked(self._client, "create_multipart_upload", **about)
        upload = {**location, "UploadId": started["UploadId"]}
        try:
            pieces = list(self._upload_pieces(part, upload, run))
            listed = {"MultipartUpload": {"Parts": pieces}}
            call_checked(self._client, "complete_multipart_upload", **upload, **listed)
        except BaseException:
            self._abort(upload)
            raise

    def _upload_pieces(
        self, part: PartialFile, upload: dict[str, Any], run: RunningDownload
    ) -> Iterator[dict[str, Any]]:
        file_hash = hashlib.sha256()
        size = max(self._piece_bytes, -(-part.size // _MAX_PARTS))
        for number, at in enumerate(range(0, part.size, size), 1):
            run.check()
            data = os.pread(part.fd, min(size, part.size - at), at)
            file_hash.update(data)
            digest = _encode_base64(hashlib.sha256(data).digest())
            piece = {"PartNumber": number, "Body": data, "ChecksumSHA256": digest}
            response = call_checked(self._client, "upload_part", **upload, **piece)
            yield {"PartNumber": number, "ETag": response["ETag"], "ChecksumSHA256": digest}
        if file_hash.digest() != part.digests.get_digest("sha256"):
            text = "the bytes on disk differ from those that were verified"
            raise TaskError("StorageError", text, start_over=True)

    def _abort(self, upload: dict[str, Any]) -> None:
        # If it fails, the bucket's lifecycle rule aborts it later.
        with suppress(*errors.get_client_errors()):
            self._client.abort_multipart_upload(**upload)

    def close(self) -> None:
        """Close the partial files and the client."""
        self.partial_files.close()
        self._client.close()


def read_lines(url: str) -> Iterator[str]:
    """Return the lines of a text object.

    Raises FileNotFoundError, StoreUnavailable or InvalidJob.
    """
    # First, because its error says what to install if boto3 is missing.
    client = clients.make_retrying_client("s3")

    bucket, key = _split_url(url)
    try:
        response = call_checked(client, "get_object", Bucket=bucket, Key=key)
        return iter(response["Body"].read().decode().splitlines())
    except UnicodeDecodeError:
        raise InvalidJob(f"{url} is not UTF-8 text") from None
    except errors.get_client_errors() as error:
        raise _to_read_error(url, error) from error


def _split_url(url: str) -> tuple[str, str]:
    """Return the bucket of an s3:// URL, and what follows it."""
    bucket, _, rest = parse_url(url, TARGETS).path.partition("/")
    return bucket, rest


def _to_read_error(url: str, error: Exception) -> Exception:
    if errors.get_error_code(error) in ("NoSuchKey", "404"):
        return FileNotFoundError(f"{url} does not exist")
    kind = StoreUnavailable if _is_transient(error) else InvalidJob
    return kind(f"{url} cannot be read: S3 failed ({errors.describe_cause(error)})")


def _encode_base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _to_task_error(key: str, error: Exception) -> TaskError:
    text = f"{key}: S3 failed ({errors.describe_cause(error)})"
    return TaskError("UploadFailed", text, retryable=_is_transient(error), keep=True)


def _is_transient(error: Exception) -> bool:
    permanent = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError")
    return errors.is_transient(error) and type(error).__name__ not in permanent
