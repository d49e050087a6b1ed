"""The version of this package, and how to install its extras."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from holdfast.errors import ConfigError

_DISTRIBUTION = "holdfast-queue"  # `holdfast` on the package index is another project


@cache
def read_version() -> str:
    """Return the version of the installed package, or an empty text if it is not installed."""
    # Here, because the import takes longer than that of a whole queue.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return ""


def format_install_command(extra: str) -> str:
    """Return how to install an extra, without a name that a package index could resolve."""
    return f"pip install '.[{extra}]' in a clone of Holdfast"


@contextmanager
def needs_extra(extra: str, need: str) -> Iterator[None]:
    """Raise ConfigError, with how to install the extra, if an import in the block fails."""
    try:
        yield
    except ImportError:
        command = format_install_command(extra)
        raise ConfigError(f"{need}, which is not installed: {command}") from None
