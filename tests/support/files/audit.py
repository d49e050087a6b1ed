"""Audits: the rules that a queue folder must follow, checked from its files alone."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.queues.files import layout

STATES = ("pending", "leased", "completed", "failed")
_PATTERNS = {
    "pending": layout.PENDING,
    "leased": layout.LEASED,
    "completed": layout.COMPLETED,
    "failed": layout.FAILED,
}


Task = tuple[str, layout.TaskName, Path]
"""Its state, its name and its path."""


def list_tasks(folder: Path) -> Iterator[Task]:
    """Yield every task."""
    for state in STATES:
        yield from _find_tasks(state, _list_files(folder / state))


def _find_tasks(state: str, files: Iterable[Path]) -> Iterator[Task]:
    for path in files:
        if match := _PATTERNS[state].fullmatch(path.name):
            yield state, layout.parse_task(match), path


def _find_foreign(state: str, files: Iterable[Path]) -> list[Path]:
    """Find files in the folder of a state whose names the protocol does not know."""
    return [
        path
        for path in files
        if not _PATTERNS[state].fullmatch(path.name)
        and not (state == "failed" and layout.REASON.fullmatch(path.name))
    ]


def find_reasonless(folder: Path) -> list[str]:
    """Find dead letters without a reason."""
    return _find_reasonless(list_tasks(folder))


def _find_reasonless(tasks: Iterable[Task]) -> list[str]:
    dead = [path for state, _, path in tasks if state == "failed"]
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
    """Find all violations of rules that hold at any time; empty if there are none.

    A file may vanish meanwhile.
    """
    # Listed once, because schedules and crashes of a queue have this called tens of thousands
    # of times.
    files = {part: list(_list_files(folder / part)) for part in _list_parts(folder)}
    in_state = {state: files.get(state, []) for state in STATES}
    tasks = [task for state in STATES for task in _find_tasks(state, in_state[state])]
    visible = [path for part in files if part != "tmp" for path in files[part]]
    foreign = [path for state in STATES for path in _find_foreign(state, in_state[state])]
    keys = Counter(task.key for _, task, _ in tasks)
    faults = {
        "unreadable": [
            str(path.relative_to(folder))
            for path in visible
            if path.suffix == ".json" and not _is_json(path)
        ],
        "strangers": [str(path.relative_to(folder)) for path in foreign],
        "in two places": [key for key, times in keys.items() if times > 1],
        "dead without a reason": _find_reasonless(tasks),
    }
    return {rule: found for rule, found in faults.items() if found}


def _list_parts(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _list_files(path: Path | str) -> Iterator[Path]:
    """Yield all files below a folder, or a file itself. A folder that vanishes has none."""
    try:
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except NotADirectoryError:
        yield Path(path)
    except OSError:
        return
    else:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield from _list_files(entry.path)
            else:
                yield Path(entry.path)


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
