"""Checksums: the expected checksum of a file, and the digests of the received bytes."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from holdfast.jobs.errors import InvalidJob

_FORM = re.compile(r"(sha256):([0-9a-f]{64})|(md5):([0-9a-f]{32})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Checksum:
    """The expected checksum of a file."""

    algorithm: str
    hexadecimal: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `sha256:<hex>` or `md5:<hex>`. Raises InvalidJob."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise InvalidJob("a checksum is sha256:<64 hex digits> or md5:<32 hex digits>")
        algorithm, digits = (group for group in match.groups() if group)
        return cls(algorithm.lower(), digits.lower())


class Digests:
    """Running digests of one stream of bytes. Without algorithms it costs nothing."""

    def __init__(self, algorithms: Iterable[str]) -> None:
        self._algorithms = sorted(set(algorithms))
        self.restart()

    def update(self, data: bytes) -> None:
        """Add bytes to every digest."""
        for digest in self._running.values():
            digest.update(data)

    def restart(self) -> None:
        """Forget all bytes that were added."""
        # MD5 is for servers that publish nothing better, and security does not rely on it
        # here. Systems that forbid MD5 otherwise allow it with usedforsecurity=False.
        self._running = {
            name: hashlib.new(name, usedforsecurity=False) for name in self._algorithms
        }

    def has(self, checksum: Checksum) -> bool:
        """Return whether the bytes have this checksum."""
        return self._running[checksum.algorithm].hexdigest() == checksum.hexadecimal

    def get_digest(self, algorithm: str) -> bytes:
        """Return the digest of the bytes so far."""
        return self._running[algorithm].digest()

    def __bool__(self) -> bool:
        return bool(self._running)
