"""Translate SQLite's result codes, in one table."""

import sqlite3
from pathlib import Path

from holdfast.core.errors import ConfigError, HoldfastError, StoreUnavailable

# An operator must repair these first. The others may be over at the next try.
_NEEDS_REPAIR = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
    sqlite3.SQLITE_READONLY: "it cannot be written: check the permissions of file and folder",
    sqlite3.SQLITE_PERM: "its permissions forbid it",
    sqlite3.SQLITE_AUTH: "its permissions forbid it",
}
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "other processes kept it locked for too long",
    sqlite3.SQLITE_LOCKED: "other processes kept it locked for too long",
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_IOERR: "the disk failed or is full",
    sqlite3.SQLITE_NOMEM: "memory is exhausted",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check the permissions of file and folder",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
    sqlite3.SQLITE_PROTOCOL: "other processes kept it locked for too long",
}


def translate_error(
    error: sqlite3.Error, path: Path, store: str = "job store"
) -> HoldfastError | None:
    """Return Holdfast's error for a SQLite error, or None for an unknown one.

    An unknown error is raised unchanged.
    """
    code = get_primary_code(error)
    name = f"the {store} {str(path)!r}"
    if code in _NEEDS_REPAIR:
        return ConfigError(f"{name} cannot be used: {_NEEDS_REPAIR[code]}")
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"{name} is unavailable: {_UNAVAILABLE[code]}")
    return None


def get_primary_code(error: sqlite3.Error) -> int:
    """Return the code without the detail that SQLite adds in the higher bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
