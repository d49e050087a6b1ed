"""Handlers: how they are found, what they take, and which message they want.

A handler is `(message, ctx)` or `(message)`, plain or `async`. It returns nothing or Done
(finished), Retry, Reject or GiveBack; an exception is a failed attempt.
"""

import importlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, get_type_hints

from holdfast.core.errors import ConfigError, HandlerNotFound
from holdfast.core.queue.message import AnyMessage, QueueMessage
from holdfast.core.worker.outcome import Done, GiveBack, Reject, Retry

Result = Done | Retry | Reject | GiveBack | None
Handler = Callable[..., Result | Awaitable[Result]]

_SHAPES = "a handler takes (message, ctx) or (message)"


@dataclass(frozen=True, slots=True)
class HandlerKind:
    """How a handler wants to be called."""

    takes_context: bool
    is_async: bool


def handler_kind(handler: Handler) -> HandlerKind:
    """Raises ConfigError when it cannot be called with (message, ctx) or (message)."""
    name = name_of(handler)
    if not callable(handler):
        raise ConfigError(f"{name} is a {type(handler).__name__} and cannot be called")
    if inspect.isclass(handler):
        raise ConfigError(f"{name} is a class: name a function or an instance; {_SHAPES}")
    code = _written(handler)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise ConfigError(f"{name} yields, so calling it runs nothing: return instead")
    return HandlerKind(_takes_context(handler, name), inspect.iscoroutinefunction(code))


def _takes_context(handler: Handler, name: str) -> bool:
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some builtins do not say
        return False
    if _fits(signature, 2):
        return True
    if _fits(signature, 1):
        return False
    raise ConfigError(f"{name}{signature} does not fit: {_SHAPES}")


def _fits(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def _written(handler: Handler) -> Any:
    """The function somebody wrote, below partials, decorators and `__call__`."""
    inner: Any = handler
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    return inner if inspect.isroutine(inner) else getattr(inner, "__call__", inner)  # noqa: B004


def name_of(handler: Any) -> str:
    inner = handler
    while isinstance(inner, partial):
        inner = inner.func
    return getattr(inner, "__qualname__", type(inner).__name__)


def load_handler(path: str) -> Handler:
    """The handler that `MODULE:NAME` names; NAME may be dotted.

    Raises HandlerNotFound: one line that says what is wrong and the way out.
    """
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise HandlerNotFound(f"{path!r} is not MODULE:NAME, as in tasks.enrich:handle")
    found: Any = _import(module_name)
    for step in attribute.split("."):
        found = _attribute(found, step, module_name)
    try:
        handler_kind(found)
    except ConfigError as error:
        raise HandlerNotFound(f"{path}: {error}") from None
    handler: Handler = found
    return handler


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise HandlerNotFound(
                f"there is no module {missing!r}: run from the folder that holds it, or "
                "install it"
            ) from None
        raise HandlerNotFound(
            f"{module_name} needs {missing!r}, which is not installed"
        ) from error
    # Whatever a user's module does while it is imported, sys.exit() included.
    except (Exception, SystemExit) as error:
        raise HandlerNotFound(
            f"importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error


def _attribute(owner: Any, name: str, module_name: str) -> Any:
    if hasattr(owner, name):
        return getattr(owner, name)
    known = [word for word in dir(owner) if not word.startswith("_")]
    near = get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise HandlerNotFound(f"{module_name} has no {name!r}{hint}")


def message_model(handler: Handler) -> type[QueueMessage]:
    """The message type of the first parameter's annotation, AnyMessage without one.

    Raises ConfigError when the annotation names something that cannot be found: guessing
    would hand the handler untyped messages.
    """
    try:
        first = next(iter(inspect.signature(handler).parameters.values()), None)
    except (TypeError, ValueError):
        return AnyMessage
    if first is None or first.annotation is inspect.Parameter.empty:
        return AnyMessage
    model = _resolved(first.annotation, handler)
    if isinstance(model, type) and issubclass(model, QueueMessage):
        return AnyMessage if model is QueueMessage else model
    return AnyMessage


def _resolved(annotation: Any, handler: Handler) -> Any:
    # This one annotation alone: the others may name what only type checkers import.
    one = SimpleNamespace(__annotations__={"message": annotation})
    try:
        return get_type_hints(one, getattr(_written(handler), "__globals__", {}))["message"]
    except NameError as error:
        raise ConfigError(
            f"{name_of(handler)}: the message type {annotation!r} cannot be found "
            f"({error}): import it at the top of the module, for real"
        ) from None
