"""bootstrap: which adapter is opened, where, and with which settings."""

import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import (
    AnyMessage,
    Backoff,
    FilesystemQueue,
    Message,
    QueueMessage,
    SQLiteQueue,
    open_queue,
)
from holdfast.errors import ConfigError, InvalidName, MalformedMessage, QueueUnavailable
from holdfast.queues.opening import parse_queue_address
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock, MemoryQueue


@pytest.mark.requirement("R001-023")
@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("enrich", ("data", "default", "enrich")),
        ("acme/enrich", ("data", "acme", "enrich")),
        ("acme/enrich/", ("data", "acme", "enrich")),
        ("./work/acme/enrich", ("work", "acme", "enrich")),
        ("work/acme/enrich", ("work", "acme", "enrich")),
        ("/srv/work/acme/enrich", ("/srv/work", "acme", "enrich")),
        ("///srv/work/acme/enrich", ("/srv/work", "acme", "enrich")),
        ("/srv/work/queues/acme/enrich", ("/srv/work", "acme", "enrich")),
        ("/acme/enrich", ("/", "acme", "enrich")),
        ("/enrich", ("/", "default", "enrich")),
        ("../acme/enrich", ("..", "acme", "enrich")),
    ],
)
def test_a_path_leads_to_root_campaign_and_queue(
    path: str, address: tuple[str, str, str]
) -> None:
    assert parse_queue_address(path, "data") == address


@pytest.mark.parametrize("path", ["", ".", "/", "./"])
def test_a_path_without_a_name_is_refused(path: str) -> None:
    with pytest.raises((ConfigError, InvalidName)):
        open_queue(path, create=False)


