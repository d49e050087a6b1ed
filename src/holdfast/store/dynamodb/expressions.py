"""Build the arguments of DynamoDB's calls, with their expressions.

Every attribute is written `#name` in an expression, because names such as `status`, `error`,
`ttl`, `url`, `key` and `size` are reserved words, and one that is not aliased makes every call
fail. DynamoDB refuses names and values that no expression uses, so only those are sent.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.store.dynamodb.values import Attributes, encode

Arguments = dict[str, Any]
Values = Mapping[str, Any]

# In a transaction, a write that fails returns its row only on request.
RETURN_OLD = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def require_all(*conditions: str) -> str:
    """Return one condition that requires all of these."""
    return " AND ".join(conditions)


class CallBuilder:
    """Builds the arguments of calls. The arguments of a write also fit into a transaction.

    `constants` are values that any expression may use; `encode_values` turns values into
    DynamoDB's.
    """

    def __init__(
        self, constants: Values, encode_values: Callable[[Values], Attributes] = encode
    ) -> None:
        self._constants, self._encode = constants, encode_values

    def bind(self, values: Values, *expressions: str) -> Arguments:
        """Return the names and values that these expressions mention."""
        text = " ".join(expressions)
        names = {f"#{name}": name for name in re.findall(r"#(\w+)", text)}
        known = {**self._constants, **values}
        used_values = {name: known[name] for name in sorted(set(re.findall(r":\w+", text)))}
        arguments: Arguments = {"ExpressionAttributeNames": names} if names else {}
        if used_values:
            arguments["ExpressionAttributeValues"] = self._encode(used_values)
        return arguments

    def _guard(self, condition: str, values: Values) -> Arguments:
        if not condition:
            return {}
        return {"ConditionExpression": condition, **self.bind(values, condition)}

    def put(
        self, table: str, row: Attributes, condition: str = "", values: Values | None = None
    ) -> Arguments:
        """Return the arguments that put a row."""
        return {"TableName": table, "Item": row, **self._guard(condition, values or {})}

    def delete(
        self, table: str, key: Attributes, condition: str = "", values: Values | None = None
    ) -> Arguments:
        """Return the arguments that delete a row, or only check its condition."""
        return {"TableName": table, "Key": key, **self._guard(condition, values or {})}

    def update(
        self, table: str, key: Attributes, update: str, condition: str, values: Values
    ) -> Arguments:
        """Return the arguments that update a row."""
        return {
            "TableName": table,
            "Key": key,
            "UpdateExpression": update,
            "ConditionExpression": condition,
            **self.bind(values, update, condition),
        }

    def query(
        self,
        table: str,
        key_condition: str,
        values: Values,
        filter_expression: str = "",
        **options: Any,
    ) -> Arguments:
        """Return the arguments of a query, or of a scan if there is no key condition."""
        expressions = {
            "KeyConditionExpression": key_condition,
            "FilterExpression": filter_expression,
        }
        return {
            "TableName": table,
            **{name: text for name, text in expressions.items() if text},
            **self.bind(values, key_condition, filter_expression),
            **options,
        }
