"""Replies laid down in a folder, one file each: for trying things out, and for whoever
fetches them there. The files hold what was said: only their owner can read them."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.adapters.modes import make_folders
from holdfast.conversations.errors import PermanentError, TransientError
from holdfast.conversations.model import mark_of
from holdfast.conversations.outbox import SentPart
from holdfast.conversations.ports import ReplyPart
from holdfast.conversations.secret import Secret
from holdfast.core.clock import SYSTEM_CLOCK, Clock

_STATUS = "laid down"
_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class OutboxReply:
    """One reply in the folder."""

    message_sid: str
    conversation_id: str
    to: str = field(repr=False)
    sender: str = field(repr=False)
    text: str = field(repr=False)
    index: int
    sent_at: float


class OutboxSender:
    """Safe for threads and processes. A part is there whole or not at all, and once."""

    secret_fields: tuple[str, ...] = ()
    repeatable = True

    def __init__(self, folder: Path | str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._folder = Path(folder)
        self._clock = clock

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        mark = mark_of(part.reference)
        data = self._data(part, mark)
        with _written():
            make_folders(self._folder)
        yield partial(self._lay_down, mark, data)

    def _lay_down(self, mark: str, data: bytes) -> SentPart:
        path = self._path(mark)
        with _written():
            if _read(path) is None:  # not there, or damaged: a letter of ours is neither
                _place(path, data)
        return SentPart(mark, _STATUS)

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        mark = mark_of(part.reference)
        try:
            laid = _read(self._path(mark))
        except OSError as error:
            raise TransientError(f"the outbox cannot be read: {type(error).__name__}") from None
        return SentPart(mark, _STATUS) if laid else None

    def _path(self, mark: str) -> Path:
        return self._folder / f"{mark}.json"

    def _data(self, part: ReplyPart, mark: str) -> bytes:
        laid = OutboxReply(
            message_sid=mark,
            conversation_id=part.key.conversation_id,
            to=part.key.primary_channel,
            sender=str(part.config.get("sender") or ""),
            text=part.text,
            index=part.index,
            sent_at=self._clock.time(),
        )
        try:
            return json.dumps(asdict(laid), ensure_ascii=False, indent=1).encode()
        except UnicodeEncodeError:
            raise PermanentError("the reply is not valid Unicode") from None


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransientError(f"the outbox cannot be written: {type(error).__name__}") from None


def letters(folder: Path | str) -> list[OutboxReply]:
    """What was laid down there, the oldest first. Files that are none of ours, half ones,
    and those that vanish meanwhile are left out. Raises OSError."""
    found = []
    for path in Path(folder).glob("*.json"):
        with suppress(OSError):
            found.append(_read(path))
    laid = [one for one in found if one is not None]
    return sorted(laid, key=lambda one: (one.sent_at, one.conversation_id, one.index))


def _place(path: Path, data: bytes) -> None:
    """Under its name when it is whole, and on the disk. Another one's letter stays; a
    damaged file gives way."""
    handle, scratch = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(scratch, path)
        except FileExistsError:
            if _read(path) is None:
                os.replace(scratch, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(scratch)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> OutboxReply | None:
    """None: nothing is there, or nothing of ours."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return _laid(json.loads(path.read_bytes()), path.stem)
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def _laid(data: Any, name: str) -> OutboxReply | None:
    try:
        laid = OutboxReply(**data)
    except TypeError:
        return None
    texts = (laid.message_sid, laid.conversation_id, laid.to, laid.sender, laid.text)
    if not all(isinstance(one, str) for one in texts) or laid.message_sid != name:
        return None
    if not isinstance(laid.sent_at, int | float) or not isinstance(laid.index, int):
        return None
    return laid
