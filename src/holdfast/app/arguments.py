"""The arguments of a task: checked when it is pushed, and restored when it runs.

The model is derived from the function's signature. It is used in both directions, so a worker
gets the types that the annotations name, although a queue stores JSON.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from holdfast.errors import ConfigError, MalformedMessage
from holdfast.worker.runner import Context

CONTEXT = "ctx"
_OF_PUSH = ("delay", "id")
_OF_METHODS = ("self", "cls")
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class TaskArguments:
    """Checks and restores the arguments of one function. `ctx` is not one of them."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """Read the signature. Raises ConfigError if a message cannot hold its arguments."""
        self._function = function
        self._name = name
        signature = inspect.signature(function)
        given = dict(signature.parameters)
        self._takes_context = given.pop(CONTEXT, None) is not None
        for parameter in given.values():
            _check_parameter(parameter, name)
        self._signature = signature.replace(
            parameters=list(given.values()), return_annotation=Parameter.empty
        )
        self._positional_only = [
            parameter.name
            for parameter in given.values()
            if parameter.kind is Parameter.POSITIONAL_ONLY
        ]

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given arguments as plain JSON data.

        Raises MalformedMessage, which names the parameter. Its text does not show the value,
        because errors may be logged.
        """
        model_type = self._model
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise MalformedMessage(f"{self._name}{self._signature}: {error}") from None
        try:
            model = model_type.model_validate(bound.arguments)
        except ValidationError as error:
            raise MalformedMessage(f"{self._name}: {_describe(error)}") from None
        arguments: dict[str, Any] = {}
        for number, name in enumerate(self._signature.parameters):
            # Defaults are not stored, so they are those of the function that runs.
            if (field := f"p{number}") in model.model_fields_set:
                arguments[name] = self._dump(model, field, name)
        return arguments

    def _dump(self, model: BaseModel, field: str, name: str) -> Any:
        """Return one argument as JSON data. One at a time, so that an error names it."""
        try:
            text = model.model_dump_json(include={field}, by_alias=True, round_trip=True)
        except ValueError as error:  # of pydantic's serializer
            raise MalformedMessage(
                f"{self._name}: {name}: it cannot be written as JSON: {error}"
            ) from None
        return json.loads(text)[name]

    def unpack(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored arguments in the types of the signature.

        Raises MalformedMessage if they do not fit, as after a change of the function.
        """
        try:
            model = self._model.model_validate_json(json.dumps(stored))
        except ValidationError as error:
            raise MalformedMessage(f"{self._name}: {_describe(error)}") from None
        names = list(self._signature.parameters)
        return {
            names[int(field.removeprefix("p"))]: getattr(model, field)
            for field in model.model_fields_set
        }

    def call(self, values: dict[str, Any], ctx: Any) -> Any:
        """Call the function with restored arguments, and with the context if it asks for it."""
        positional = [values.pop(name) for name in self._positional_only if name in values]
        if self._takes_context:
            values[CONTEXT] = ctx
        return self._function(*positional, **values)

    def check(self) -> None:
        """Raise ConfigError if an annotation cannot be resolved or used."""
        _ = self._model

    @cached_property
    def _model(self) -> type[BaseModel]:
        """The model. It is built on first use, because annotations may name later classes."""
        hints = self._resolve_hints()
        # The fields have names of their own, because pydantic reserves some (copy, model_…).
        fields: dict[str, Any] = {}
        for number, parameter in enumerate(self._signature.parameters.values()):
            if hints.get(parameter.name) is Context:
                raise ConfigError(
                    f"task {self._name!r} takes its context as {parameter.name!r}: call this "
                    f"parameter {CONTEXT!r}"
                )
            is_required = parameter.default is Parameter.empty
            field = Field(... if is_required else None, alias=parameter.name)
            fields[f"p{number}"] = (hints.get(parameter.name, Any), field)
        try:
            return create_model(self._name, __config__=_CONFIG, **fields)
        except PydanticUserError as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"task {self._name!r} has a parameter that a message cannot hold: {reason}"
            ) from None

    def _resolve_hints(self) -> dict[str, Any]:
        # Resolve only these annotations. That of ctx may be imported by type checkers only.
        annotations = {
            parameter.name: parameter.annotation
            for parameter in self._signature.parameters.values()
            if parameter.annotation is not Parameter.empty
        }
        names = getattr(inspect.unwrap(self._function), "__globals__", {})
        holder = SimpleNamespace(__annotations__=annotations)
        try:
            return get_type_hints(holder, names, include_extras=True)
        except NameError as error:
            raise ConfigError(
                f"task {self._name!r}: {error}: import it at the top of the module, outside of "
                "TYPE_CHECKING"
            ) from None


_CONFIG = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


def _check_parameter(parameter: Parameter, task: str) -> None:
    name = parameter.name
    if parameter.kind in _VARIABLE:
        raise ConfigError(
            f"task {task!r} takes {parameter}, which a message cannot describe: name every "
            "parameter"
        )
    if name in _OF_METHODS:
        raise ConfigError(f"task {task!r} takes {name!r}: a task is a function, not a method")
    if name in _OF_PUSH:
        raise ConfigError(
            f"task {task!r} takes {name!r}, which is a keyword of push(): rename the parameter"
        )


def _describe(error: ValidationError) -> str:
    """Return each problem with its parameter and without its value."""
    details = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in details
    )
