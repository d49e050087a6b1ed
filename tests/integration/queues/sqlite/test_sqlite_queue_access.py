"""Access to a queue in a SQLite file: by its owner only, or by the users of a group."""

import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast import AnyMessage, SQLiteQueue
from holdfast.errors import ConfigError
from holdfast.version import read_version
from support.users import ALICE, BOB, as_root, as_user, shared_root


def open_queue_at(path: Path, **settings: Any) -> SQLiteQueue[AnyMessage]:
    return SQLiteQueue(path, lease_seconds=60.0, **settings)


@as_root
@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_two_users_share_the_queue_whatever_their_umask(fast_path: Path, killed: bool) -> None:
    """A killed process leaves its log, which the other user must be able to write."""
    path = shared_root(fast_path) / "new" / "work.db"
    read_version()  # its modules may be in a folder that only root can read

    def alice() -> None:
        queue = open_queue_at(path, access="group")
        queue.push_many(AnyMessage(id=f"{n}") for n in range(3))
        if not killed:
            queue.close()

    def bob() -> None:
        with open_queue_at(path) as queue:
            queue.ack_many(queue.poll(2))
            files = list(path.parent.iterdir())
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o660}

    as_user(ALICE, alice)
    assert path.with_name("work.db-wal").exists() == killed
    as_user(BOB, bob)
    as_user(ALICE, lambda: open_queue_at(path, access="group").poll(1))
    assert open_queue_at(path).stats().completed == 2


@as_root
@pytest.mark.parametrize("create", [True, False])
def test_other_users_of_a_private_queue_are_refused_in_one_line(
    fast_path: Path, create: bool
) -> None:
    path = shared_root(fast_path) / "new" / "work.db"
    as_user(ALICE, lambda: open_queue_at(path).push(AnyMessage()))

    def bob() -> None:
        with pytest.raises(ConfigError, match=r"Permission denied|permissions") as refused:
            open_queue_at(path, create=create)
        assert "\n" not in str(refused.value)

    as_user(BOB, bob)
    assert open_queue_at(path).stats().ready == 1
