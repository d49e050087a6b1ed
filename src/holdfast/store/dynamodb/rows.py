"""Rows in DynamoDB tables, written in transactions that notice other writers.

    body reads   ─▶ items, each with the id of its last write, which is its version
    body writes  ─▶ collected, each with the condition that its row is as it was read
    commit       ─▶ one call ── accepted ─▶ done
                             ├─ refused by its own id ─▶ done, only the response was lost
                             └─ refused by another's ─▶ the rows that refused are known now,
                                                        and the body runs again, on them and
                                                        on what it reads again

A row that the body changes without reading it is expected to match, so it needs no read. If it
does not match, it is known after the refusal, and the body counts without it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar
from uuid import uuid4

from holdfast.errors import InvalidInput, StoreUnavailable
from holdfast.store.dynamodb.client import DynamoDBClient, WriteDone
from holdfast.store.dynamodb.expressions import RETURN_OLD, build_call, require_all
from holdfast.store.dynamodb.values import Attributes, count_bytes, encode, measure_size
from holdfast.store.rows import Row, Rows

T = TypeVar("T")
Item = dict[str, Any]  # attributes and plain values
Key = tuple[str, ...]  # the name of a table, and the values of its key attributes

Writes = dict[Key, tuple["ItemTable", str, dict[str, Any]]]  # with its kind and its arguments

# Each refusal means that another writer succeeded, and the row is known then. So there is no
# reason to wait, and tries end only where a row is never as it was read.
MAX_TRIES = 100
_MAX_KEY_BYTES = (2048, 1024)  # of the hash and of the range
_MAX_ITEM_BYTES = 400 * 1024
_MAX_WRITES = 100
_MAX_ROWS = 99  # a transaction takes 100, one of which is the row of the other table
_MAX_BYTES = 3 * 1024 * 1024  # of 4 MB, because expressions need some of it

_OPERATIONS = {"Put": "put_item", "Update": "update_item", "Delete": "delete_item"}


@dataclass(frozen=True, slots=True)
class ItemTable:
    """How the rows of a table are stored as items.

    `to_item` takes a row, or some of its columns, and returns attributes; None is stored as a
    missing attribute. `version` is the attribute with the id of the last write. `guards` are
    attributes that must be as they were read, because other programs write them, too, and
    write no version. `lenient` attributes match any value if they are missing. `counters` are
    changed by ADD. `index` names the index of one attribute. `subject` names a row in errors.
    """

    name: str
    key: tuple[str, ...]
    to_item: Callable[[Row], Item]
    from_item: Callable[[Item], Row]
    version: str = ""
    guards: tuple[str, ...] = ()
    lenient: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    index: tuple[str, str] = ("", "")
    subject: str = "the row"

    def find_key(self, item: Item) -> Key | None:
        """Return the key of an item, or None if it has none that DynamoDB can hold."""
        values = [item.get(name) for name in self.key]
        for value, max_bytes in zip(values, _MAX_KEY_BYTES, strict=False):
            if not isinstance(value, str) or not 0 < count_bytes(value) <= max_bytes:
                return None
        return (self.name, *map(str, values))

    def encode_key(self, key: Key) -> dict[str, Any]:
        """Return the attributes of a key."""
        return {name: {"S": value} for name, value in zip(self.key, key[1:], strict=True)}

    def select_guards(self, known: Item) -> Item:
        """Return what a row must still have to be as it was read: at least, or not, its key."""
        names = (self.key[0], *self.guards, *filter(None, [self.version]))
        return {name: known.get(name) for name in (names if known else self.key[:1])}

    def encode_row(self, item: Item) -> Attributes:
        """Return an item as DynamoDB's attributes. Raises InvalidInput if it is too large."""
        attributes = encode(item)
        if (size := measure_size(attributes)) > _MAX_ITEM_BYTES:
            raise InvalidInput(
                f"{self.subject} is too large: it has {size} bytes, the limit is "
                f"{_MAX_ITEM_BYTES}"
            )
        return attributes

    def matches(self, item: Item, expected: Item) -> bool:
        """Return whether an item has these values."""
        return all(
            item.get(name) == value or (name in self.lenient and name not in item)
            for name, value in expected.items()
        )

    def expect(self, expected: Item) -> tuple[str, dict[str, Any]]:
        """Return the condition that a row has these values, and the values."""
        terms = [
            f"attribute_not_exists(#{name})"
            if value is None
            else f"(#{name} = :old_{name} OR attribute_not_exists(#{name}))"
            if name in self.lenient
            else f"#{name} = :old_{name}"
            for name, value in expected.items()
        ]
        return require_all(*terms), {f":old_{name}": v for name, v in expected.items()}


