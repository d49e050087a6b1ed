"""What must be true of a queue folder, told from the files alone."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from holdfast.adapters.local.filesystem import names

STATES = ("pending", "leased", "completed", "failed")
_PATTERNS = {
    "pending": names.PENDING,
    "leased": names.LEASED,
    "completed": names.COMPLETED,
    "failed": names.FAILED,
}


def tasks(folder: Path) -> Iterator[tuple[str, names.TaskName, Path]]:
    """Every task there is: its state, what its name says, its file."""
    for state in STATES:
        for path in _files(folder / state):
            if match := _PATTERNS[state].fullmatch(path.name):
                yield state, names.task(match), path


def unreadable(folder: Path) -> list[str]:
    """I-FQ-8: files in sight that are not whole JSON objects. A file may vanish meanwhile."""
    return [
        str(path.relative_to(folder))
        for path in _files(folder)
        if path.suffix == ".json"
        and path.relative_to(folder).parts[0] != "tmp"
        and not _is_json(path)
    ]


def strangers(folder: Path) -> list[str]:
    """Files in the four states whose names the protocol does not know."""
    return [
        str(path.relative_to(folder))
        for state in STATES
        for path in _files(folder / state)
        if not _PATTERNS[state].fullmatch(path.name)
        and not (state == "failed" and names.REASON.fullmatch(path.name))
    ]


def doubles(folder: Path) -> list[str]:
    """I-FQ-1: incarnations that are in more than one place."""
    counted = Counter(task.key for _, task, _ in tasks(folder))
    return [key for key, times in counted.items() if times > 1]


def reasonless(folder: Path) -> list[str]:
    """Dead letters that do not say why."""
    dead = [path for state, _, path in tasks(folder) if state == "failed"]
    return [path.name for path in dead if not _says_why(path.with_suffix(".reason.json"))]


def residue(folder: Path) -> list[str]:
    """I-FQ-10: what a sweep should have removed, once no process is at work."""
    stems = {path.stem for state, _, path in tasks(folder) if state == "failed"}
    left = list(_files(folder / "tmp"))
    left += [
        path
        for path in _files(folder / "failed")
        if names.REASON.fullmatch(path.name)
        and path.name.removesuffix(".reason.json") not in stems
    ]
    left += [path for path in _files(folder / "ids") if not _is_needed(path, folder)]
    return [str(path.relative_to(folder)) for path in left]


def _is_needed(path: Path, folder: Path) -> bool:
    """A record is there for a live task, a mark for a dead letter."""
    if path.name[0] == ".":
        return True
    is_mark = names.MARK.fullmatch(path.name) is not None
    return any(
        task.key == _key(path) and is_mark == (state == "failed")
        for state, task, _ in tasks(folder)
    )


def traces(folder: Path) -> list[str]:
    """History and checkpoints of tasks that are gone."""
    there = {task.key for _, task, _ in tasks(folder)}
    kept = [*_files(folder / "history"), *_files(folder / "checkpoints")]
    names_of = [(p, p.relative_to(folder).parts[1]) for p in kept]
    return [str(p.relative_to(folder)) for p, name in names_of if name[:18] not in there]


def all_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in _files(folder)}


def faults(folder: Path) -> dict[str, list[str]]:
    """All that must never be, whoever is at work; empty when all is well."""
    found = {
        "unreadable": unreadable(folder),
        "strangers": strangers(folder),
        "in two places": doubles(folder),
        "dead without a reason": reasonless(folder),
    }
    return {what: where for what, where in found.items() if where}


def _files(folder: Path) -> Iterator[Path]:
    """All below, but for folders. One that vanishes meanwhile has none."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (Path(parent, name) for name in sorted(files + links))


def _key(path: Path) -> str:
    """What a record in ids/ names."""
    return os.readlink(path)[:18] if path.is_symlink() else ""


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except FileNotFoundError:
        return True
    except ValueError:
        return False


def _says_why(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes())["reason"])
    except (OSError, ValueError, KeyError):
        return False
