"""The `holdfast` command: a table of all commands, and one line for each error.

A command imports none of the others, and `holdfast --help` imports no command. So no command
waits for modules that only other commands need.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from inspect import Parameter, Signature, signature
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TextIO, cast, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.cli.console import (
    ExitCode,
    exit_code_from_error,
    format_error,
    info,
    is_debugging,
    strip_control_characters,
)
from holdfast.products import Product, find_products, load_part
from holdfast.version import read_version

Commands = Mapping[str, tuple[str, str | None]]

# Each command's function and its panel in the help.
_COMMANDS = {
    "push": ("holdfast.cli.push:push", "Work"),
    "work": ("holdfast.cli.work:work", "Work"),
    "web": ("holdfast.cli.web:web", "Inspect"),
    "top": ("holdfast.cli.top:top", "Inspect"),
    "queues": ("holdfast.cli.status:queues", "Inspect"),
    "status": ("holdfast.cli.status:status", "Inspect"),
    "list": ("holdfast.cli.messages:list_", "Inspect"),
    "show": ("holdfast.cli.messages:show", "Inspect"),
    "explain": ("holdfast.cli.messages:explain", "Inspect"),
    "cancel": ("holdfast.cli.messages:cancel", "Maintain"),
    "purge": ("holdfast.cli.messages:purge", "Maintain"),
    "doctor": ("holdfast.cli.doctor:doctor", "Maintain"),
    "demo": ("holdfast.cli.demo:demo", "Try"),
}
_DEAD = {
    "list": ("holdfast.cli.messages:list_dead_letters", None),
    "show": ("holdfast.cli.messages:show_dead_letter", None),
    "redrive": ("holdfast.cli.messages:redrive", None),
    "drop": ("holdfast.cli.messages:drop", None),
}


class _GroupInfo(NamedTuple):
    """A group of commands that is not a product."""

    commands: Commands
    help: str
    panel: str


_DEAD_GROUP = _GroupInfo(_DEAD, "List, show, redrive or drop dead letters.", "Maintain")


@cache
def _list_groups() -> dict[str, Product | _GroupInfo]:
    """Return the groups: one for each product, and that of dead letters."""
    return {**{product.group: product for product in find_products()}, "dead": _DEAD_GROUP}


class CommandTable(Mapping[str, Any]):
    """The commands of a group, or of `holdfast` itself, for which the name is empty.

    Reading a command of `holdfast` returns one that can be listed but not run.
    """

    def __init__(self, group: str) -> None:
        self._groups = {} if group else _list_groups()
        self._commands: Commands = _list_groups()[group].commands if group else _COMMANDS
        self._names = [*self._commands, *self._groups]

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if not self._groups or name in self._groups:
            return self.load(name)
        place, panel = self._commands[name]
        return TyperCommand(name, help=_read_help(place), rich_help_panel=panel)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def load(self, name: str) -> Any:
        """Return a command that can be run. This imports its module."""
        if (group := self._groups.get(name)) is None:
            return _load_command(name, *self._commands[name])
        return _Group(
            name=name,
            commands=cast(Any, CommandTable(name)),
            help=group.help,
            rich_help_panel=group.panel,
            rich_markup_mode="rich",
            no_args_is_help=True,
        )


def _read_help(place: str) -> str:
    """Return the docstring of a command from the source of its module, without an import.

    It is empty for `demo` if a product that it shows was deleted.
    """
    module, _, name = place.partition(":")
    path = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    source = path.read_text() if path.exists() else ""
    found = re.search(rf'^def {name}\(.*?"""(.*?)"""', source, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def _load_command(name: str, place: str, panel: str | None) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    function = flatten_options(load_part(place))
    app.command(name, cls=_Command, rich_help_panel=panel)(function)
    return typer.main.get_command(app)


# -- options


def flatten_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function whose parameters typer understands.

    A dataclass among the parameters is replaced by its fields, so commands that share options
    share a dataclass. Texts in an annotation declare an option.
    """
    own = signature(function).parameters
    kinds: dict[str, Any] = {
        name: p.annotation for name, p in own.items() if is_dataclass(p.annotation)
    }
    shared = {name: signature(kind).parameters for name, kind in kinds.items()}
    options: list[Parameter] = []
    for name, parameter in own.items():
        options += shared[name].values() if name in shared else [parameter]

    def call(**given: Any) -> None:
        for name, kind in kinds.items():
            given[name] = kind(**{option: given.pop(option) for option in shared[name]})
        function(**given)

    keywords = [
        option.replace(kind=Parameter.KEYWORD_ONLY, annotation=_declare_option(option))
        for option in options
    ]
    call.__doc__ = function.__doc__
    call.__signature__ = Signature(keywords)  # type: ignore[attr-defined]  # inspect reads it
    call.__annotations__ = {option.name: option.annotation for option in keywords}
    return call


def _declare_option(option: Parameter) -> Any:
    """Return the annotation of an option as typer wants it.

    Annotated[str, "--from", "ADDRESS", "The sender."] gives the names, the value's form and
    the help; only the help is needed. A form in brackets, such as <TEXT>, makes an argument. A
    flag has no --no- form unless its names have one, a float is a duration, and an int is at
    least 1, unless its form is a range such as 0-9.
    """
    kind, *texts = get_args(option.annotation) or (option.annotation,)
    if not texts or not all(isinstance(text, str) for text in texts):
        return option.annotation
    *given, help_text = texts
    names = [text for text in given if text.startswith("-")]
    forms = [text for text in given if text not in names]
    more: dict[str, Any] = {"metavar": forms[0]} if forms else {}
    if forms and forms[0].startswith("<"):
        return Annotated[kind, typer.Argument(metavar=forms[0][1:-1], help=help_text)]
    if kind in (float, float | None):
        from holdfast.cli.arguments import parse_duration

        more = {"parser": parse_duration, "metavar": "DURATION"}
    elif kind in (int, int | None):
        smallest, _, largest = forms[0].partition("-") if forms else ("1", "", "")
        more = {"min": int(smallest), "max": int(largest) if largest else None}
    default_name = f"--{option.name.replace('_', '-')}"
    return Annotated[kind, typer.Option(*(names or [default_name]), help=help_text, **more)]


class _PlainFlags:
    """A command whose help shows no type for flags, which take no value."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]  # that of the command
        for option in params:
            if getattr(option, "is_flag", False):
                option.display_type_rich = lambda ctx: None  # typer's own says <bool>
        return params


class _Command(_PlainFlags, TyperCommand):
    """A command that is run."""


class _Group(_PlainFlags, TyperGroup):
    """A group that loads only the command that is run."""

    commands: Any  # a CommandTable

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.commands.load(name) if name else None, rest


# -- running one


class _Holdfast(_Group):
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
    usage = getattr(error, "format_message", None)  # typer's, such as an unknown option
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