class DynamoDBDatabase:
    """The tables of one store. `refuse` makes the error for a value that cannot be stored."""

    def __init__(
        self,
        client: DynamoDBClient,
        tables: Mapping[str, ItemTable],
        refuse: Callable[[str], Exception] = InvalidInput,
    ) -> None:
        self._client, self._tables, self._refuse = client, tables, refuse

    def read(self, body: Callable[[Rows], T]) -> T:
        """Return what the body reads; each read sees the writes before it."""
        return body(_Transaction(self._client, self._tables))

    def scan(
        self, table: str, where: Row, *, key: str, order_by: str = "", descending: bool = False
    ) -> Iterator[Row]:
        """Yield the rows of all pages, in any order. They may be slightly out of date."""
        definition = self._tables[table]
        query = _query(definition, {}, definition.to_item(where), [])
        return map(definition.from_item, self._client.read_pages("scan", **query))

    def write(self, body: Callable[[Rows], T], *, durable: bool = True) -> T:
        """Run the body until no other writer was first. Raises StoreUnavailable at last."""
        transaction = _Transaction(self._client, self._tables)
        try:
            for _ in range(MAX_TRIES):
                result = body(transaction)
                if transaction.commit():
                    return result
        except InvalidInput as error:
            raise self._refuse(str(error)) from None
        raise StoreUnavailable("DynamoDB: the row changed before every try to write it")

    def split(
        self, entries: Iterable[T], measure: Callable[[T], int] | None
    ) -> Iterator[list[T]]:
        """Yield the entries in groups that fit into one transaction."""
        return split_entries(entries, measure, _MAX_ROWS, _MAX_BYTES)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def split_entries(
    entries: Iterable[T], measure: Callable[[T], int] | None, max_entries: int, max_bytes: int
) -> Iterator[list[T]]:
    """Yield the entries in groups of at most this number and, if measured, of these bytes."""
    group: list[T] = []
    group_size = 0
    for entry in entries:
        size = measure(entry) if measure else 0
        if len(group) == max_entries or (group and group_size + size > max_bytes):
            yield group
            group, group_size = [], 0
        group.append(entry)
        group_size += size
    if group:
        yield group


