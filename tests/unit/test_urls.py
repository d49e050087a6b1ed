"""The URLs of queues, stores and targets, also hostile ones."""

from pathlib import Path

import pytest

from holdfast.errors import ConfigError, InvalidName
from holdfast.urls import (
    QUEUES,
    STORES,
    TARGETS,
    Url,
    UrlKind,
    find_store_file,
    parse_url,
    split_database_path,
)

SQS_URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/enrich"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("enrich", Url("file", "enrich")),
        ("acme/enrich?lease_seconds=7", Url("file", "acme/enrich", {"lease_seconds": "7"})),
        ("./c:d/acme/enrich", Url("file", "./c:d/acme/enrich")),
        ("my-work:x", Url("file", "my-work:x")),
        ("C:q", Url("file", "C:q")),
        ("50%25/q", Url("file", "50%25/q")),  # only a URL with a scheme is percent-encoded
        ("file:/srv/my%20work/q", Url("file", "/srv/my work/q")),
        ("file:/srv/a%3Fb/q?dedupe=1", Url("file", "/srv/a?b/q", {"dedupe": "1"})),
        ("FILE:/srv/q", Url("file", "/srv/q")),
        ("work.db/enrich", Url("file", "work.db/enrich")),  # a path is never a database
        ("sqlite:work.db", Url("sqlite", "work.db")),
        (
            "sqlite:/srv/my%20work.db/q?dedupe=1",
            Url("sqlite", "/srv/my work.db/q", {"dedupe": "1"}),
        ),
        ("sqs:enrich", Url("sqs", "enrich")),
        ("sqs:q?dead_letters=a%2526b", Url("sqs", "q", {"dead_letters": "a%26b"})),
        (SQS_URL, Url("sqs", SQS_URL)),
        (f"{SQS_URL}?max_attempts=3", Url("sqs", SQS_URL, {"max_attempts": "3"})),
        ("HTTP://host:1/1/q", Url("sqs", "http://host:1/1/q")),
        ("memory:", Url("memory", "")),
        ("memory:q?dedupe=", Url("memory", "q", {"dedupe": ""})),
    ],
)
def test_the_url_of_a_queue(text: str, url: Url) -> None:
    assert parse_url(text, QUEUES) == url


@pytest.mark.parametrize(
    ("path", "file", "queue"),
    [
        ("work.db", "work.db", "default"),
        ("work.db/", "work.db", "default"),
        ("work.db/enrich", "work.db", "enrich"),
        ("work.db/acme/enrich", "work.db", "acme/enrich"),
        ("./a/work.sqlite/enrich", "a/work.sqlite", "enrich"),
        ("../work.sqlite3", "../work.sqlite3", "default"),
        ("/srv/work.db/enrich", "/srv/work.db", "enrich"),
        ("///srv/work.db", "/srv/work.db", "default"),
        ("/srv/work.db/other.db", "/srv/work.db", "other.db"),  # the first one is the file
        ("/srv/a.dbx/.db", "/srv/a.dbx/.db", "default"),
    ],
)
def test_the_path_of_a_sqlite_queue_is_a_file_and_a_name(
    path: str, file: str, queue: str
) -> None:
    assert split_database_path(path) == (Path(file), queue)


@pytest.mark.parametrize("path", ["", ".", "/", "enrich", "work/enrich", "work.DBX", "db"])
def test_a_sqlite_queue_without_a_database_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.db, \.sqlite or \.sqlite3"):
        split_database_path(path)


@pytest.mark.parametrize(
    "path", ["w.db/a/b/c", "w.db/..", "w.db/../q", "w.db/a b", "w.db/-x/q"]
)
def test_a_sqlite_queue_with_a_bad_name_is_refused(path: str) -> None:
    with pytest.raises((ConfigError, InvalidName)):
        split_database_path(path)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("jobs.db", Url("sqlite", "jobs.db")),
        ("C:jobs.db", Url("sqlite", "C:jobs.db")),
        ("sqlite:/srv/50%25?.db", Url("sqlite", "/srv/50%25?.db")),  # the file's own name
        ("file:/srv/jobs.db", Url("sqlite", "/srv/jobs.db")),
        ("dynamodb:", Url("dynamodb", "")),
        ("dynamodb:acme-", Url("dynamodb", "acme-")),
    ],
)
def test_the_url_of_a_store(text: str, url: Url) -> None:
    assert parse_url(text, STORES) == url
    assert find_store_file(text) == (Path(url.path) if url.scheme == "sqlite" else None)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("out", Url("file", "out")),
        ("backup:2026", Url("file", "backup:2026")),
        ("s3://bucket", Url("s3", "bucket")),
        ("s3://bucket/a%20b?c", Url("s3", "bucket/a%20b?c")),
        ("s3://", Url("s3", "")),
    ],
)
def test_the_url_of_a_target(text: str, url: Url) -> None:
    assert parse_url(text, TARGETS) == url


@pytest.mark.parametrize(
    ("text", "kind", "known"),
    [
        (
            "amqp:q",
            QUEUES,
            "no queue for amqp: URLs; use a path, file:ROOT/CAMPAIGN/QUEUE, sqlite:FILE.db",
        ),
        ("dynamodb:q", QUEUES, "no queue for dynamodb: URLs"),
        ("redis:x", STORES, "no store for redis: URLs; use a path, sqlite:PATH or dynamodb:"),
        ("s3://bucket", STORES, "no store for s3: URLs"),
        ("gs://bucket", TARGETS, "no target for gs: URLs; use a folder, or s3://BUCKET/PREFIX"),
        ("S3://bucket", TARGETS, "no target for S3: URLs"),  # it would be taken for a folder
        ("DynamoDB:x", STORES, "no store for DynamoDB: URLs"),
        ("git+ssh://x", TARGETS, "no target for git+ssh: URLs"),
    ],
)
def test_an_unknown_scheme_is_refused_with_the_known_forms(
    text: str, kind: UrlKind, known: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{known.replace('+', '.')}"):
        parse_url(text, kind)


def test_a_repeated_option_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^\?lease_seconds= is repeated in the URL; give"):
        parse_url("q?lease_seconds=5&dedupe=1&lease%5Fseconds=60", QUEUES)


@pytest.mark.parametrize("kind", [QUEUES, STORES, TARGETS])
@pytest.mark.parametrize(
    "text",
    ["a\nb", "x/a\x00b", "a\x1b[31mb", "a\x85b", "s3://a\rb", "sqlite:a\tb", "x" * 100_000],
)
def test_control_characters_and_endless_urls_are_refused_in_one_short_line(
    text: str, kind: UrlKind
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(text, kind)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize(
    "text",
    [
        "file:/srv/a%0Ab",
        "sqs:a%00b",
        "q?data_dir=a%0D%0Ab",
        "q?a%1b=1",
        "q?a%0Ab=1&a%0Ab=2",
        "y" * 4000 + ":x",
        f"q?{'n' * 2000}=1&{'n' * 2000}=2",
    ],
)
def test_what_is_hidden_by_percent_encoding_is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(text, QUEUES)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250
