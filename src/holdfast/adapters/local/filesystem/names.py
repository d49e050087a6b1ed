"""File names: the whole state of a task, in a form a person can read.

    pending/<segment>/<key>~<n>[-<refunds>]~<due_ms>.json
    leased/<key>~<n>[-<refunds>]~<worker>~<claimed_ms>+<held_ms>.json
    completed/<hour>/<key>~<n>[-<refunds>]~<worker>~<done_ms>.json
    failed/<key>~<n>[-<refunds>].json        and the same with .reason.json

`key` is a nonce of the push and a hash of the id, so a re-pushed id is a new name. `n`
counts claims and never falls: it is the fence. `refunds` of them were given back
unstarted and are not charged as attempts. No name is ever used twice.
"""

import hashlib
import re
from typing import NamedTuple

from holdfast.core.errors import InvalidName

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = r"([0-9a-f]{18})~(\d{1,9})(?:-(\d{1,9}))?"
PENDING = re.compile(_KEY + r"~(\d{1,15})\.json")
LEASED = re.compile(_KEY + r"~([0-9a-z]{1,16})~(\d{1,15})\+(\d{1,15})\.json")
COMPLETED = re.compile(_KEY + r"~([0-9a-z]{1,16})~(\d{1,15})\.json")
FAILED = re.compile(_KEY + r"\.json")
REASON = re.compile(_KEY + r"\.reason\.json")
SEGMENT = re.compile(r"(\d{13})-[0-9a-f]{1,16}-\d{1,12}(s?)")  # s: sealed, see segments.py
ID_HASH = re.compile(r"[0-9a-f]{40}")
KEY = re.compile(r"[0-9a-f]{18}")
RECORD = re.compile(r"([0-9a-f]{18})(~[0-9]{1,9}(?:-[0-9]{1,9})?)?")  # see ids.py
DYING = re.compile(r"dying-([0-9a-f]{18})")
HOUR = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}")


class Task(NamedTuple):
    """What every name says: which push, how often claimed, how often not charged."""

    key: str
    fence: int
    refunds: int

    @property
    def attempts(self) -> int:
        return self.fence - self.refunds

    def claimed(self) -> "Task":
        """The same, claimed once more."""
        return Task(self.key, self.fence + 1, self.refunds)

    def refunded(self) -> "Task":
        """The same, with one more claim not charged."""
        return self._replace(refunds=self.refunds + 1)

    @property
    def stem(self) -> str:
        if self.refunds:
            return f"{self.key}~{self.fence}-{self.refunds}"
        return f"{self.key}~{self.fence}"


def task(match: re.Match[str]) -> Task:
    """The task a name matched by one of the patterns above speaks of."""
    key, fence, refunds = match.group(1, 2, 3)
    return Task(key, int(fence), int(refunds) if refunds else 0)


def pending_path(segment: str, stem: str, due_ms: int) -> str:
    return f"{segment}/{stem}~{due_ms}.json"


def leased_path(stem: str, worker: str, claimed_ms: int, held_ms: int) -> str:
    return f"leased/{stem}~{worker}~{claimed_ms}+{held_ms}.json"


def completed_path(hour: str, stem: str, worker: str, done_ms: int) -> str:
    return f"{hour}/{stem}~{worker}~{done_ms}.json"


def failed_path(task: Task) -> str:
    return f"failed/{task.stem}.json"


def reason_path(task: Task) -> str:
    return f"failed/{task.stem}.reason.json"


def id_path(id_hash: str) -> str:
    return f"ids/{id_hash}"


def dying_path(key: str) -> str:
    return f"ids/dying-{key}"


def has_hash(key: str, id_hash: str) -> bool:
    """Could this key be a push of that id?"""
    return key[10:] == id_hash[:8]


def id_hash(message_id: str) -> str:
    """The whole hash: what dedupe trusts."""
    try:
        return hashlib.blake2b(message_id.encode(), digest_size=20).hexdigest()
    except UnicodeEncodeError:
        raise InvalidName(f"message id {message_id!r} is not valid Unicode text") from None


def checked(kind: str, name: str) -> str:
    """A campaign or queue name that is safe as a folder name."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidName(
            f"{kind} name {name[:80]!r} cannot be used: it must be 1 to 64 letters, digits, "
            "'.', '_' or '-', starting with a letter or digit, without '..'"
        )
    return name
