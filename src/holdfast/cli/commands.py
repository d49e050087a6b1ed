"""The table of all commands, and groups that import a command only when it is used.

A command imports none of the others, and `holdfast --help` imports no group's commands. So
no command waits for modules that only other commands need.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from inspect import Parameter, Signature, signature
from types import ModuleType
from typing import Any, cast, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

# Each command's function in holdfast.cli and its panel in the help.
_COMMANDS = {
    "push": ("push:push", "Work"),
    "work": ("work:work", "Work"),
    "status": ("inspect:status", "Inspect"),
    "list": ("inspect:list_", "Inspect"),
    "show": ("inspect:show", "Inspect"),
    "explain": ("inspect:explain", "Inspect"),
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
    "status": "Show how many messages are ready, leased, completed and failed.",
    "list": "List the messages in a state, oldest first.",
    "show": "Show a message with its body.",
    "explain": "Show a message's holder, lease, past attempts and last error.",
    "purge": "Remove completed messages, and files that killed processes left behind.",
    "doctor": "Check a queue's folder, or an SQS queue's settings, for problems.",
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
    app.command(name, cls=_Command, rich_help_panel=panel)(flatten_options(loaded))
    return typer.main.get_command(app)


def flatten_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function that takes the fields of each dataclass among the parameters.

    So commands that share options share a dataclass, whose fields are options.
    """
    hints = get_type_hints(function, include_extras=True)
    shared: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        if name in shared:
            parameters += _list_fields(shared[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    def call(**given: Any) -> None:
        for name, kind in shared.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        function(**given)

    keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    call.__doc__ = function.__doc__
    call.__signature__ = Signature(keywords)  # type: ignore[attr-defined]  # inspect reads it
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _list_fields(kind: Any) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]


class _Command(TyperCommand):
    """A command whose help is formatted without modules that it does not need."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _import_formatter()
        super().format_help(ctx, formatter)


class Group(TyperGroup):
    """A group that loads only the command that is run."""

    commands: Any  # a CommandTable

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.commands.load(name) if name else None, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _import_formatter()
        super().format_help(ctx, formatter)


def _import_formatter() -> None:
    """Import typer's help formatter without rich's Markdown and tracebacks.

    It imports both, which takes longer than all else that help does, and uses neither for
    us. If another version of typer cannot be imported so, it imports them as usual later.
    """
    unused = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
    unused = {module: name for module, name in unused.items() if module not in sys.modules}
    for module, name in unused.items():
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], name, type(name, (), {}))
    try:
        import_module("typer.rich_utils")
    except Exception:
        sys.modules.pop("typer.rich_utils", None)
    finally:
        for module in unused:
            del sys.modules[module]
