"""The table of all commands, and groups that import a command only when it is used.

A command imports none of the others, and `holdfast --help` imports no group's commands. So
no command waits for modules that only other commands need.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.products import find_products, load_part

Commands = Mapping[str, tuple[str, str | None]]

# Each command's function and its panel in the help.
_COMMANDS = {
    "push": ("holdfast.cli.push:push", "Work"),
    "work": ("holdfast.cli.work:work", "Work"),
    "web": ("holdfast.cli.web:web", "Inspect"),
    "top": ("holdfast.cli.top:top", "Inspect"),
    "queues": ("holdfast.cli.queues:queues", "Inspect"),
    "status": ("holdfast.cli.inspect:status", "Inspect"),
    "list": ("holdfast.cli.inspect:list_", "Inspect"),
    "show": ("holdfast.cli.inspect:show", "Inspect"),
    "explain": ("holdfast.cli.inspect:explain", "Inspect"),
    "cancel": ("holdfast.cli.maintenance:cancel", "Maintain"),
    "purge": ("holdfast.cli.maintenance:purge", "Maintain"),
    "doctor": ("holdfast.cli.doctor:doctor", "Maintain"),
    "demo": ("holdfast.cli.demo:demo", "Try"),
}
_DEAD = {
    "list": ("holdfast.cli.inspect:list_dead_letters", None),
    "show": ("holdfast.cli.inspect:show_dead_letter", None),
    "redrive": ("holdfast.cli.maintenance:redrive", None),
    "drop": ("holdfast.cli.maintenance:drop", None),
}
# What `holdfast --help` says of each command, so that it need not import them. It repeats
# their docstrings, with which a test compares it.
_HELP = {
    "push": "Push messages. When this has returned, they cannot be lost.",
    "work": "Handle messages. Ctrl-C lets running work finish; Ctrl-C again stops now.",
    "web": "Show queues, jobs and conversations in a browser.",
    "top": "Show the leases and workers of queues in the terminal, until Ctrl-C.",
    "queues": "List the queues of a data folder, a database or an AWS account.",
    "status": "Show how many messages are ready, leased, completed and failed.",
    "list": "List messages by their state, the fields of their bodies, or their errors.",
    "show": "Show a message with its body.",
    "explain": "Show a message's holder, lease, past attempts and last error.",
    "cancel": "Make waiting or running messages dead letters, and tell their handlers.",
    "purge": "Remove completed messages, and files that killed processes left behind.",
    "doctor": "Check queues, stores, products or a worker for problems.",
    "demo": "Kill workers, let a handler hang, and show that the totals still match.",
}


class _GroupInfo(NamedTuple):
    """A group of commands."""

    commands: Commands
    help: str
    panel: str


@cache
def _list_groups() -> dict[str, _GroupInfo]:
    """Return the groups: one for each product, and that of dead letters."""
    products = {
        product.group: _GroupInfo(product.commands, product.help, product.panel)
        for product in find_products()
    }
    text = "List, show, redrive or drop dead letters."
    return {**products, "dead": _GroupInfo(_DEAD, text, "Maintain")}


class CommandTable(Mapping[str, Any]):
    """The commands of a group, or of `holdfast` itself, for which the name is empty.

    Reading a command returns one that can be listed but not run, if that needs no import.
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
        return TyperCommand(name, help=_HELP[name], rich_help_panel=_COMMANDS[name][1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def load(self, name: str) -> Any:
        """Return a command that can be run. This imports its module."""
        if (group := self._groups.get(name)) is None:
            return _load_command(name, *self._commands[name])
        return Group(
            name=name,
            commands=cast(Any, CommandTable(name)),
            help=group.help,
            rich_help_panel=group.panel,
            rich_markup_mode="rich",
            no_args_is_help=True,
        )


def _load_command(name: str, place: str, panel: str | None) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    function = flatten_options(load_part(place))
    app.command(name, cls=Command, rich_help_panel=panel)(function)
    return typer.main.get_command(app)


def flatten_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function that takes the fields of each dataclass among the parameters.

    So commands that share options share a dataclass, whose fields are options.
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

    keywords = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in options]
    call.__doc__ = function.__doc__
    call.__signature__ = Signature(keywords)  # type: ignore[attr-defined]  # inspect reads it
    call.__annotations__ = {option.name: option.annotation for option in options}
    return call


class _PlainFlags:
    """A command whose help shows no type for flags, which take no value."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]  # that of the command
        for option in params:
            if getattr(option, "is_flag", False):
                option.display_type_rich = _hide_type  # typer's own says <bool>
        return params


def _hide_type(ctx: Any) -> None:
    return None


class Command(_PlainFlags, TyperCommand):
    """A command that is run."""


class Group(_PlainFlags, TyperGroup):
    """A group that loads only the command that is run."""

    commands: Any  # a CommandTable

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.commands.load(name) if name else None, rest
