"""S3 as target of exports: an object appears when it is whole, never before.

A file is uploaded from disk after it was verified. Its digest goes with it, so S3 refuses
bytes that changed on the way; the parts of a large one are hashed while they are read, and
together they must be the verified file, or the upload is abandoned.

A process that is killed in mid-upload leaves parts that cost money and that nobody sees:
give the bucket a lifecycle rule that aborts incomplete multipart uploads.
"""

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any

from holdfast.adapters.aws import clients, errors
from holdfast.adapters.export.cancellation import RunningDownload
from holdfast.adapters.export.errors import TaskError
from holdfast.adapters.export.partial_files import PartialFile, PartialFiles
from holdfast.core.errors import ConfigError
from holdfast.jobs.errors import InvalidJob, StoreUnavailable

_WHERE = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")
_MAX_KEY = 1024
_MOST_PARTS = 10_000
_PIECE = 8 << 20  # in memory for each slot; more only for files over 80 GB


class S3Target:
    """Safe for threads. One client, made in the process that uses it."""

    digests: tuple[str, ...] = ("sha256",)

    def __init__(
        self, where: str, scratch: str, *, piece_bytes: int = _PIECE, client: Any = None
    ) -> None:
        match = _WHERE.fullmatch(where)
        if match is None:
            raise ConfigError(f"target {where[:80]!r}: it must be s3://bucket/prefix")
        self.bucket: str | None = match[1]
        self._prefix = (match[2] or "").strip("/")
        self._piece_bytes = piece_bytes
        self.parts = PartialFiles(os.path.abspath(scratch))
        self._client = clients.patient("s3") if client is None else client

    def publish(self, part: PartialFile, key: str, run: RunningDownload) -> None:
        """Upload it; an object of that name is replaced. Raises TaskError."""
        from botocore.exceptions import BotoCoreError, ClientError

        where = {"Bucket": self.bucket, "Key": self._whole_key(key)}
        run.check()
        try:
            if part.size <= self._piece_bytes:
                self._put(part, where)
            else:
                self._put_in_pieces(part, where, run)
        except (BotoCoreError, ClientError) as error:
            raise _trouble(key, error) from error
        part.remove()

    def _whole_key(self, key: str) -> str:
        whole = f"{self._prefix}/{key}" if self._prefix else key
        if len(whole.encode()) > _MAX_KEY:
            raise TaskError("InvalidName", f"more than {_MAX_KEY} bytes with the prefix")
        return whole

    def _put(self, part: PartialFile, where: dict[str, Any]) -> None:
        data = os.pread(part.fd, part.size, 0)
        digest = _base64(part.digests.raw("sha256"))
        self._client.put_object(
            **where, Body=data, ChecksumAlgorithm="SHA256", ChecksumSHA256=digest
        )

    def _put_in_pieces(
        self, part: PartialFile, where: dict[str, Any], run: RunningDownload
    ) -> None:
        started = self._client.create_multipart_upload(**where, ChecksumAlgorithm="SHA256")
        upload = {**where, "UploadId": started["UploadId"]}
        try:
            pieces = list(self._upload_pieces(part, upload, run))
            self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": pieces})
        except BaseException:
            self._abort(upload)
            raise

    def _upload_pieces(
        self, part: PartialFile, upload: dict[str, Any], run: RunningDownload
    ) -> Iterator[dict[str, Any]]:
        whole = hashlib.sha256()
        size = max(self._piece_bytes, -(-part.size // _MOST_PARTS))
        for number, at in enumerate(range(0, part.size, size), 1):
            run.check()
            data = os.pread(part.fd, min(size, part.size - at), at)
            whole.update(data)
            digest = _base64(hashlib.sha256(data).digest())
            answer = self._client.upload_part(
                **upload, PartNumber=number, Body=data, ChecksumSHA256=digest
            )
            run.moved(0)
            yield {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": digest}
        if whole.digest() != part.digests.raw("sha256"):
            text = "the bytes on disk are not those that were verified"
            raise TaskError("StorageError", text, again=True, afresh=True, keep=False)

    def _abort(self, upload: dict[str, Any]) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.abort_multipart_upload(**upload)
        except (BotoCoreError, ClientError):  # the lifecycle rule does it, later
            return

    def close(self) -> None:
        self.parts.close()
        self._client.close()


def read_lines(url: str) -> Iterator[str]:
    """The lines of a text object. Raises FileNotFoundError, StoreUnavailable, InvalidJob."""
    client = clients.patient("s3")  # first: it says what to install

    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = url.removeprefix("s3://").partition("/")
    try:
        answer = client.get_object(Bucket=bucket, Key=key)
        return iter(answer["Body"].read().decode().splitlines())
    except UnicodeDecodeError:
        raise InvalidJob(f"{url} is not UTF-8 text") from None
    except (BotoCoreError, ClientError) as error:
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> Exception:
    code = errors.code_of(error) or type(error).__name__
    if code in ("NoSuchKey", "404"):
        return FileNotFoundError(f"there is no {url}")
    kind = StoreUnavailable if _may_pass(error) else InvalidJob
    return kind(f"{url} cannot be read: S3 says {code}")


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _trouble(key: str, error: Exception) -> TaskError:
    code = errors.code_of(error) or type(error).__name__
    text = f"{key}: S3 says {code}"
    return TaskError("UploadFailed", text, again=_may_pass(error), keep=True)


def _may_pass(error: Exception) -> bool:
    hopeless = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError")
    return errors.passes(error) and type(error).__name__ not in hopeless