@pytest.mark.parametrize("name", ["..", "a/..", "../..", "a/../..", "a b", "-x", "x\0y", "ü"])
def test_a_name_that_is_unsafe_as_a_folder_is_refused_and_nothing_is_created(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InvalidName, ConfigError)):
        open_queue(name, env={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("R001-002")
def test_a_path_opens_a_filesystem_queue_where_it_says(tmp_path: Path) -> None:
    with open_queue(tmp_path / "acme" / "enrich", env={}) as queue:
        assert isinstance(queue, FilesystemQueue)
        assert queue.folder == tmp_path / "queues" / "acme" / "enrich"
        assert queue.name == "acme/enrich"


def test_the_folder_of_a_queue_opens_that_queue(tmp_path: Path) -> None:
    with open_queue(tmp_path / "acme" / "enrich", env={}) as queue:
        queue.push(AnyMessage(id="a"))
    with open_queue(tmp_path / "queues" / "acme" / "enrich", create=False, env={}) as queue:
        assert queue.stats().ready == 1


def test_a_file_url_may_be_percent_encoded(tmp_path: Path) -> None:
    with open_queue(f"file:{tmp_path}/my%20work/acme/enrich", env={}):
        assert (tmp_path / "my work/queues/acme/enrich/pending").is_dir()


def test_sqlite_opens_the_queue_of_that_name_in_the_file(tmp_path: Path) -> None:
    with (
        open_queue(f"sqlite:{tmp_path}/new/work.db/acme/enrich", env={}) as queue,
        open_queue(f"sqlite:{tmp_path}/new/work.db", env={}) as other,
    ):
        assert isinstance(queue, SQLiteQueue)
        assert (queue.name, other.name) == ("acme/enrich", "default")
        queue.push(AnyMessage(id="a"))
        assert (queue.stats().ready, other.stats().ready) == (1, 0)
        [found] = queue.find("a")
        assert found.where == f"{tmp_path}/new/work.db message 1"


def test_a_relative_sqlite_path_begins_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    open_queue("sqlite:work.db", env={"HOLDFAST_DATA_DIR": "elsewhere"}).close()
    assert [path.name for path in tmp_path.iterdir()] == ["work.db"]


def test_a_sqlite_queue_has_the_settings_of_every_queue(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/work.db?lease_seconds=7&durability=power&access=group"
    with open_queue(url, env={"HOLDFAST_MAX_ATTEMPTS": "9"}, dedupe=True) as queue:
        assert isinstance(queue, SQLiteQueue)
        assert (queue.lease_seconds, queue.max_attempts, queue.dedupe) == (7, 9, True)
        with queue._database.begin_read() as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


@pytest.mark.parametrize(
    ("access", "folder", "file"), [("private", 0o700, 0o600), ("group", 0o2770, 0o660)]
)
def test_the_files_of_a_sqlite_queue_have_the_mode_of_its_access(
    tmp_path: Path, access: str, folder: int, file: int
) -> None:
    with open_queue(f"sqlite:{tmp_path}/new/work.db", env={}, access=access) as queue:
        queue.push(AnyMessage())
        files = sorted((tmp_path / "new").iterdir())
        assert [path.name for path in files] == ["work.db", "work.db-shm", "work.db-wal"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {file}
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == folder


def test_a_private_sqlite_queue_is_not_shared_without_being_asked(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/work.db"
    open_queue(url, env={}).close()
    with pytest.raises(ConfigError, match=r"is private \(mode 0600\).*chmod g\+rw"):
        open_queue(url, env={}, access="group")
    open_queue(url, env={}, access="private").close()


@pytest.mark.parametrize(
    "name", ["nowhere.db", "folder/nowhere.db/q", "empty.db", "work.db/other"]
)
def test_opening_without_creating_reports_the_missing_sqlite_queue(
    tmp_path: Path, name: str
) -> None:
    open_queue(f"sqlite:{tmp_path}/work.db", env={}).close()
    (tmp_path / "empty.db").touch()
    with pytest.raises(QueueUnavailable, match=r"there is no queue .* push to it first"):
        open_queue(f"sqlite:{tmp_path}/{name}", env={}, create=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.db", "work.db"]
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_memory_opens_the_fake(tmp_path: Path) -> None:
    queue = open_queue("memory:q", env={}, clock=ManualClock())
    assert isinstance(queue, MemoryQueue)
    assert queue.name == "q"


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="use a path, file:"):
        open_queue("amqp://host/q", env={})


def test_settings_come_from_keywords_url_and_environment(tmp_path: Path) -> None:
    env = {"HOLDFAST_MAX_ATTEMPTS": "9", "HOLDFAST_DATA_DIR": str(tmp_path)}
    with open_queue("q?lease_seconds=7&durability=power", env=env, dedupe=True) as queue:
        assert isinstance(queue, FilesystemQueue)
        assert (queue.lease_seconds, queue.max_attempts) == (7, 9)
        assert (queue.durability, queue.dedupe) == ("power", True)
        assert queue.folder == tmp_path / "queues/default/q"


@pytest.mark.requirement("R001-056", "R001-058")
def test_the_environment_alone_chooses_sqs() -> None:
    with open_queue(env={"HOLDFAST_QUEUE": "sqs:enrich"}) as queue:
        assert isinstance(queue, SQSQueue)


@pytest.mark.requirement("R001-057", "R001-059")
@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/work.db", "file:{}/acme/enrich"])
def test_the_environment_alone_chooses_the_queue_and_its_backoff(
    tmp_path: Path, url: str
) -> None:
    env = {"HOLDFAST_QUEUE": url.format(tmp_path), "HOLDFAST_BACKOFF": "7s,x1"}
    with open_queue(env=env) as queue:
        queue.push(AnyMessage(id="a"))
        assert queue.stats().ready == 1
        assert queue.backoff == Backoff(7, 1)
    with open_queue(url.format(tmp_path) + "?backoff=8s", env=env) as queue:
        assert queue.backoff == Backoff(8)
    with open_queue(env=env, backoff="9s,x3") as queue:
        assert queue.backoff == Backoff(9, 3)


@pytest.mark.parametrize("env", [{}, {"HOLDFAST_QUEUE": ""}])
def test_no_url_and_no_variable_is_an_error_that_names_the_variable(
    env: dict[str, str],
) -> None:
    with pytest.raises(ConfigError, match=r"no queue is given.*set HOLDFAST_QUEUE$"):
        open_queue(env=env)


def test_a_misspelt_variable_is_named_if_no_queue_is_given() -> None:
    with pytest.raises(ConfigError, match=r"HOLDFAST_QEUE is .*did you mean HOLDFAST_QUEUE\?$"):
        open_queue(env={"HOLDFAST_QEUE": "x"})


def test_opening_without_creating_reports_the_missing_queue(tmp_path: Path) -> None:
    with pytest.raises(QueueUnavailable, match="push to it first"):
        open_queue(tmp_path / "acme" / "enrich", create=False, env={})
    assert list(tmp_path.iterdir()) == []


def test_the_model_decides_what_can_be_pushed(tmp_path: Path) -> None:
    class Greeting(QueueMessage):
        name: str

    with open_queue(tmp_path / "a" / "q", Greeting, env={}) as queue:
        queue.push(Greeting(id="a", name="you"))
        [message] = queue.poll()
        assert message.name == "you"


@dataclass
class Order:
    product: str
    amount: int = 1


@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/work.db", "file:{}/acme/orders"])
def test_a_dataclass_is_the_payload_of_its_messages(tmp_path: Path, url: str) -> None:
    with open_queue(url.format(tmp_path), Order, env={}) as queue:
        queue.push(Order("tea"))
        queue.push(Message(payload=Order("coffee", 2), id="acme-42"), delay_seconds=0)
        queue.push_many([Message(payload=Order("milk", 3))])
        messages = queue.poll(10)
        assert [message.payload for message in messages] == [
            Order("tea"),
            Order("coffee", 2),
            Order("milk", 3),
        ]
        assert messages[1].id == "acme-42"
        queue.ack_many(messages)
        with pytest.raises(
            MalformedMessage, match=r"takes Message\[Order\], not Message\[str\]"
        ):
            queue.push("tea")  # type: ignore[call-overload]
        assert queue.stats().ready == 0


def test_a_type_that_cannot_be_a_message_is_refused_before_the_queue_is_made(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="'str' is not a message type"):
        open_queue(tmp_path / "acme" / "enrich", str, env={})
    assert list(tmp_path.iterdir()) == []


def test_a_repeated_option_of_a_url_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\?lease_seconds= is repeated"):
        open_queue("memory:q?lease_seconds=5&lease_seconds=6", env={})
