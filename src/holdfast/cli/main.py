"""The `holdfast` command: registers every command and prints each error as one line."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any, TextIO

import typer

from holdfast.cli.commands import CommandTable, Group
from holdfast.cli.console import info, strip_control_characters
from holdfast.cli.errors import ExitCode, exit_code_from_error, format_error, is_debugging
from holdfast.version import read_version


class _Holdfast(Group):
    """The group of all commands. It reports that Ctrl-C ended one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": CommandTable("")})

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            info("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


app = typer.Typer(
    cls=_Holdfast,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 not found or failed, 2 usage error, 3 queue unavailable, "
    "4 input refused, 130 interrupted.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {read_version()}")
        raise typer.Exit


@app.callback()
def holdfast(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Queue work, keep it leased until it is done, and count it once."""


def main() -> None:
    """Run the console script and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. An error is one line on stderr."""
    _escape_unencodable(sys.stdout, sys.stderr)
    try:
        result = typer.main.get_command(app).main(
            args=list(arguments), prog_name="holdfast", standalone_mode=False
        )
    except SystemExit as end:
        # Typer and rich exit this way when the pipe is closed, and nothing else here does.
        # `holdfast list enrich | head` is not a failure.
        return ExitCode.OK if isinstance(end.__context__, BrokenPipeError) else ExitCode.BUG
    except (KeyboardInterrupt, typer.Abort):
        info("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _report_error(error)
    return result if isinstance(result, int) else ExitCode.OK


def _report_error(error: Exception) -> int:
    if is_debugging():
        raise error
    usage = getattr(
        error, "format_message", None
    )  # an error of typer, such as an unknown option
    if usage is None:
        # Cleaned as a whole, so that a newline in a file name does not make a second line.
        info(strip_control_characters(f"holdfast: {format_error(error)}"))
        return exit_code_from_error(error)
    if not usage():  # typer has already shown the help
        return ExitCode.USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "holdfast"
    text = f"{command}: {' '.join(usage().split())} (see `{command} --help`)"
    info(strip_control_characters(text))
    return ExitCode.USAGE


def _escape_unencodable(*streams: TextIO | None) -> None:
    """Escape characters that the terminal's encoding lacks, so that output never fails."""
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
