"""The folders of a queue, and the file names in them, which are the complete state of a task.

    pending/<segment>/<key>~<n>[-<refunds>]~<due_ms>.json
    leased/<key>~<n>[-<refunds>]~<worker>~<claimed_ms>+<renewed_after_ms>+<lease_ms>.json
    completed/<hour>/<key>~<n>[-<refunds>]~<worker>~<done_ms>.json
    failed/<key>~<n>[-<refunds>].json        and the same with .reason.json

`key` is a nonce of the push and a hash of the id, so an id that is pushed again gets a new
name. `n` counts claims and never falls: it is the fence. `refunds` of these claims were
given back unstarted and are not charged as attempts. A cancellation raises both, because it
takes the task from its holder. No name is ever used twice. A lease
ends at the sum of its three numbers. Earlier releases wrote `<claimed_ms>+<held_ms>`. It is
read as a lease of `held_ms` that was never renewed, which has the same end and at least the
same length.

pending/ is divided into segments of about two thousand tasks, because a flat folder never
shrinks on ext4, so every poll would walk the holes of all files that it ever held. With
segments a worker reads one listing and consumes it, whatever the backlog.

    pending/1763237639123-9f2c01ab-0/    tasks of one producer, due when they came, from then on
    pending/1763237639123-9f2c01ab-1s/   sealed: published complete, nothing will be added
    pending/1763237640000-9f2c01ab-2/    delayed tasks: the time is a multiple of 2000

Tasks that were due when they came are due whatever the clock says. If the clock was ahead
then, their segment seems to begin in the future, and is read first, because it is older than
the step of the clock.

Digits are ASCII, because \\d would match the digits of every script, and int() reads those
as well.
"""

import os
import re
import shlex
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import ConfigError, InvalidName, QueueNotFound
from holdfast.queue.info import MessageInfo, MessageState
from holdfast.queues.files.directory import FsOps, QueueDirectory, to_queue_unavailable
from holdfast.store.file_modes import MODES, Access, get_access, make_folders, require_no_file
from holdfast.urls import check_name

FOLDERS = (
    "pending",
    "leased",
    "completed",
    "failed",
    "checkpoints",
    "history",
    "workers",
    "ids",
    "tmp",
)


def get_queue_folder(root: Path, campaign: str, queue: str) -> Path:
    """Return the folder of a queue. Raises InvalidName."""
    return root / "queues" / check_name("campaign", campaign) / check_name("queue", queue)


def open_directory(
    folder: Path, fs: FsOps, *, create: bool, durable: bool, access: Access = "private"
) -> QueueDirectory:
    """Open a queue's folder, and make it if `create` is True.

    `access` applies to a folder that is made now; an existing one keeps its mode. Raises
    QueueNotFound if the folder is missing, QueueUnavailable if it cannot be made, and
    ConfigError if it is private but `access` is "group".
    """
    try:
        if (folder / "pending").is_dir():
            _check_access(folder, access)
        elif create:
            _make_queue_folder(folder, access)
        else:
            require_no_file(folder)
            raise QueueNotFound(
                f"there is no queue at {str(folder)!r}: check the name, or push to it first"
            )
        directory = QueueDirectory(folder, fs, durable=durable)
        directory.refuse_links(*FOLDERS)
        if create:
            _make_missing_folders(directory)
        return directory
    except OSError as error:
        raise to_queue_unavailable(folder, error) from error


def _make_queue_folder(folder: Path, access: Access) -> None:
    make_folders(folder, access)
    if access == "group":  # a process that made it may have been killed before this step
        os.chmod(folder, MODES[access].folder)


def _make_missing_folders(directory: QueueDirectory) -> None:
    """Make the missing folders; pending/ last, because it shows that the queue exists."""
    for name in reversed(FOLDERS):
        directory.mkdir(name)
    if directory.durable:  # up to the folder of the root, which holds its entry
        folder = directory.folder.absolute()  # `sync` starts a relative path in the queue
        for level in (folder, *folder.parents[:4]):
            directory.sync(str(level))


