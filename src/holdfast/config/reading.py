"""The reader that queue settings and export settings share."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from holdfast.core.errors import ConfigError

ENV_PREFIX = "HOLDFAST_"

T = TypeVar("T", bound=BaseModel)


def read_settings(
    kind: type[T],
    env: Mapping[str, str],
    *,
    query: Mapping[str, str],
    given: Mapping[str, Any],
    variables: Mapping[str, str],
) -> T:
    """Return the settings of one kind from the environment, a URL's query and the caller.

    `given` wins over `query`, and `query` over `env`. `variables` names the environment
    variables that are not HOLDFAST_<NAME>. Raises ConfigError with every problem.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in kind.model_fields:
        variable = variables.get(name, ENV_PREFIX + name.upper())
        if variable in env:
            values[name], sources[name] = env[variable], variable
    for name, value in query.items():
        values[name], sources[name] = value, f"?{name}= in the queue's URL"
    for name, value in given.items():
        values[name], sources[name] = value, name
    try:
        return kind(**values)
    except ValidationError as error:
        raise ConfigError(_describe_problems(error, sources, kind)) from None


def _describe_problems(
    error: ValidationError, sources: Mapping[str, str], kind: type[BaseModel]
) -> str:
    """Return every problem, each with the name that the user wrote."""
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        source = sources.get(name, name)
        if problem["type"] == "extra_forbidden":
            known = ", ".join(kind.model_fields)
            lines.append(f"{source} is not a setting of a queue; the settings are {known}")
        else:
            lines.append(f"{source}={problem['input']!r}: {problem['msg']}")
    return "; ".join(lines)
