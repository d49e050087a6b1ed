"""The arguments of a task: derived from a signature, checked on push, restored in a worker."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, Json

from holdfast.app.arguments import TaskArguments
from holdfast.errors import ConfigError, MalformedMessage
from holdfast.worker.runner import Context

if TYPE_CHECKING:
    from nowhere import Missing


class Color(Enum):
    RED = "red"


class Site(BaseModel):
    host: str
    port: int = 443


@dataclass
class Point:
    x: int
    y: int = 0


def pass_on(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what the function gets after its arguments went through a message."""
    arguments = TaskArguments(function, "task")
    return arguments.call(arguments.unpack(arguments.pack(args, kwargs)), "the context")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "ä"),
        (int, 2**70),
        (float, inf),
        (bool, False),
        (bytes, b"plain"),
        (datetime, datetime(2026, 1, 2, 3, tzinfo=UTC)),
        (date, date(2026, 1, 2)),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (Path, Path("a/b")),
        (Color, Color.RED),
        (Site, Site(host="example.com")),
        (Point, Point(1, 2)),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (dict[int, Site], {1: Site(host="a")}),
        (list[Point], [Point(1)]),
        (int | None, None),
        (Literal["a", "b"], "a"),
        (Annotated[int, Field(gt=0)], 1),
        (Any, {"plain": [1, None]}),
    ],
)
def test_a_value_arrives_in_the_type_of_its_annotation(annotation: Any, value: Any) -> None:
    def function(value):  # type: ignore[no-untyped-def]
        return value

    function.__annotations__ = {"value": annotation}
    assert pass_on(function, value) == value


def test_a_value_is_converted_as_pydantic_does() -> None:
    def function(depth: int, at: datetime) -> Any:
        return depth, at

    assert pass_on(function, "3", at="2026-01-02T03:00:00Z") == (
        3,
        datetime(2026, 1, 2, 3, tzinfo=UTC),
    )


def test_a_json_field_is_stored_as_it_was_given() -> None:
    def function(data: Json[list[int]]) -> Any:
        return data

    assert pass_on(function, data="[1, 2]") == [1, 2]


def test_the_defaults_are_those_of_the_function_that_runs() -> None:
    def function(domain: str, depth: Any = object) -> Any:
        return domain, depth

    arguments = TaskArguments(function, "task")
    assert arguments.pack(("a",), {}) == {"domain": "a"}
    assert pass_on(function, "a") == ("a", object)


def test_the_fields_of_a_model_are_stored_with_their_defaults() -> None:
    def function(site: Site) -> Any:
        return site

    packed = TaskArguments(function, "task").pack((Site(host="a"),), {})
    assert packed == {"site": {"host": "a", "port": 443}}


def test_the_context_is_injected_if_the_signature_asks_for_it() -> None:
    def first(ctx: Missing, domain: str) -> Any:
        return ctx, domain

    def last(domain: str, *, ctx: Any = None) -> Any:
        return ctx, domain

    for function in (first, last):
        assert pass_on(function, "a") == ("the context", "a")


def test_positional_only_and_keyword_only_parameters_are_kept() -> None:
    def function(a: int, b: int = 2, /, *, c: int) -> Any:
        return a, b, c

    assert pass_on(function, 1, c=3) == (1, 2, 3)
    assert pass_on(function, 1, 4, c=3) == (1, 4, 3)


def test_names_that_pydantic_or_messages_use_are_free() -> None:
    def function(
        copy: int, model_config: int, attempts: int, schema: int, _private: int
    ) -> Any:
        return copy, model_config, attempts, schema, _private

    assert pass_on(function, 1, 2, 3, 4, 5) == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "missing a required argument: 'domain'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"dept": 1}, "unexpected keyword argument 'dept'"),
        (("a",), {"domain": "a"}, "multiple values for argument 'domain'"),
        (("a",), {"depth": "canary"}, "depth: Input should be a valid integer"),
        ((b"\xff",), {}, "domain: "),
        (("a",), {"other": object()}, "enrich: other: it cannot be written as JSON"),
        (("a",), {"raw": b"\xff"}, "enrich: raw: it cannot be written as JSON"),
    ],
)
def test_a_wrong_call_is_refused_with_the_parameter_and_without_the_value(
    args: tuple[Any, ...], kwargs: dict[str, Any], problem: str
) -> None:
    def function(
        domain: str, depth: int = 1, *, other: Any = None, raw: bytes = b""
    ) -> None: ...

    with pytest.raises(MalformedMessage, match=re.escape(problem)) as refused:
        TaskArguments(function, "enrich").pack(args, kwargs)
    assert str(refused.value).startswith("enrich")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "stored", [{}, {"domain": 1.5}, {"domain": "a", "removed": 1}, {"domain": None}]
)
def test_stored_arguments_that_do_not_fit_are_refused(stored: dict[str, Any]) -> None:
    def function(domain: str) -> None: ...

    with pytest.raises(MalformedMessage, match=r"enrich: (domain|removed): "):
        TaskArguments(function, "enrich").unpack(stored)


def variable(*urls: str) -> None: ...
def named(**options: str) -> None: ...
def method(self: Any, domain: str) -> None: ...
def reserved_id(id: str) -> None: ...
def reserved_delay(delay: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (variable, "*urls"),
        (named, "**options"),
        (method, "not a method"),
        (reserved_id, "'id', which is a keyword of push()"),
        (reserved_delay, "'delay', which is a keyword of push()"),
    ],
)
def test_a_signature_that_a_message_cannot_hold_is_refused(
    function: Callable[..., None], problem: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        TaskArguments(function, "enrich")


def unresolved(value: Missing) -> None: ...
def context(domain: str, context: Context) -> None: ...
def opaque(value: Callable[[], None], lock: re.Scanner) -> None: ...  # type: ignore[name-defined]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (unresolved, "'Missing' is not defined"),
        (opaque, "Scanner"),
        (context, "takes its context as 'context': call this parameter 'ctx'"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_refused(
    function: Callable[..., None], problem: str
) -> None:
    arguments = TaskArguments(function, "enrich")
    for call in (arguments.check, lambda: arguments.pack((), {})):
        with pytest.raises(ConfigError, match=problem):
            call()
