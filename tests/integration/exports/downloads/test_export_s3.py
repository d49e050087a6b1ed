"""S3 as target: an object appears complete, with its checksum, or not at all.

Proves  (upload) and I-JB-12 for S3, on moto.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from export_place import ExportPlace, cut, sha256
from moto import mock_aws

from holdfast.aws import clients
from holdfast.doctor.checks import CheckFailed
from holdfast.errors import ConfigError
from holdfast.exports.downloads.partial_files import PartialFile
from holdfast.exports.downloads.s3_target import S3Target, read_lines
from holdfast.exports.downloads.task import Digests, RunningDownload, TaskError, TaskInput
from holdfast.exports.errors import InvalidJob, StoreUnavailable
from holdfast.exports.target_check import check_target
from holdfast.lease.clock import SYSTEM_CLOCK
from support.http_server import LoopbackServer, Route, file, status

DATA = bytes(range(256)) * 50_000  # 12.8 MB: two pieces
PIECE = 5 << 20  # the smallest piece that S3 accepts
TASK = TaskInput("t", "j", "http://a.example/", "k")
RUN = RunningDownload(TASK, lambda count: None, SYSTEM_CLOCK)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        client = clients.make_retrying_client("s3")
        client.create_bucket(Bucket="exports")
        yield client


def _objects(s3: Any) -> list[str]:
    return [item["Key"] for item in s3.list_objects_v2(Bucket="exports").get("Contents", [])]


def _uploads(s3: Any) -> list[Any]:
    return list(s3.list_multipart_uploads(Bucket="exports").get("Uploads", []))


@pytest.mark.requirement("R004-101")
@pytest.mark.parametrize("data", [b"", b"small", DATA])
def test_a_file_becomes_an_object(place: ExportPlace, s3: Any, data: bytes) -> None:
    url = place.server.on("/a", file(data))
    result = place.get(
        url, "x/y.bin", target="s3://exports/daily/", s3Bucket="exports", checksum=sha256(data)
    )
    assert result == {"success": True, "bytesProcessed": len(data), "error": None}
    assert _objects(s3) == ["daily/x/y.bin"]
    stored = s3.get_object(Bucket="exports", Key="daily/x/y.bin")
    assert stored["Body"].read() == data
    assert stored["Metadata"].keys() == {"holdfast-task"}
    assert _uploads(s3) == []
    assert list(place.target.with_name("scratch").iterdir()) == []


def test_a_small_object_carries_its_checksum(place: ExportPlace, s3: Any) -> None:
    place.get(place.server.on("/a", file(b"small")), "a", target="s3://exports")
    stored = s3.head_object(Bucket="exports", Key="a", ChecksumMode="ENABLED")
    expected = base64.b64encode(hashlib.sha256(b"small").digest()).decode()
    assert stored["ChecksumSHA256"] == expected


@pytest.mark.requirement("R004-101")
@pytest.mark.parametrize(
    ("route", "known"),
    [
        (file(DATA), {"checksum": sha256(b"other")}),
        (cut(DATA, 9), {}),
        (file(DATA), {"size": 1}),
    ],
)
def test_what_is_not_the_file_never_becomes_an_object(
    place: ExportPlace, s3: Any, route: Any, known: dict[str, Any]
) -> None:
    url = place.server.on("/a", route)
    assert not place.get(url, target="s3://exports/x", attempts=2, **known)["success"]
    assert _objects(s3) == []
    assert _uploads(s3) == []


def test_a_missing_bucket_is_reported_at_once_and_the_file_is_kept(
    place: ExportPlace, s3: Any
) -> None:
    url = place.server.on("/a", file(DATA))
    result = place.get(url, target="s3://nowhere/x")
    assert result["error"]["code"] == "UploadFailed"
    assert "NoSuchBucket" in result["error"]["message"]
    # After the bucket was made, a repetition does not download the file again.
    assert place.get(url, target="s3://exports/x")["success"]
    assert len(place.server.asks) == 1
    assert place.get(url, target="s3://exports/x", s3Bucket="another")["success"] is False


def _part(target: S3Target, data: bytes) -> PartialFile:
    part = target.partial_files.open("task", "http://x/", Digests(target.digests))
    part.resume(trust_other_boots=True, on_chunk=lambda count: None)
    part.write(data)
    return part


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
@pytest.mark.parametrize("passing", [True, False])
def test_an_upload_that_fails_is_abandoned(
    tmp_path: Path, s3: Any, operation: str, passing: bool
) -> None:
    def fail(**_: Any) -> None:
        if passing:
            raise EndpointConnectionError(endpoint_url="https://x/?secret")
        answer = {
            "Error": {"Code": "AccessDenied"},
            "ResponseMetadata": {"HTTPStatusCode": 403},
        }
        raise ClientError(answer, operation)

    target = S3Target("s3://exports/p", str(tmp_path / "s"), piece_bytes=PIECE, client=s3)
    part = _part(target, DATA)
    s3.meta.events.register(f"before-call.s3.{operation}", fail)
    with pytest.raises(TaskError, match="UploadFailed") as failure:
        target.publish(part, "big", RUN)
    assert failure.value.retryable is passing
    assert "secret" not in str(failure.value)
    assert _uploads(s3) == []
    assert _objects(s3) == []

    s3.meta.events.unregister(f"before-call.s3.{operation}", fail)
    target.publish(part, "big", RUN)
    assert s3.get_object(Bucket="exports", Key="p/big")["Body"].read() == DATA


# What a gateway may respond with in the place of S3. It has stored nothing.
GATEWAYS = {
    "an empty body": status("200 OK"),
    "only a request id": status("200 OK", "x-amz-request-id: a"),
    "an object": status("200 OK", "Content-Type: application/json", body=b'{"ok": true}'),
    "a page": status("200 OK", "Content-Type: text/html", body=b"<html><body/></html>"),
}
CREATED = status(
    "200 OK",
    body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
)
UPLOADED = status("200 OK", 'ETag: "a"')


@pytest.fixture
def gateway(place: ExportPlace, monkeypatch: pytest.MonkeyPatch) -> LoopbackServer:
    """A server to which S3's name leads."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", place.server.url(""))
    return place.server


