"""Handlers: how they are loaded, which arguments they take, and which message type.

A handler is a function `(message, ctx)` or `(message)`, plain or `async`. It returns None or
Done if it finished, or Retry, Reject or GiveBack. An exception is a failed attempt.
"""

import importlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from holdfast.errors import ConfigError, HandlerNotFound
from holdfast.queue.message import AnyMessage, QueueMessage, is_payload_type
from holdfast.worker.outcome import Done, GiveBack, Reject, Retry

Result = Done | Retry | Reject | GiveBack | None
Handler = Callable[..., Result | Awaitable[Result]]
BoundHandler = Callable[[QueueMessage, Any], Any]

_SIGNATURES = "a handler takes (message, ctx) or (message)"


@dataclass(frozen=True, slots=True)
class HandlerKind:
    """How a handler is called."""

    takes_context: bool
    is_async: bool


def inspect_handler(handler: Handler) -> HandlerKind:
    """Return how to call the handler.

    Raises ConfigError if it cannot be called with (message, ctx) or (message).
    """
    if not callable(handler):
        kind = type(handler).__name__
        raise ConfigError(f"a value of type {kind} cannot be called: name a function")
    name = get_handler_name(handler)
    if inspect.isclass(handler):
        raise ConfigError(f"{name} is a class: name a function or an instance; {_SIGNATURES}")
    code = _unwrap(handler)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise ConfigError(f"{name} yields, so calling it runs nothing: return instead")
    return HandlerKind(_takes_context(handler, name), inspect.iscoroutinefunction(code))


def bind_handler(handler: Handler) -> BoundHandler:
    """Return the handler as `(message, ctx)`, whether it takes the context or not."""
    if inspect_handler(handler).takes_context:
        return handler
    return lambda message, _: handler(message)


def _takes_context(handler: Handler, name: str) -> bool:
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    if _accepts(signature, 2):
        return True
    if _accepts(signature, 1):
        return False
    raise ConfigError(f"{name}{signature} does not fit: {_SIGNATURES}")


def _accepts(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def _unwrap(handler: Handler) -> Any:
    """Return the user's function below partials, decorators and `__call__`."""
    inner: Any = handler
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    return inner if inspect.isroutine(inner) else getattr(inner, "__call__", inner)  # noqa: B004


def get_handler_name(handler: Any) -> str:
    """Return the qualified name of the function or class, for error messages."""
    inner = handler
    while isinstance(inner, partial):
        inner = inner.func
    return getattr(inner, "__qualname__", type(inner).__name__)


def load_handler(path: str) -> Handler:
    """Import and return the handler named `MODULE:NAME`. NAME may be dotted.

    Raises HandlerNotFound with one line that says what is wrong and what to do.
    """
    handler: Handler = load_object(path)
    try:
        inspect_handler(handler)
    except ConfigError as error:
        raise HandlerNotFound(f"{path}: {error}") from None
    return handler


def load_object(path: str) -> Any:
    """Import and return what is named `MODULE:NAME`. NAME may be dotted.

    Raises HandlerNotFound with one line that says what is wrong and what to do.
    """
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise HandlerNotFound(f"{path!r} is not MODULE:NAME, as in tasks.enrich:handle")
    target: Any = _import(module_name)
    for name in attribute.split("."):
        target = _get_attribute(target, name, module_name)
    return target


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
    # A user's module may do anything while it is imported, also call sys.exit().
    except (Exception, SystemExit) as error:
        raise HandlerNotFound(
            f"importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error


def _get_attribute(owner: Any, name: str, module_name: str) -> Any:
    if hasattr(owner, name):
        return getattr(owner, name)
    from difflib import get_close_matches  # only for this message

    public_names = [word for word in dir(owner) if not word.startswith("_")]
    similar = get_close_matches(name, public_names, n=3)
    hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
    raise HandlerNotFound(f"{module_name} has no {name!r}{hint}")


def find_message_model(handler: Handler) -> type[QueueMessage]:
    """Return the message type that annotates the first parameter, or AnyMessage.

    Raises ConfigError if the annotation's name cannot be resolved, because a guess would
    pass untyped messages to the handler.
    """
    model = _find_message_type(handler)
    if isinstance(model, type) and issubclass(model, QueueMessage):
        return AnyMessage if model is QueueMessage else model
    return AnyMessage


def check_message_type(handler: Handler, model: type[QueueMessage] | None) -> None:
    """Raise ConfigError if the first parameter is annotated with another type than `model`.

    A base class of the model, Any and no annotation are accepted. So is a name that only
    type checkers import, because they check it.
    """
    try:
        wanted = _find_message_type(handler)
    except ConfigError:
        return
    if model is None or _includes(wanted, model):
        return
    takes, delivers = getattr(wanted, "__name__", str(wanted)), model.__name__
    remedy = f"annotate the parameter with {delivers}, or open the queue with {takes}"
    if is_payload_type(wanted):
        remedy = f"annotate the parameter with Message[{takes}] and read its payload"
    raise ConfigError(
        f"{get_handler_name(handler)} takes {takes}, but the queue delivers {delivers}: "
        f"{remedy}"
    )


def _includes(annotation: Any, model: type) -> bool:
    if annotation is Any:
        return True
    if get_origin(annotation) in (Union, UnionType):
        return any(_includes(member, model) for member in get_args(annotation))
    kind = get_origin(annotation) or annotation
    try:
        return issubclass(model, kind)
    except TypeError:  # a TypeVar, or a protocol that is not checked at runtime
        return True


def _find_message_type(handler: Handler) -> Any:
    """Return the annotation of the first parameter, or Any if it has none.

    Raises ConfigError if its name cannot be resolved.
    """
    try:
        first = next(iter(inspect.signature(handler).parameters.values()), None)
    except (TypeError, ValueError):  # some builtins have no signature
        return Any
    if first is None or first.annotation is inspect.Parameter.empty:
        return Any
    return _resolve_annotation(first.annotation, handler)


def _resolve_annotation(annotation: Any, handler: Handler) -> Any:
    # Resolve only this annotation. Others may use names that only type checkers import.
    holder = SimpleNamespace(__annotations__={"message": annotation})
    try:
        return get_type_hints(holder, getattr(_unwrap(handler), "__globals__", {}))["message"]
    except NameError as error:
        raise ConfigError(
            f"{get_handler_name(handler)}: the message type {annotation!r} cannot be found "
            f"({error}): import it at the top of the module, outside of TYPE_CHECKING"
        ) from None
