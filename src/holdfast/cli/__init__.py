"""The `holdfast` command. Its modules import little, so that `--help` responds at once."""

try:
    import holdfast.errors  # noqa: F401
except ImportError as error:  # one line instead of a traceback, before any command is imported
    raise SystemExit(f"holdfast: {error}") from None
