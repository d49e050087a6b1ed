"""The `holdfast` command: its parts put together, and every error as one clear line."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from holdfast.cli import dead, inspect, maintenance, push, work
from holdfast.cli.chat.app import app as chat
from holdfast.cli.console import info, strip_control_characters
from holdfast.cli.demo.command import demo
from holdfast.cli.errors import ExitCode, code_of, debugging, line_of
from holdfast.cli.export.app import app as export


class _Group(TyperGroup):
    """Says in words that Ctrl-C ended a command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            info("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 not there or failed, 2 usage, 3 queue unavailable, "
    "4 input refused, 130 interrupted.",
)
app.command(rich_help_panel="Work")(push.push)
app.command(rich_help_panel="Work")(work.work)
app.command(rich_help_panel="Look")(inspect.status)
app.command("list", rich_help_panel="Look")(inspect.list_)
app.command(rich_help_panel="Look")(inspect.show)
app.command(rich_help_panel="Look")(inspect.explain)
app.add_typer(export, name="export", rich_help_panel="Export")
app.add_typer(chat, name="chat", rich_help_panel="Chat")
app.add_typer(dead.app, name="dead", rich_help_panel="Keep in order")
app.command(rich_help_panel="Keep in order")(maintenance.purge)
app.command(rich_help_panel="Keep in order")(maintenance.doctor)
app.command(rich_help_panel="Try it")(demo)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback()
def holdfast(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Queue work that is held fast until it is done, and counted once."""


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Whatever goes wrong is one line on stderr."""
    _make_lenient(sys.stdout, sys.stderr)
    try:
        result = typer.main.get_command(app).main(
            args=list(arguments), prog_name="holdfast", standalone_mode=False
        )
    except SystemExit as end:
        # How typer and rich react to a closed pipe. But `holdfast list enrich | head` is no
        # failure, and nothing else of ours exits this way.
        return ExitCode.OK if isinstance(end.__context__, BrokenPipeError) else ExitCode.BUG
    except (KeyboardInterrupt, typer.Abort):
        info("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _fail(error)
    return result if isinstance(result, int) else ExitCode.OK


def _fail(error: Exception) -> int:
    if debugging():
        raise error
    usage = getattr(error, "format_message", None)  # typer's own: unknown option and such
    if usage is None:
        info(
            strip_control_characters(f"holdfast: {line_of(error)}")
        )  # one line, whatever a file is called
        return code_of(error)
    if not usage():  # it has shown the help already
        return ExitCode.USAGE
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "holdfast"
    info(
        strip_control_characters(
            f"{command}: {' '.join(usage().split())} (see `{command} --help`)"
        )
    )
    return ExitCode.USAGE


def _make_lenient(*streams: TextIO | None) -> None:
    """Somebody's message must not fail to be shown because of a terminal's alphabet."""
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
