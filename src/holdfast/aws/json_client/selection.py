"""When boto3 is used instead of the lean client.

Tools that mock, record or trace AWS calls replace functions of botocore. The lean client does
not call these functions, so a call would escape from a mock, or be missing in a trace.
"""

import sys
from types import FunctionType
from typing import Any

# The functions that tools replace: X-Ray, OpenTelemetry, Datadog, New Relic, Sentry, Elastic
# APM, and mocks that people write by hand.
_REPLACED: dict[str, tuple[tuple[str, str], ...]] = {
    "botocore.client": (
        ("BaseClient", "__init__"),
        ("BaseClient", "_make_api_call"),
        ("BaseClient", "_make_request"),
        ("ClientCreator", "create_client"),
        ("ClientCreator", "_create_api_method"),
    ),
    "botocore.endpoint": (
        ("Endpoint", "make_request"),
        ("Endpoint", "prepare_request"),
        ("Endpoint", "_send"),
        ("Endpoint", "_send_request"),
    ),
    "botocore.httpsession": (("URLLib3Session", "send"),),
    "botocore.session": (("Session", "__init__"), ("Session", "create_client")),
    "boto3.session": (("Session", "__init__"), ("Session", "client")),
}

# These replace functions of botocore when it is imported, which the lean client delays.
_AGENTS = ("ddtrace", "newrelic")


def is_botocore_patched() -> bool:
    """Return whether calls of botocore are mocked or instrumented now.

    It is asked before each call, so it looks only at what tools replace while a client exists.
    """
    module = sys.modules.get("botocore.client")
    if module is not None and _is_replaced(module, "BaseClient", "_make_api_call"):
        return True
    stubber = getattr(sys.modules.get("moto.core.models"), "botocore_stubber", None)
    return bool(getattr(stubber, "enabled", False))


def find_patch() -> str | None:
    """Return what mocks or instruments botocore, or None. Asked before a client is made."""
    if is_botocore_patched():
        return "botocore.client.BaseClient._make_api_call"
    for name, functions in _REPLACED.items():
        if (module := sys.modules.get(name)) is None:
            continue
        for owner, function in functions:
            if _is_replaced(module, owner, function):
                return f"{name}.{owner}.{function}"
    boto3 = sys.modules.get("boto3")
    if boto3 is not None and not isinstance(getattr(boto3, "Session", None), type):
        return "boto3.Session"
    if handler := _find_foreign_handler():
        return handler
    return next((agent for agent in _AGENTS if agent in sys.modules), None)


def _is_replaced(module: Any, owner: str, function: str) -> bool:
    """Return whether a function is no longer the one that its package defines."""
    try:
        value = vars(getattr(module, owner))[function]
    except (AttributeError, KeyError, TypeError):  # another version of botocore, or a mock
        return not isinstance(getattr(module, owner, None), type)
    # botocore decorates some of its functions, so any module of its own will do.
    return type(value) is not FunctionType or not _is_sdk(value.__globals__["__name__"])


def _is_sdk(module: str) -> bool:
    return module.partition(".")[0] in ("boto3", "botocore")


def _find_foreign_handler() -> str | None:
    """Return a handler that a tool has added to those of every new client, or None.

    moto adds one when it is imported. It does nothing until `mock_aws` starts, which
    `is_botocore_patched` notices.
    """
    handlers: Any = sys.modules.get("botocore.handlers")
    for entry in getattr(handlers, "BUILTIN_HANDLERS", ()):
        owner = getattr(entry[1], "__module__", None) or ""
        if not _is_sdk(owner) and not owner.startswith("moto."):
            return f"{owner}, in botocore's handlers"
    return None
