"""`--reload`: start the worker again when a module of the project changes. For development.

The process replaces itself by a new one, so that every module is imported anew. Running work
may finish before that.
"""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event, Thread
from typing import NoReturn

from holdfast.cli.console import info
from holdfast.cli.errors import format_error

_POLL_SECONDS = 0.5


class ChangeWatch:
    """Watches the files of imported modules, and calls `on_change` after the first change."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.has_changed = False
        self._on_change = on_change
        self._seen: dict[Path, int] = {}
        self._closed = Event()
        self._thread = Thread(target=self._run, name="holdfast-reload", daemon=True)

    def __enter__(self) -> "ChangeWatch":
        find_change(self._seen, list_project_files())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            # Handlers may import more modules while they run, so list them each time.
            if (changed := find_change(self._seen, list_project_files())) is not None:
                info(f"{changed.name} changed: starting again when running work is done")
                self.has_changed = True
                self._on_change()
                return


def list_project_files() -> list[Path]:
    """Return the files of imported modules in the working directory, without installed ones."""
    import sysconfig

    project = Path.cwd()
    installed = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    files = [getattr(module, "__file__", None) for module in tuple(sys.modules.values())]
    return [
        Path(file)
        for file in files
        if file and project in Path(file).parents and not file.startswith(installed)
    ]


def find_change(seen: dict[Path, int], files: Iterable[Path]) -> Path | None:
    """Return a file that changed since it was first seen. A missing file is being saved."""
    for file in files:
        try:
            modified = file.stat().st_mtime_ns
        except OSError:
            continue
        if seen.setdefault(file, modified) != modified:
            return file
    return None


def wait_for_change(error: BaseException) -> None:
    """Print why the app cannot run, and wait until a module of the project changes."""
    seen: dict[Path, int] = {}
    files = [*list_project_files(), *_list_failed_files(error)]
    find_change(seen, files)  # before the error is shown, because its reader may be fast
    info(f"holdfast: {format_error(error)}")
    info("waiting for a change")
    while (changed := find_change(seen, files)) is None:
        Event().wait(_POLL_SECONDS)
    info(f"{changed.name} changed: starting again")


def _list_failed_files(error: BaseException | None) -> Iterable[Path]:
    """Return the files that an import failed in. They are not among the imported modules."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            yield Path(error.filename)
        frame = error.__traceback__
        while frame is not None:
            yield Path(frame.tb_frame.f_code.co_filename)
            frame = frame.tb_next
        error = error.__cause__


def restart() -> NoReturn:
    """Replace this process by a new one with the same arguments."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
