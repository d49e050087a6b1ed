"""The reader that all settings share."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.errors import ConfigError
from holdfast.variables import warn_of_misspelt


class Settings(BaseModel):
    """Settings that the environment may give. Every setting has a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env_prefix: ClassVar[str] = "HOLDFAST_"
    variables: ClassVar[Mapping[str, str]] = {}  # of settings with another name
    shows_values: ClassVar[bool] = True  # in errors; not if they may hold secrets

    @classmethod
    def to_variable(cls, name: str) -> str:
        """Return the environment variable of a setting."""
        return cls.variables.get(name, cls.env_prefix + name.upper())

    def find_contradictions(self) -> Iterator[str]:
        """Yield the problems of settings that are valid alone but not together."""
        return iter(())


S = TypeVar("S", bound=Settings)


def read_settings(
    kind: type[S],
    env: Mapping[str, str],
    query: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> S:
    """Return the settings of one kind from the environment, a URL's query and the caller.

    `given` wins over `query`, and `query` over `env`. An empty variable is like one that is
    not set. Raises ConfigError with every problem, each with the name that the user wrote.
    A misspelt variable of any kind is logged.
    """
    own = {kind.to_variable(name): name for name in kind.model_fields}
    warn_of_misspelt(variable for variable in env if variable not in own)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for variable, name in own.items():
        # Compose and ECS set a variable without a value to "".
        if env.get(variable, "").strip():
            values[name], sources[name] = env[variable], variable
    for name, value in (query or {}).items():
        values[name], sources[name] = value, f"?{name}= in the queue's URL"
    for name, value in (given or {}).items():
        values[name], sources[name] = value, name
    problems = _find_problems(kind, values, sources)
    settings = kind(**{name: values[name] for name in values if name not in problems})
    bad = [sources[name] for name in problems]
    # A bad value was replaced by its default, and next to that a good value may look wrong.
    contradictions = [
        text for text in settings.find_contradictions() if not any(name in text for name in bad)
    ]
    if texts := [*problems.values(), *contradictions]:
        raise ConfigError("; ".join(texts))
    return settings


def _find_problems(
    kind: type[Settings], values: Mapping[str, Any], sources: Mapping[str, str]
) -> dict[str, str]:
    """Return the problem of each bad value, by the setting's name."""
    try:
        kind(**values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        return {
            (name := str(detail["loc"][0])): _describe_problem(kind, detail, sources[name])
            for detail in details
        }
    return {}


def _describe_problem(kind: type[Settings], detail: Any, source: str) -> str:
    if detail["type"] == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        return f"{source} is not a setting of a queue; the settings are {known}"
    value = f"={detail['input']!r}" if kind.shows_values else ""
    return f"{source}{value}: {detail['msg'].removeprefix('Value error, ')}"
