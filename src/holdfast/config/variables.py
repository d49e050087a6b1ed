"""All environment variables of Holdfast, to tell a misspelt one from a foreign one."""

from collections.abc import Iterable

QUEUE_VARIABLE = "HOLDFAST_QUEUE"
PREFIX = "HOLDFAST_"

_OTHERS = (QUEUE_VARIABLE, "HOLDFAST_JOBS", "HOLDFAST_DEBUG")
_SIMILARITY = 0.85  # above that of CHAOS_SECONDS and TASK_SECONDS, which is 0.80


def find_misspelt(names: Iterable[str]) -> list[str]:
    """Return the problem of each variable whose name is nearly one of Holdfast's.

    A name that resembles none is not a problem, because an application may have its own
    variables with our prefix, such as the secrets of conversations.
    """
    unknown = [name for name in names if name.startswith(PREFIX) and name not in _OTHERS]
    known = _find_known() if unknown else frozenset()
    return [
        f"{name} is not a setting; did you mean {' or '.join(similar)}?"
        for name in unknown
        if name not in known and (similar := _find_similar(name, known))
    ]


def _find_known() -> frozenset[str]:
    # Most processes read one kind of settings, so the others are imported only here.
    from holdfast.config.chat import ChatSettings
    from holdfast.config.export import ExportSettings
    from holdfast.config.heartbeat import HeartbeatSettings
    from holdfast.config.queue import SqsSettings

    kinds = (SqsSettings, ExportSettings, HeartbeatSettings, ChatSettings)
    settings = {kind.to_variable(name) for kind in kinds for name in kind.model_fields}
    return frozenset(settings) | set(_OTHERS)


def _find_similar(variable: str, known: frozenset[str]) -> list[str]:
    """Return the known names that have these words among theirs, or nearly these letters."""
    from difflib import get_close_matches  # only for this message

    name = variable.removeprefix(PREFIX)
    others = {other.removeprefix(PREFIX): other for other in sorted(known)}
    similar = [other for other in others if f"_{name}_" in f"_{other}_"]
    similar = similar or get_close_matches(name, others, n=3, cutoff=_SIMILARITY)
    return [others[other] for other in similar[:3]]
