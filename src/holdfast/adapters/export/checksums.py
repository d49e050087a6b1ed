"""Checksums: what a file must have, and what it has."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from holdfast.jobs.errors import InvalidJob

_FORM = re.compile(r"(sha256):([0-9a-f]{64})|(md5):([0-9a-f]{32})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a file must have."""

    algorithm: str
    hexadecimal: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises InvalidJob."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise InvalidJob("a checksum is sha256:<64 hex digits> or md5:<32 hex digits>")
        algorithm, digits = (group for group in match.groups() if group)
        return cls(algorithm.lower(), digits.lower())


class Digests:
    """Running digests of one stream of bytes; none at all costs nothing."""

    def __init__(self, algorithms: Iterable[str]) -> None:
        self._algorithms = sorted(set(algorithms))
        self.restart()

    def update(self, data: bytes) -> None:
        for digest in self._running.values():
            digest.update(data)

    def restart(self) -> None:
        # MD5 is for servers that publish nothing better. Nothing here relies on it for
        # security; systems that forbid it otherwise allow it so.
        self._running = {
            name: hashlib.new(name, usedforsecurity=False) for name in self._algorithms
        }

    def has(self, checksum: Checksum) -> bool:
        return self._running[checksum.algorithm].hexdigest() == checksum.hexadecimal

    def raw(self, algorithm: str) -> bytes:
        return self._running[algorithm].digest()

    def __bool__(self) -> bool:
        return bool(self._running)
