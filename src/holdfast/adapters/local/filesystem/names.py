"""File names: the whole state of a task, in a form a person can read.

    pending/<segment>/<key>~<n>[-<refunds>]~<due_ms>.json
    leased/<key>~<n>[-<refunds>]~<worker>~<claimed_ms>+<renewed_after_ms>+<lease_ms>.json
    completed/<hour>/<key>~<n>[-<refunds>]~<worker>~<done_ms>.json
    failed/<key>~<n>[-<refunds>].json        and the same with .reason.json

`key` is a nonce of the push and a hash of the id, so a re-pushed id is a new name. `n`
counts claims and never falls: it is the fence. `refunds` of them were given back
unstarted and are not charged as attempts. No name is ever used twice. A lease ends at the
sum of its three numbers. Earlier releases wrote `<claimed_ms>+<held_ms>`, which is read as
a lease of `held_ms` that was never renewed: the same end, and at least the same length.

Digits are ASCII: \\d would match those of every script, which int() reads as well.
"""

import hashlib
import re
from typing import NamedTuple

from holdfast.core.errors import InvalidName

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = r"([0-9a-f]{18})~([0-9]{1,9})(?:-([0-9]{1,9}))?"
PENDING = re.compile(_KEY + r"~([0-9]{1,15})\.json")
LEASED = re.compile(
    _KEY + r"~(?P<worker>[0-9a-z]{1,16})~(?P<claimed_ms>[0-9]{1,15})"
    r"\+(?:(?P<renewed_after_ms>[0-9]{1,15})\+)?(?P<lease_ms>[0-9]{1,15})\.json"
)
COMPLETED = re.compile(_KEY + r"~([0-9a-z]{1,16})~([0-9]{1,15})\.json")
FAILED = re.compile(_KEY + r"\.json")
REASON = re.compile(_KEY + r"\.reason\.json")
# s: sealed, see segments.py
SEGMENT = re.compile(r"([0-9]{13})-[0-9a-f]{1,16}-[0-9]{1,12}(s?)")
ID_HASH = re.compile(r"[0-9a-f]{40}")
KEY = re.compile(r"[0-9a-f]{18}")
MARK = re.compile(r"(?:dead|redrive)-([0-9a-f]{18})")  # see ids.py
HOUR = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}")
CHECKPOINT = re.compile(r"([0-9]{1,9})\.json")
MAX_FENCE = 99_999_999  # one claim a second for three years: no queue wrote a higher one
_LAST_FENCE = 999_999_999  # what the patterns can read


class TaskName(NamedTuple):
    """What every name says: which push, how often claimed, how often not charged."""

    key: str
    fence: int
    refunds: int

    @property
    def attempts(self) -> int:
        return self.fence - self.refunds

    def claimed(self) -> "TaskName":
        """The same, claimed once more.

        The last fence that a name can carry is its own successor: such a task is only
        buried, and its name must stay one that people's commands can read.
        """
        return TaskName(self.key, min(self.fence + 1, _LAST_FENCE), self.refunds)

    @property
    def is_possible(self) -> bool:
        """Could the name of a claimed task say this, had a queue written it?"""
        return self.fence <= MAX_FENCE and self.attempts >= 1

    def refunded(self) -> "TaskName":
        """The same, with one more claim not charged."""
        return self._replace(refunds=self.refunds + 1)

    @property
    def stem(self) -> str:
        if self.refunds:
            return f"{self.key}~{self.fence}-{self.refunds}"
        return f"{self.key}~{self.fence}"


def why_impossible(task: TaskName) -> str:
    """What to tell a person about a task whose name no queue can have written."""
    return (
        f"its file name says {task.fence:,} claims, {task.refunds:,} of them not charged, "
        "which no queue wrote: push its body as a new message, then drop this one"
    )


def task(match: re.Match[str]) -> TaskName:
    """The task a name matched by one of the patterns above speaks of."""
    key, fence, refunds = match.group(1, 2, 3)
    return TaskName(key, int(fence), int(refunds) if refunds else 0)


def deadline_ms(leased: re.Match[str]) -> int:
    """Return when the lease in a name matched by LEASED ends, on its holder's timeline."""
    claimed_ms, renewed_after_ms, lease_ms = leased.group(
        "claimed_ms", "renewed_after_ms", "lease_ms"
    )
    return int(claimed_ms) + int(renewed_after_ms or 0) + int(lease_ms)


def pending_path(segment: str, stem: str, due_ms: int) -> str:
    return f"{segment}/{stem}~{due_ms}.json"


def leased_path(
    stem: str, worker: str, claimed_ms: int, renewed_after_ms: int, lease_ms: int
) -> str:
    return f"leased/{stem}~{worker}~{claimed_ms}+{renewed_after_ms}+{lease_ms}.json"


def completed_path(hour: str, stem: str, worker: str, done_ms: int) -> str:
    return f"{hour}/{stem}~{worker}~{done_ms}.json"


def failed_path(task: TaskName) -> str:
    return f"failed/{task.stem}.json"


def reason_path(task: TaskName) -> str:
    return f"failed/{task.stem}.reason.json"


def id_path(id_hash: str) -> str:
    return f"ids/{id_hash}"


def dead_mark_path(key: str) -> str:
    return f"ids/dead-{key}"


def redrive_mark_path(key: str) -> str:
    return f"ids/redrive-{key}"


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
