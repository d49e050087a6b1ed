"""Providers that need no service: a writer that echoes, and a sender to a folder.

The folder has one file for each reply, for trials and for programs that read them. Only the
files' owner can read them, because they contain the texts of conversations.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from holdfast.chat.errors import PermanentError, TransientError
from holdfast.chat.model import digest_texts
from holdfast.chat.outbox import SentPart, WriterAnswer
from holdfast.chat.ports import ReplyPart, ReplyRequest, Secret
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.file_modes import make_folders

_STATUS = "laid down"
_MAX_BYTES = 4 << 20


class EchoWriter:
    """A writer that repeats the customer's text. It uses no threads."""

    secret_fields: tuple[str, ...] = ()

    def open_thread(self, config: Mapping[str, Any], secret: Secret) -> str:
        """Return no thread."""
        return ""

    def write(
        self,
        question: ReplyRequest,
        config: Mapping[str, Any],
        secret: Secret,
        *,
        timeout_seconds: float,
    ) -> WriterAnswer:
        """Return the customer's text; the reply is always the same for the same text."""
        return WriterAnswer(f"You said: {question.text}")


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
    """A sender that writes each part to a file. It is safe for threads and processes.

    A file is either complete or absent, and each part has one.
    """

    secret_fields: tuple[str, ...] = ()
    repeatable = True

    def __init__(self, folder: Path | str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._folder = Path(folder)
        self._clock = clock

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """Create the folder, and provide the call that writes the file."""
        name = digest_texts(part.reference)
        data = self._encode(part, name)
        with _translate_errors("written"):
            make_folders(self._folder)
        yield partial(self._write, name, data)

    def _write(self, name: str, data: bytes) -> SentPart:
        with _translate_errors("written"):
            _publish(self._get_path(name), data)
        return SentPart(name, _STATUS)

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """Return the part if its file exists."""
        name = digest_texts(part.reference)
        with _translate_errors("read"):
            return SentPart(name, _STATUS) if self._get_path(name).exists() else None

    def _get_path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _encode(self, part: ReplyPart, name: str) -> bytes:
        reply = OutboxReply(
            message_sid=name,
            conversation_id=part.key.conversation_id,
            to=part.key.primary_channel,
            sender=str(part.config.get("sender") or ""),
            text=part.text,
            index=part.index,
            sent_at=self._clock.time(),
        )
        try:
            return json.dumps(asdict(reply), ensure_ascii=False, indent=1).encode()
        except UnicodeEncodeError:
            raise PermanentError("the reply is not valid Unicode") from None


@contextmanager
def _translate_errors(verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransientError(f"the outbox cannot be {verb}: {type(error).__name__}") from None


def _publish(path: Path, data: bytes) -> None:
    """Give the file its name once it is complete and on the disk.

    If the same reply was written before, its file stays.
    """
    handle, scratch = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        os.unlink(scratch)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_outbox(folder: Path | str) -> list[OutboxReply]:
    """Return the replies in the folder, the oldest first.

    Files of other programs, and files that disappear meanwhile, are left out. Raises OSError.
    """
    model, replies = TypeAdapter(OutboxReply), []
    for path in Path(folder).glob("*.json"):
        # Reading a pipe would wait for its writer forever.
        with suppress(OSError, ValueError, RecursionError):
            if path.is_file() and path.stat().st_size <= _MAX_BYTES:
                reply = model.validate_json(path.read_bytes(), strict=True)
                replies += [reply] if reply.message_sid == path.stem else []
    return sorted(replies, key=lambda item: (item.sent_at, item.conversation_id, item.index))
