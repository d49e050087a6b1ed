"""SQLite's codes in our words, in one place."""

import sqlite3
from pathlib import Path

from holdfast.core.errors import ConfigError, HoldfastError, StoreUnavailable

# Those a person must mend first; the rest may be over at the next try.
_NEEDS_REPAIR = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
    sqlite3.SQLITE_READONLY: "it cannot be written: see its rights and those of its folder",
    sqlite3.SQLITE_PERM: "its rights forbid it",
    sqlite3.SQLITE_AUTH: "its rights forbid it",
}
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "others kept it locked for too long",
    sqlite3.SQLITE_LOCKED: "others kept it locked for too long",
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_IOERR: "the disk failed or is full",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: see the file, its folder and their rights",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a copy",
    sqlite3.SQLITE_PROTOCOL: "others kept it locked for too long",
}


def translate_error(
    error: sqlite3.Error, path: Path, store: str = "job store"
) -> HoldfastError | None:
    """None for an error that nobody foresaw; it shall be seen as it is."""
    code = get_primary_code(error)
    where = f"the {store} {str(path)!r}"
    if code in _NEEDS_REPAIR:
        return ConfigError(f"{where} cannot be used: {_NEEDS_REPAIR[code]}")
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"{where} does not answer: {_UNAVAILABLE[code]}")
    return None


def get_primary_code(error: sqlite3.Error) -> int:
    """Without the detail that SQLite adds in the higher bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
