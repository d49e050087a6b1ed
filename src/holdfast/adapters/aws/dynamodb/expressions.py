"""What DynamoDB's expressions need besides their text."""

import re
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.values import encode


def require_all(*conditions: str) -> str:
    return " AND ".join(conditions)


def bind_expressions(known: Mapping[str, Any], *expressions: str) -> dict[str, Any]:
    """The names and values that these expressions mention, as arguments of a call.

    DynamoDB refuses those that no expression uses.
    """
    text = " ".join(expressions)
    values = sorted(set(re.findall(r":\w+", text)))
    arguments: dict[str, Any] = {
        "ExpressionAttributeNames": {f"#{name}": name for name in re.findall(r"#(\w+)", text)}
    }
    if values:
        chosen = {name: known[name] for name in values}
        arguments["ExpressionAttributeValues"] = encode(chosen)
    return arguments
