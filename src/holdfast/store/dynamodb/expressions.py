"""Build the arguments of DynamoDB's calls, with their expressions.

Every attribute is written `#name` in an expression, because names such as `status`, `error`,
`ttl`, `url`, `key` and `size` are reserved words, and one that is not aliased makes every call
fail. DynamoDB refuses names and values that no expression uses, so only those are sent.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from holdfast.store.dynamodb.values import encode

Arguments = dict[str, Any]
Values = Mapping[str, Any]

# In a transaction, a write that fails returns its row only on request.
RETURN_OLD = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def require_all(*conditions: str) -> str:
    """Return one condition that requires all of these that are not empty."""
    return " AND ".join(filter(None, conditions))


def build_call(
    table: str, values: Values, arguments: Arguments, **expressions: str
) -> Arguments:
    """Return the arguments of a call, with the names and values that its expressions mention.

    The arguments of a write also fit into a transaction. Expressions that are empty are left
    out.
    """
    used = {f"{name}Expression": text for name, text in expressions.items() if text}
    names, mentioned = _find_mentions(" ".join(used.values()))
    call = {"TableName": table, **arguments, **used}
    if names:
        call["ExpressionAttributeNames"] = names
    if mentioned:
        call["ExpressionAttributeValues"] = encode({name: values[name] for name in mentioned})
    return call


@lru_cache(512)  # the rows of a batch have the same expressions
def _find_mentions(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the names and the values that expressions mention."""
    names = {f"#{name}": name for name in re.findall(r"#(\w+)", text)}
    return names, sorted(set(re.findall(r":\w+", text)))
