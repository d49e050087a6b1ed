"""The version of this package."""

from functools import cache


@cache
def read_version() -> str:
    """Return the version of the installed package, or an empty text if it is not installed."""
    # Here, because the import takes longer than that of a whole queue.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("holdfast")
    except PackageNotFoundError:
        return ""