class _Transaction:
    """The rows that one body reads and writes."""

    def __init__(self, client: DynamoDBClient, tables: Mapping[str, ItemTable]) -> None:
        self._client, self._tables = client, tables
        self._write_id = uuid4().hex
        self._known: dict[Key, Item] = {}  # what was read, or refused; empty without a row
        self._refused: dict[Key, Item] = {}
        self._writes: Writes = {}

    # -- reading

    def select(
        self,
        table: str,
        where: Row,
        *,
        columns: str = "*",
        order_by: str = "",
        descending: bool = False,
        limit: int = -1,
    ) -> Sequence[Row]:
        definition = self._tables[table]
        equal = definition.to_item({name: v for name, v in where.items() if " " not in name})
        if set(definition.key) <= set(equal):
            item = self._get(definition, equal)
            return (
                [definition.from_item(item)] if definition.matches(item, equal) and item else []
            )
        rows = map(
            definition.from_item, self._find(definition, where, equal, descending, limit)
        )
        if order_by and definition.key[0] not in equal:
            return sorted(rows, key=lambda row: row[order_by], reverse=descending)
        return list(islice(rows, limit) if limit >= 0 else rows)

    def _get(self, table: ItemTable, equal: Item) -> Item:
        """Return the current item, or an empty one if there is none."""
        key = table.find_key(equal)
        if key is None:
            return {}
        if key not in self._known:
            self._known[key] = self._client.get(table.name, table.encode_key(key))
        return self._known[key]

    def find(self, table: str, keys: Sequence[Row]) -> Sequence[Row]:
        definition = self._tables[table]
        wanted = [definition.find_key(definition.to_item(key)) for key in keys]
        missing = [key for key in wanted if key is not None and key not in self._known]
        encoded = [definition.encode_key(key) for key in missing]
        read = self._client.read_rows(definition.name, encoded) if encoded else []
        self._known |= {key: {} for key in missing}
        self._known |= {key: item for item in read if (key := definition.find_key(item))}
        items = (self._known[key] for key in wanted if key is not None)
        return [definition.from_item(item) for item in items if item]

    def _find(
        self, table: ItemTable, where: Row, equal: Item, descending: bool, limit: int
    ) -> Iterable[Item]:
        """Return the items with these attributes, of one hash in the order of their ranges."""
        index, indexed = table.index
        if table.key[0] not in equal and indexed in equal:
            query = _query(table, {indexed: equal[indexed]}, {}, [])
            return self._read_indexed(
                table, self._client.read_pages("query", IndexName=index, **query), equal
            )
        keys = {name: value for name, value in equal.items() if name == table.key[0]}
        filters = {name: value for name, value in equal.items() if name not in keys}
        if not keys:
            query = _query(table, {}, filters, [])
            return self._client.read_pages("scan", ConsistentRead=True, **query)
        query = _query(table, keys, filters, _find_bounds(table, where))
        if limit >= 0 and not filters:
            query["Limit"] = max(1, limit)  # DynamoDB applies it before a filter
        return self._client.read_pages(
            "query", ConsistentRead=True, ScanIndexForward=not descending, **query
        )

    def _read_indexed(
        self, table: ItemTable, pages: Iterable[Item], equal: Item
    ) -> Iterable[Item]:
        """Return the current items. The index lags behind and may show an item twice."""
        found = dict.fromkeys(table.find_key(item) for item in pages)
        keys = [table.encode_key(key) for key in found if key is not None]
        return (
            item
            for item in self._client.read_rows(table.name, keys)
            if table.matches(item, equal)
        )

    # -- writing

    def insert(self, table: str, rows: Sequence[Row]) -> int:
        return sum(self._insert(self._tables[table], row) for row in rows)

    def _insert(self, table: ItemTable, row: Row) -> bool:
        item = _drop_missing(table.to_item(row))
        key = table.find_key(item)
        if key is None or self._known.get(key) or key in self._writes:
            return False
        self._put(table, key, item, {})
        return True

    def _put(self, table: ItemTable, key: Key, item: Item, known: Item | None) -> None:
        """Add a put that expects the row as it was read, if it was read."""
        if table.version:
            item[table.version] = self._write_id
        expected = {} if known is None else table.select_guards(known)
        condition, values = table.expect(expected)
        arguments = {"Item": table.encode_row(item)}
        self._add(table, key, "Put", condition, values, arguments)

    def replace(self, table: str, rows: Sequence[Row]) -> None:
        definition = self._tables[table]
        for row in rows:
            item = _drop_missing(definition.to_item(row))
            key = definition.find_key(item)
            if key is not None:
                self._put(definition, key, item, self._known.get(key))

    def update(self, table: str, updates: Sequence[tuple[Row, Row]]) -> int:
        return sum(self._update(self._tables[table], *update) for update in updates)

    def _update(self, table: ItemTable, changes: Row, where: Row) -> bool:
        equal = table.to_item(where)
        key = table.find_key(equal)
        known = self._known.get(key) if key else {}
        if key is None or (known is not None and not (known and table.matches(known, equal))):
            return False
        if known is None:
            attributes = table.to_item(changes)
        else:
            row = table.from_item(known)
            attributes = _find_changes(table.to_item(row), table.to_item({**row, **changes}))
        expected = {name: value for name, value in equal.items() if name not in table.key}
        if table.version:
            attributes[table.version] = self._write_id
        if known is not None:
            expected |= table.select_guards(known)
        condition, values = table.expect(expected)
        if known is None:
            condition = require_all(f"attribute_exists(#{table.key[0]})", condition)
        update, new_values = _build_update(table, attributes, known or {})
        arguments = {"Key": table.encode_key(key)}
        self._add(table, key, "Update", condition, values | new_values, arguments, update)
        return True

    def delete(self, table: str, wheres: Sequence[Row]) -> None:
        definition = self._tables[table]
        for where in wheres:
            equal = definition.to_item(where)
            key = definition.find_key(equal)
            known = self._known.get(key) if key else {}
            if key is None or (known is not None and not definition.matches(known, equal)):
                continue
            expected = {n: v for n, v in equal.items() if n not in definition.key}
            if known:
                expected |= definition.select_guards(known)
            condition, values = definition.expect(expected)
            arguments = {"Key": definition.encode_key(key)}
            self._add(definition, key, "Delete", condition, values, arguments)

    def _add(
        self,
        table: ItemTable,
        key: Key,
        kind: str,
        condition: str,
        values: Item,
        arguments: Item,
        update: str = "",
    ) -> None:
        assert key not in self._writes, "a transaction changes a row at most once"
        call = build_call(table.name, values, arguments, Update=update, Condition=condition)
        self._writes[key] = (table, kind, call)

    # -- the end

    def commit(self) -> bool:
        """Make all writes. Return False if rows were not as expected; they are known then."""
        writes, self._writes = self._writes, {}
        if not writes:
            return True
        if len(writes) > _MAX_WRITES:
            raise InvalidInput(
                f"it takes {len(writes)} writes, and a transaction takes {_MAX_WRITES}"
            )
        if all(
            kind == "Delete" and "ConditionExpression" not in arguments
            for _, kind, arguments in writes.values()
        ):
            return self._delete_all(writes)
        refused = self._send(writes)
        if any(self._is_own(writes[key][0], row) for key, row in refused.items()):
            return True
        for key, row in refused.items():
            # A put that no row is known to refuse meets one that exists.
            is_new = not row and writes[key][1] == "Put" and not self._known.get(key)
            names = writes[key][0].key
            self._refused[key] = dict(zip(names, key[1:], strict=True)) if is_new else row
        # What was only read may have changed as well.
        kept = {key: row for key, row in self._known.items() if key in writes}
        self._known = kept | self._refused
        return not refused

    def _send(self, writes: Writes) -> dict[Key, Item]:
        """Send the writes, and return the rows that refused. Then none was made."""
        if len(writes) > 1:
            entries = [{kind: arguments | RETURN_OLD} for _, kind, arguments in writes.values()]
            result = self._client.transact(entries)
            reasons = () if isinstance(result, WriteDone) else result.reasons
            pairs = zip(writes, reasons, strict=bool(reasons))
            return {key: reason.row for key, reason in pairs if reason is not None}
        [(key, (_, kind, arguments))] = writes.items()
        answer = self._client.write(_OPERATIONS[kind], **arguments)
        return {} if isinstance(answer, WriteDone) else {key: answer.row}

    def _delete_all(self, writes: Writes) -> bool:
        """Delete rows in any condition. Each delete may be repeated, so no transaction, which
        costs twice as much, is needed.
        """
        requests: dict[str, list[dict[str, Any]]] = {}
        for table, _, arguments in writes.values():
            delete = {"DeleteRequest": {"Key": arguments["Key"]}}
            requests.setdefault(table.name, []).append(delete)
        for name, deletes in requests.items():
            self._client.write_many(name, deletes)
        return True

    def _is_own(self, table: ItemTable, row: Item) -> bool:
        """Return whether this transaction wrote the row, so that only its response was lost."""
        return bool(table.version) and row.get(table.version) == self._write_id


