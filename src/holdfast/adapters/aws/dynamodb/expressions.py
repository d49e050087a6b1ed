"""Build the arguments that belong to DynamoDB's expressions."""

import re
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.values import encode


def require_all(*conditions: str) -> str:
    """Return one condition that requires all of these."""
    return " AND ".join(conditions)


def bind_expressions(known: Mapping[str, Any], *expressions: str) -> dict[str, Any]:
    """Return the names and values that these expressions mention, as call arguments.

    DynamoDB refuses names and values that no expression uses.
    """
    text = " ".join(expressions)
    values = sorted(set(re.findall(r":\w+", text)))
    arguments: dict[str, Any] = {
        "ExpressionAttributeNames": {f"#{name}": name for name in re.findall(r"#(\w+)", text)}
    }
    if values:
        used_values = {name: known[name] for name in values}
        arguments["ExpressionAttributeValues"] = encode(used_values)
    return arguments
