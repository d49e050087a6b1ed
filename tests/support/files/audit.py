"""Audits: the rules that a queue folder must follow, checked from its files alone."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from holdfast.queues.files import layout

STATES = ("pending", "leased", "completed", "failed")
_PATTERNS = {
    "pending": layout.PENDING,
    "leased": layout.LEASED,
    "completed": layout.COMPLETED,
    "failed": layout.FAILED,
}


def list_tasks(folder: Path) -> Iterator[tuple[str, layout.TaskName, Path]]:
    """Yield every task: its state, its name and its path."""
    for state in STATES:
        for path in _list_files(folder / state):
            if match := _PATTERNS[state].fullmatch(path.name):
                yield state, layout.parse_task(match), path


def find_unreadable(folder: Path) -> list[str]:
    """Find visible files that are not complete JSON objects. A file may vanish meanwhile."""
    return [
        str(path.relative_to(folder))
        for path in _list_files(folder)
        if path.suffix == ".json"
        and path.relative_to(folder).parts[0] != "tmp"
        and not _is_json(path)
    ]


def find_foreign(folder: Path) -> list[str]:
    """Find files in the four state folders whose names the protocol does not know."""
    return [
        str(path.relative_to(folder))
        for state in STATES
        for path in _list_files(folder / state)
        if not _PATTERNS[state].fullmatch(path.name)
        and not (state == "failed" and layout.REASON.fullmatch(path.name))
    ]


def find_doubles(folder: Path) -> list[str]:
    """Find pushes that are in more than one place."""
    counted = Counter(task.key for _, task, _ in list_tasks(folder))
    return [key for key, times in counted.items() if times > 1]


def find_reasonless(folder: Path) -> list[str]:
    """Find dead letters without a reason."""
    dead = [path for state, _, path in list_tasks(folder) if state == "failed"]
    return [path.name for path in dead if not _has_reason(path.with_suffix(".reason.json"))]


def find_residue(folder: Path) -> list[str]:
    """Find files that a sweep should have removed when no process is at work."""
    stems = {path.stem for state, _, path in list_tasks(folder) if state == "failed"}
    left = list(_list_files(folder / "tmp"))
    left += [
        path
        for path in _list_files(folder / "failed")
        if layout.REASON.fullmatch(path.name)
        and path.name.removesuffix(".reason.json") not in stems
    ]
    left += [path for path in _list_files(folder / "ids") if not _is_needed(path, folder)]
    return [str(path.relative_to(folder)) for path in left]


def _is_needed(path: Path, folder: Path) -> bool:
    """Return whether a record has a live task, or a mark has a dead letter."""
    if path.name[0] == ".":
        return True
    is_mark = layout.MARK.fullmatch(path.name) is not None
    return any(
        task.key == _read_key(path) and is_mark == (state == "failed")
        for state, task, _ in list_tasks(folder)
    )


def find_traces(folder: Path) -> list[str]:
    """Find the history and checkpoints of tasks that are gone."""
    known_keys = {task.key for _, task, _ in list_tasks(folder)}
    kept = [*_list_files(folder / "history"), *_list_files(folder / "checkpoints")]
    names_of = [(p, p.relative_to(folder).parts[1]) for p in kept]
    return [str(p.relative_to(folder)) for p, name in names_of if name[:18] not in known_keys]


def read_all_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in _list_files(folder)}


def find_faults(folder: Path) -> dict[str, list[str]]:
    """Find all violations of rules that hold at any time; empty if there are none."""
    faults = {
        "unreadable": find_unreadable(folder),
        "strangers": find_foreign(folder),
        "in two places": find_doubles(folder),
        "dead without a reason": find_reasonless(folder),
    }
    return {rule: paths for rule, paths in faults.items() if paths}


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder. A folder that vanishes meanwhile has none."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (Path(parent, name) for name in sorted(files + links))


def _read_key(path: Path) -> str:
    """Return the key that a record in ids/ names."""
    return os.readlink(path)[:18] if path.is_symlink() else ""


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except FileNotFoundError:
        return True
    except ValueError:
        return False


def _has_reason(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes())["reason"])
    except (OSError, ValueError, KeyError):
        return False