@pytest.mark.parametrize("name", GATEWAYS)
@pytest.mark.parametrize(
    ("data", "responses"),
    [(b"small", ()), (DATA, ()), (DATA, (CREATED,)), (DATA, (CREATED, *[UPLOADED] * 3))],
    ids=["PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"],
)
def test_a_file_is_kept_unless_s3_itself_has_confirmed_it(
    tmp_path: Path, gateway: LoopbackServer, data: bytes, responses: Sequence[Route], name: str
) -> None:
    gateway.on("/exports/p/key", *responses, GATEWAYS[name])
    client = clients.make_fail_fast_client("s3", 60.0)
    target = S3Target("s3://exports/p", str(tmp_path / "s"), piece_bytes=PIECE, client=client)
    part = _part(target, data)
    with pytest.raises(TaskError, match="UploadFailed") as failure:
        target.publish(part, "key", RUN)
    assert failure.value.retryable
    assert (tmp_path / "s" / part.name).read_bytes() == data


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_list_is_read_only_from_s3_itself(gateway: LoopbackServer, name: str) -> None:
    gateway.on("/exports/list.txt", GATEWAYS[name])
    with pytest.raises(StoreUnavailable, match="another server may have responded"):
        read_lines("s3://exports/list.txt")


def test_doctor_notices_that_another_server_responds_for_s3(gateway: LoopbackServer) -> None:
    gateway.on("/exports/.holdfast-doctor", GATEWAYS["an empty body"])
    with pytest.raises(CheckFailed, match="another server may have responded"):
        list(check_target("s3://exports"))


def test_bytes_that_changed_on_disk_are_not_published(tmp_path: Path, s3: Any) -> None:
    target = S3Target("s3://exports/p", str(tmp_path / "s"), piece_bytes=PIECE, client=s3)
    part = _part(target, DATA)
    with (tmp_path / "s" / part.name).open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(TaskError, match="StorageError") as failure:
        target.publish(part, "big", RUN)
    assert failure.value.start_over
    assert (_objects(s3), _uploads(s3)) == ([], [])


def test_an_upload_ends_when_its_job_is_cancelled(tmp_path: Path, s3: Any) -> None:
    target = S3Target("s3://exports/p", str(tmp_path / "s"), piece_bytes=PIECE, client=s3)
    part, run = _part(target, DATA), RunningDownload(TASK, lambda count: None, SYSTEM_CLOCK)
    s3.meta.events.register("before-call.s3.UploadPart", lambda **_: run.stop())
    with pytest.raises(TaskError, match="Cancelled"):
        target.publish(part, "big", run)
    assert (_objects(s3), _uploads(s3)) == ([], [])


def test_a_name_too_long_with_its_prefix_is_refused(tmp_path: Path, s3: Any) -> None:
    target = S3Target(f"s3://exports/{'p' * 1000}", str(tmp_path / "s"), client=s3)
    with pytest.raises(TaskError, match="InvalidName"):
        target.publish(_part(target, b"x"), "k" * 100, RUN)


@pytest.mark.parametrize("where", ["s3://", "s3:///x", "s3://UPPER/x", "s3://a b/x"])
def test_a_target_that_is_no_bucket_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        S3Target(where, str(tmp_path))


def test_a_list_is_read_by_lines(s3: Any) -> None:
    s3.put_object(Bucket="exports", Key="lists/a.txt", Body="one\ntwö\n".encode())
    s3.put_object(Bucket="exports", Key="lists/b.txt", Body=b"\xff")
    assert list(read_lines("s3://exports/lists/a.txt")) == ["one", "twö"]
    with pytest.raises(FileNotFoundError):
        read_lines("s3://exports/lists/missing.txt")
    with pytest.raises(InvalidJob, match="UTF-8"):
        read_lines("s3://exports/lists/b.txt")
    with pytest.raises(InvalidJob, match="NoSuchBucket"):
        read_lines("s3://nowhere/a.txt")
