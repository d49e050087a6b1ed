"""The table of all commands, and groups that import a command only when it is used.

A command imports none of the others, and `holdfast --help` imports no group's commands. So
no command waits for modules that only other commands need.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

# Each command's function in holdfast.cli and its panel in the help.
_COMMANDS = {
    "push": ("push:push", "Work"),
    "work": ("work:work", "Work"),
    "web": ("web:web", "Inspect"),
    "top": ("top:top", "Inspect"),
    "queues": ("queues:queues", "Inspect"),
    "status": ("inspect:status", "Inspect"),
    "list": ("inspect:list_", "Inspect"),
    "show": ("inspect:show", "Inspect"),
    "explain": ("inspect:explain", "Inspect"),
    "cancel": ("maintenance:cancel", "Maintain"),
    "purge": ("maintenance:purge", "Maintain"),
    "doctor": ("maintenance:doctor", "Maintain"),
    "demo": ("demo.command:demo", "Try"),
    "export run": ("export.run:run", "Work"),
    "export serve": ("export.serve:serve", "Work"),
    "export list": ("export.inspect:list_", "Inspect"),
    "export show": ("export.inspect:show", "Inspect"),
    "export tables": ("export.inspect:tables", "Maintain"),
    "export doctor": ("export.inspect:doctor", "Maintain"),
    "chat send": ("chat.send:send", "Work"),
    "chat work": ("chat.work:work", "Work"),
    "chat show": ("chat.inspect:show", "Inspect"),
    "chat outbox": ("chat.inspect:outbox", "Inspect"),
    "chat parked": ("chat.maintenance:parked", "Operate"),
    "chat assign": ("chat.maintenance:assign", "Operate"),
    "chat sweep": ("chat.maintenance:sweep", "Maintain"),
    "chat tables": ("chat.maintenance:tables", "Maintain"),
    "chat doctor": ("chat.maintenance:doctor", "Maintain"),
    "dead list": ("inspect:list_dead_letters", None),
    "dead show": ("inspect:show_dead_letter", None),
    "dead redrive": ("maintenance:redrive", None),
    "dead drop": ("maintenance:drop", None),
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
    "doctor": "Check a queue, a deployed stack, or a worker for problems.",
    "demo": "Kill workers, let a handler hang, and show that the totals still match.",
    "export": "Download many files, check them, and store them in a folder or an S3 bucket.",
    "chat": "Answer customers' messages in batches: each batch once, by a writer or a person.",
    "dead": "List, show, redrive or drop dead letters.",
}
_GROUPS = {"export": "Export", "chat": "Chat", "dead": "Maintain"}  # with their panels


class CommandTable(Mapping[str, Any]):
    """The commands of a group, or of `holdfast` itself, for which the name is empty.

    Reading a command returns one that can be listed but not run, if that needs no import.
    """

    def __init__(self, group: str) -> None:
        self._prefix = f"{group} " if group else ""
        names = [name.removeprefix(self._prefix) for name in _COMMANDS if self._prefix in name]
        self._names = names if group else [*(n for n in names if " " not in n), *_GROUPS]

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if self._prefix or name in _GROUPS:
            return self.load(name)
        return TyperCommand(name, help=_HELP[name], rich_help_panel=_COMMANDS[name][1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def load(self, name: str) -> Any:
        """Return a command that can be run. This imports its module."""
        if not self._prefix and name in _GROUPS:
            return Group(
                name=name,
                commands=cast(Any, CommandTable(name)),
                help=_HELP[name],
                rich_help_panel=_GROUPS[name],
                rich_markup_mode="rich",
                no_args_is_help=True,
            )
        return _load_command(name, *_COMMANDS[f"{self._prefix}{name}"])


def _load_command(name: str, place: str, panel: str | None) -> Any:
    module, _, function = place.partition(":")
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    loaded = getattr(import_module(f"holdfast.cli.{module}"), function)
    app.command(name, cls=Command, rich_help_panel=panel)(flatten_options(loaded))
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