def _check_access(folder: Path, access: Access) -> None:
    status = os.stat(folder)
    if access == "group" and get_access(status) == "private":
        raise ConfigError(
            f"queue {str(folder)!r} is private (mode {status.st_mode & 0o7777:04o}), so it "
            f"cannot be opened with access=group: share it with {format_share_command(folder)}"
        )


def format_share_command(folder: Path) -> str:
    """Return the commands that share an existing queue with a group."""
    path = shlex.quote(str(folder))
    return (
        f"chgrp -R GROUP {path} && chmod -R g+rwX,o= {path} && "
        f"find {path} -type d -exec chmod g+s {{}} +"
    )


_TASK = r"(?P<key>[0-9a-f]{18})~(?P<fence>[0-9]{1,9})(?:-(?P<refunds>[0-9]{1,9}))?"
PENDING = re.compile(_TASK + r"~(?P<due_ms>[0-9]{1,15})\.json")
LEASED = re.compile(
    _TASK + r"~(?P<worker>[0-9a-z]{1,16})~(?P<claimed_ms>[0-9]{1,15})"
    r"\+(?:(?P<renewed_after_ms>[0-9]{1,15})\+)?(?P<lease_ms>[0-9]{1,15})\.json"
)
COMPLETED = re.compile(_TASK + r"~(?P<worker>[0-9a-z]{1,16})~(?P<done_ms>[0-9]{1,15})\.json")
FAILED = re.compile(_TASK + r"\.json")
REASON = re.compile(_TASK + r"\.reason\.json")
# A name that ends in "s" is a sealed segment.
SEGMENT = re.compile(r"(?P<start_ms>[0-9]{13})-[0-9a-f]{1,16}-[0-9]{1,12}(?P<sealed>s?)")
OPEN_MS = 2000  # how long one producer fills a segment; also the width for delayed tasks
ID_HASH = re.compile(r"[0-9a-f]{40}")
KEY = re.compile(r"[0-9a-f]{18}")
MARK = re.compile(r"(?:dead|redrive)-(?P<key>[0-9a-f]{18})")  # see dedupe.py
HOUR = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}")
# An extended attribute of a leased file. Other users may write it, too.
BEAT = re.compile(
    r"(?P<fence>[0-9]{1,9}) (?P<beat_ms>[0-9]{1,15})(?: (?P<progress>-?[0-9]{1,15}\.[0-9]{6}))?"
)
CHECKPOINT = re.compile(r"(?P<fence>[0-9]{1,9})\.json")
# One claim a second for three years. No queue has written a higher fence.
MAX_FENCE = 99_999_999
LAST_FENCE = 999_999_999  # the highest fence that the patterns can read


def is_due_when_pushed(segment: str) -> bool:
    """Return whether the tasks of a segment were due when they came, see above."""
    return int(segment[:13]) % OPEN_MS != 0


_PATTERNS = {
    MessageState.PENDING: PENDING,
    MessageState.LEASED: LEASED,
    MessageState.COMPLETED: COMPLETED,
    MessageState.FAILED: FAILED,
}
# The tasks of these states are in folders of their own, below the folder of the state.
_FOLDER_PATTERNS = {MessageState.PENDING: SEGMENT, MessageState.COMPLETED: HOUR}