def measure_item(item: Item) -> int:
    """Return the bytes of an item. Raises InvalidInput if DynamoDB cannot store it."""
    try:
        return measure_size(encode(_drop_missing(item)))
    except UnicodeEncodeError:
        raise InvalidInput("a text contains a lone surrogate") from None


def _drop_missing(item: Item) -> Item:
    return {name: value for name, value in item.items() if value is not None}


def _find_changes(before: Item, after: Item) -> Item:
    """Return the attributes that differ. Odd values of other programs stay as they are."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def _build_update(table: ItemTable, attributes: Item, known: Item) -> tuple[str, Item]:
    """Return the expression that changes a row, and its values."""
    counters = table.counters if known else ()
    added = tuple(name for name in counters if attributes.get(name) is not None)
    removed = tuple(name for name, value in attributes.items() if value is None)
    new = {f":new_{name}": value for name, value in attributes.items()}
    new |= {f":new_{name}": attributes[name] - known.get(name, 0) for name in added}
    return _format_update(tuple(attributes), added, removed), new


@lru_cache(512)  # the rows of a batch have the same columns
def _format_update(
    names: tuple[str, ...], added: tuple[str, ...], removed: tuple[str, ...]
) -> str:
    sets = [name for name in names if name not in added and name not in removed]
    clauses = [
        ("SET ", [f"#{name} = :new_{name}" for name in sets]),
        ("ADD ", [f"#{name} :new_{name}" for name in added]),
        ("REMOVE ", [f"#{name}" for name in removed]),
    ]
    return " ".join(verb + ", ".join(terms) for verb, terms in clauses if terms)


def _find_bounds(table: ItemTable, where: Row) -> list[tuple[str, str, Any]]:
    """Return attribute, sign and value of each bound. No key is below an empty text."""
    return [
        (attribute, name.rpartition(" ")[2], bound)
        for name, value in where.items()
        if " " in name
        for attribute, bound in table.to_item({name.rpartition(" ")[0]: value}).items()
        if attribute in table.key and bound != ""
    ]


def _query(
    table: ItemTable, keys: Item, filters: Item, bounds: list[tuple[str, str, Any]]
) -> dict[str, Any]:
    """Return the arguments of a query, or of a scan without keys."""
    terms = [f"#{name} = :old_{name}" for name in keys]
    terms += [f"#{name} {sign} :bound_{name}" for name, sign, _ in bounds]
    condition, values = table.expect(filters)
    values |= {f":old_{name}": value for name, value in keys.items()}
    values |= {f":bound_{name}": value for name, _, value in bounds}
    return build_call(
        table.name, values, {}, KeyCondition=require_all(*terms), Filter=condition
    )
