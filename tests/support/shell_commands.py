"""Finds the commands on a page, and checks that their words exist.

They are ours, targets of the Makefile, and those of AWS.
"""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
from botocore import xform_name

from holdfast.cli.main import CommandTable
from support.paths import ROOT

_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )*(?:holdfast|make|aws) [a-z][^`\n]*)`")
# Commands of the AWS CLI that are not calls of a service.
_CUSTOM = {"s3 mb", "s3 cp", "cloudformation package", "cloudformation deploy"} | {
    "ecr get-login-password",
    "dynamodb wait",
}


def find_commands(page: str) -> list[list[str]]:
    """Return the words of each `holdfast`, `make` and `aws` command of a page."""
    text = "\n".join(_BLOCK.findall(page)).replace("\\\n", " ")
    lines = [*text.splitlines(), *_INLINE.findall(page)]
    return [words for line in lines for words in _split(line)]


def _split(line: str) -> Iterator[list[str]]:
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]  # settings before the command
    if words and words[0] in _CHECKS:
        yield words[: words.index("|")] if "|" in words else words


def find_problems(words: list[str]) -> list[str]:
    """Return what is wrong with a command."""
    return [f"{' '.join(words)}: {problem}" for problem in _CHECKS[words[0]](words[1:])]


def list_options(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]


def _check_ours(words: list[str]) -> Iterator[str]:
    group = words[0] if words[0] in ("export", "chat", "dead") else ""
    name = words[1] if group else words[0]
    if name not in CommandTable(group):
        yield f"there is no command {name}"
        return
    command: Any = CommandTable(group).load(name)
    known = {option for each in command.params for option in each.opts}
    yield from (
        f"{option} does not exist" for option in list_options(words) if option not in known
    )


def _check_make(words: list[str]) -> Iterator[str]:
    makefile = (ROOT / "Makefile").read_text()
    if not re.search(rf"^{re.escape(words[0])}:", makefile, re.MULTILINE):
        yield f"there is no target {words[0]}"
    yield from (
        f"{name} is not used"
        for name in (word.partition("=")[0] for word in words[1:])
        if f"$({name})" not in makefile
    )


def _check_aws(words: list[str]) -> Iterator[str]:
    service, operation = words[:2]
    if f"{service} {operation}" in _CUSTOM:
        return
    operations = _list_operations(service)
    if operation not in operations:
        yield f"{service} has no {operation}"
        return
    members = _load_model(service).operation_model(operations[operation]).input_shape.members
    known = {f"--{xform_name(each, '-')}" for each in members}
    for option in list_options(words):
        if option.replace("--no-", "--") not in known:
            yield f"{option} does not exist"


@cache
def _load_model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


@cache
def _list_operations(service: str) -> dict[str, str]:
    return {xform_name(name, "-"): name for name in _load_model(service).operation_names}


_CHECKS = {"holdfast": _check_ours, "make": _check_make, "aws": _check_aws}