def list_tasks(
    directory: QueueDirectory, state: MessageState, first_folder: str = ""
) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the path of each task in a state, and what its name says, by path."""
    for folder in _list_folders(directory, state):
        if folder >= first_folder:
            for name in sorted(directory.list_readable(folder)):
                if match := _PATTERNS[state].fullmatch(name):
                    yield f"{folder}/{name}", match


def find_foreign(directory: QueueDirectory) -> list[str]:
    """Find files and folders that the queue did not make and will not change."""
    foreign = [
        f"{folder}/{name}"
        for state in MessageState
        for folder in _list_folders(directory, state)
        for name in directory.list_readable(folder)
        if not _PATTERNS[state].fullmatch(name)
        and not (state is MessageState.FAILED and REASON.fullmatch(name))
    ]
    return foreign + [
        f"{state.value}/{name}"
        for state, pattern in _FOLDER_PATTERNS.items()
        for name in directory.list(state.value)
        if not pattern.fullmatch(name)
    ]


def _list_folders(directory: QueueDirectory, state: MessageState) -> list[str]:
    if (pattern := _FOLDER_PATTERNS.get(state)) is None:
        return [state.value]
    listed = sorted(directory.list(state.value))
    return [f"{state.value}/{name}" for name in listed if pattern.fullmatch(name)]


def format_beat(fence: int, beat_ms: int, progress: float | None) -> str:
    """Return the text that keeps the last beat of a claim."""
    return f"{fence} {beat_ms}" + ("" if progress is None else f" {progress:.6f}")


class TaskName(NamedTuple):
    """The part that all names of a task have: its push, its claims and its refunds."""

    key: str
    fence: int
    refunds: int

    @property
    def attempts(self) -> int:
        """The number of claims that are charged as attempts."""
        return self.fence - self.refunds

    def refunded(self) -> "TaskName":
        """Return the name with one more claim that is not charged."""
        return self._replace(refunds=self.refunds + 1)

    def cancelled(self) -> "TaskName":
        """Return the name for a cancelled task, with the same attempts.

        Its fence is higher than that of a holder, so that the holder does not take the
        cancelled task for the one that it dead-letters. It rises by two, because with one it
        would be the name that a worker gives to a task that it finds out of attempts.
        """
        fence, refunds = min(self.fence, LAST_FENCE - 2), min(self.refunds, LAST_FENCE - 2)
        return self._replace(fence=fence + 2, refunds=refunds + 2)

    @property
    def failed_path(self) -> str:
        """The path of the task as a dead letter."""
        return f"failed/{self.stem}.json"

    @property
    def reason_path(self) -> str:
        """The path of the dead letter's reason."""
        return f"failed/{self.stem}.reason.json"

    @property
    def stem(self) -> str:
        """The name as text, without the part that depends on the state."""
        if self.refunds:
            return f"{self.key}~{self.fence}-{self.refunds}"
        return f"{self.key}~{self.fence}"


def explain_impossible(task: TaskName) -> str:
    """Return the reason for a dead letter whose name no queue can have written."""
    return (
        f"its file name says {task.fence:,} claims, {task.refunds:,} of them not charged, "
        "which no queue wrote: push its body as a new message, then drop this one"
    )


def parse_task(match: re.Match[str]) -> TaskName:
    """Return the task of a name that one of the task patterns above matched."""
    key, fence, refunds = match.group("key", "fence", "refunds")
    return TaskName(key, int(fence), int(refunds) if refunds else 0)


def to_task(info: MessageInfo) -> TaskName:
    """Return the task that a message info describes."""
    return TaskName(info.key, info.fence, info.fence - info.attempts)


def parse_deadline_ms(leased: re.Match[str]) -> int:
    """Return when the lease in a name matched by LEASED ends, on its holder's timeline."""
    claimed_ms, renewed_after_ms, lease_ms = leased.group(
        "claimed_ms", "renewed_after_ms", "lease_ms"
    )
    return int(claimed_ms) + int(renewed_after_ms or 0) + int(lease_ms)


def has_hash(key: str, id_hash: str) -> bool:
    """Return whether this key can be a push of that id."""
    return key[10:] == id_hash[:8]


def hash_id(message_id: str) -> str:
    """Return the complete hash of an id, on which dedupe relies."""
    try:
        return blake2b(message_id.encode(), digest_size=20).hexdigest()
    except UnicodeEncodeError:
        raise InvalidName(f"message id {message_id!r} is not valid Unicode text") from None
