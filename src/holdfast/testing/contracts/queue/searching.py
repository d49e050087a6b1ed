"""SearchPromises: an operator finds messages by the fields of their bodies and by errors."""

import json
from typing import Any

import pytest

from holdfast.queue.manager import MessageState
from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock
from holdfast.testing.contracts.queue.inspection import push_every_state
from holdfast.testing.contracts.queue.support import (
    LEASE,
    AnyQueue,
    Inject,
    MakeQueue,
    poll_one,
    push_and_poll,
    require_capabilities,
    take_snapshot,
)

# Names and values that have a meaning in SQL, in JSON paths or in patterns.
HOSTILE = [
    *("'", '"', "''; DROP TABLE messages; --", "$", "$.id", '$."id"', "[0]", "#-1", "NULL"),
    *("a.b", ".", "..", "." * 100, ".a", "a.", "%", "_", "a%", "*", "\\", 'a\\"b'),
    *("\u00e9", "e\u0301", "\U0001f600", "\0", "a\0b", "", " ", "\n", "0", "-1"),
    pytest.param("x" * 5000, id="5000 characters"),
]
# JSON values with the text that finds each.
VALUES: list[tuple[Any, str]] = [
    ("text", "text"),
    ("true", "true"),
    ("5", "5"),
    ("", ""),
    (True, "true"),
    (False, "false"),
    (None, "null"),
    (0, "0"),
    (5, "5"),
    (-7, "-7"),
    (1.5, "1.5"),
    (5.0, "5.0"),
    (1e22, "1e+22"),
    (0.1, "0.1"),
    (0.30000000000000004, "0.30000000000000004"),
    (1e-7, "1e-07"),
    (2**53 + 1, "9007199254740993"),
    (2**63, "9223372036854775808"),
    (-(2**70), "-1180591620717411303424"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
]
# Values as other programs may write them, with the text that finds each.
WRITTEN: list[tuple[str, str]] = [
    ('"caf\\u00e9"', "café"),
    ('"café"', "café"),
    (r'"a\/b"', "a/b"),
    (r'"a\"b"', 'a"b'),
    ('""', ""),
    ('"5.00"', "5.00"),
    ("12", "12"),
    ("-0", "0"),
    ("5.00", "5.0"),
    ("1E2", "100.0"),
    ("1e999", "Infinity"),
    ("null", "null"),
]


class SearchPromises:
    """Promises about `search`."""

    @pytest.fixture
    def searching(self, queue: AnyQueue) -> AnyQueue:
        """A queue that can search."""
        require_capabilities(queue, "search")
        return queue

    def test_a_search_finds_messages_by_a_field(self, searching: AnyQueue) -> None:
        searching.push(AnyMessage(id="a", domain="example.com", page=1))
        searching.push(AnyMessage(id="b", domain="example.org", page=1))
        searching.push(AnyMessage(id="c", site={"name": "x' OR 1"}))
        assert find_ids(searching, domain="example.com") == ["a"]
        assert find_ids(searching, page="1") == ["a", "b"]
        assert find_ids(searching, page="1", domain="example.org") == ["b"]
        assert find_ids(searching, page="2") == []
        assert find_ids(searching, id="c") == ["c"]
        assert find_ids(searching, **{"site.name": "x' OR 1"}) == ["c"]
        assert find_ids(searching) == ["a", "b", "c"]

    def test_a_value_is_compared_as_a_whole_and_with_its_case(
        self, searching: AnyQueue
    ) -> None:
        searching.push(AnyMessage(id="a", domain="Example.com"))
        for other in ("example.com", "Example", "Example.com ", "Example%", "Example_com", ""):
            assert find_ids(searching, domain=other) == []

    @pytest.mark.parametrize(("value", "text"), VALUES)
    def test_values_that_are_not_strings_are_compared_by_their_json_text(
        self, searching: AnyQueue, value: Any, text: str
    ) -> None:
        searching.push(AnyMessage(id="a", field=value))
        assert find_ids(searching, field=text) == ["a"]
        for other in {text for _, text in VALUES} - {text}:
            assert find_ids(searching, field=other) == []

    @pytest.mark.parametrize("value", [{}, [], {"a": 1}, ["a"], [1]])
    def test_objects_and_lists_equal_no_value(self, searching: AnyQueue, value: Any) -> None:
        searching.push(AnyMessage(id="a", field=value))
        for text in (json.dumps(value), "a", "1", "", "null"):
            assert find_ids(searching, field=text) == []
        for name in ("field.0", "field[0]", "field.$"):
            assert find_ids(searching, **{name: "a"}) == []

    def test_a_dotted_name_reaches_into_objects(self, searching: AnyQueue) -> None:
        searching.push(AnyMessage(id="a", site={"host": {"name": "x"}, "port": 80}))
        searching.push(AnyMessage(id="b", site={"port": 80}, host={"name": "x"}))
        searching.push(AnyMessage(id="c", site="x"))
        assert find_ids(searching, **{"site.host.name": "x"}) == ["a"]
        assert find_ids(searching, **{"site.port": "80"}) == ["a", "b"]
        for name in ("site.host", "site.host.name.x", "host.name.", ".site.port", "site..port"):
            assert find_ids(searching, **{name: "x"}) == []

    def test_a_dotted_name_is_also_the_name_of_a_field(self, searching: AnyQueue) -> None:
        searching.push(AnyMessage(id="a", **{"http.host": "x"}))
        searching.push(AnyMessage(id="b", http={"host": "x"}))
        assert find_ids(searching, **{"http.host": "x"}) == ["a", "b"]

    @pytest.mark.parametrize("name", HOSTILE)
    def test_any_name_and_any_value_is_only_text(self, searching: AnyQueue, name: str) -> None:
        searching.push(AnyMessage(id="a", **{f"x{name}": name}))
        searching.push(AnyMessage(id="b", inner={f"x{name}": name}))
        searching.push(AnyMessage(id="c", x="other", **{"x ": name + " "}))
        assert find_ids(searching, **{f"x{name}": name}) == ["a"]
        assert find_ids(searching, **{f"x{name}": name + "z"}) == []
        assert find_ids(searching, **{f"inner.x{name}": name}) == (
            ["b"] if "." not in name else []
        )
        assert searching.stats().ready == 3

    @pytest.mark.parametrize(("written", "text"), WRITTEN)
    def test_a_value_is_found_however_it_is_written(
        self, searching: AnyQueue, inject: Inject, written: str, text: str
    ) -> None:
        for encoding in ("utf-8", "utf-8-sig", "utf-16"):
            inject(searching, f'{{"id": "a", "value": {written}}}'.encode(encoding))
        assert len(list(searching.search(where={"value": text}))) == 3
        assert len(list(searching.search(where={"value": text + "x"}))) == 0

    def test_names_and_values_that_are_not_unicode_are_searched_for(
        self, searching: AnyQueue, inject: Inject
    ) -> None:
        inject(searching, b'{"id": "a", "na\\ud800me": "val\\udc80ue", "other": "x"}')
        assert find_ids(searching, **{"na\ud800me": "val\udc80ue"}) == ["a"]
        assert find_ids(searching, **{"na\ud801me": "val\udc80ue"}) == []
        assert find_ids(searching, other="x\udcff") == []

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{ not JSON",
            b"[]",
            b'["domain", "x"]',
            b'"domain"',
            b"5",
            b"null",
            b'{"domain": "x"}\0',
            b'\xff{"domain": "x"}',
            b'{"domain": "x"',
            b"[" * 5000,
            b"[" * 5000 + b"]" * 5000,
        ],
    )
    def test_bodies_that_are_not_objects_have_no_fields(
        self, searching: AnyQueue, inject: Inject, body: bytes
    ) -> None:
        inject(searching, body)
        searching.push(AnyMessage(id="good", domain="x"))
        assert find_ids(searching, domain="x") == ["good"]
        assert find_ids(searching, **{"domain.x": "x"}) == []
        assert len(list(searching.search())) == 2

    @pytest.mark.parametrize(
        ("ratio", "text"),
        [
            ("NaN", "NaN"),
            ("-Infinity", "-Infinity"),
            ("1e400", "Infinity"),
            ("1" * 400, "1" * 400),
        ],
    )
    def test_numbers_that_few_programs_can_read_are_searched_for(
        self, searching: AnyQueue, inject: Inject, ratio: str, text: str
    ) -> None:
        """Python reads and writes them, so another program may have pushed them."""
        inject(searching, f'{{"id": "a", "domain": "x", "ratio": {ratio}}}'.encode())
        searching.push(AnyMessage(id="b", domain="x", ratio=5))
        assert find_ids(searching, domain="x") == ["a", "b"]
        assert find_ids(searching, ratio=text) == ["a"]
        assert find_ids(searching, ratio="5") == ["b"]

    @pytest.mark.parametrize("text", ["timeout", "TIMEOUT after 30 s", "Timeout", " after "])
    def test_an_error_is_found_in_the_reason_whatever_its_case(
        self, searching: AnyQueue, text: str
    ) -> None:
        searching.push(AnyMessage(id="a"))
        searching.dead_letter(poll_one(searching), "Timeout after 30 s")
        searching.push(AnyMessage(id="b"))
        searching.dead_letter(poll_one(searching), "no such customer")
        searching.push(AnyMessage(id="timeout"))
        assert search_ids(searching, error=text) == ["a"]

    def test_an_error_is_found_in_a_past_attempt(
        self, make_queue: MakeQueue, clock: ManualClock
    ) -> None:
        queue = make_queue(max_attempts=9)
        require_capabilities(queue, "search", "history")
        queue.push(AnyMessage(id="a"))
        for reason in ("connection refused", "timeout", "no answer"):
            queue.nack(poll_one(queue), delay_seconds=0, reason=reason, detail="Traceback")
        assert search_ids(queue, error="Timeout") == ["a"]
        queue.ack(poll_one(queue))
        assert search_ids(queue, error="REFUSED") == ["a"]
        assert search_ids(queue, error="traceback") == []  # only reasons are searched
        push_and_poll(queue, id="lost")
        clock.advance(LEASE + 1)
        poll_one(queue)
        assert search_ids(queue, error="worker") == ["lost"]

    @pytest.mark.parametrize("reason", ["Größe", "ГОРОД", "100%", "a_b", 'it\'s "x"', "\\d"])
    def test_an_error_is_plain_text_in_any_script(
        self, searching: AnyQueue, reason: str
    ) -> None:
        for message_id, text in (("a", f"so: {reason}!"), ("b", "none of them: axb 100x")):
            searching.dead_letter(push_and_poll(searching, id=message_id), text)
        for text in (reason, reason.upper(), reason.lower()):
            assert search_ids(searching, error=text) == ["a"]
        assert search_ids(searching, error=f"{reason}\ud800") == []

    def test_fields_and_error_must_both_match(self, searching: AnyQueue) -> None:
        for message_id, domain, reason in (
            ("a", "x", "timeout"),
            ("b", "x", "refused"),
            ("c", "y", "timeout"),
        ):
            searching.dead_letter(
                push_and_poll(searching, id=message_id, domain=domain), reason
            )
        found = search_ids(searching, where={"domain": "x"}, error="timeout")
        assert found == ["a"]

    @pytest.mark.parametrize("state", [None, *MessageState])
    def test_a_search_is_limited_to_a_state(
        self, searching: AnyQueue, clock: ManualClock, state: MessageState | None
    ) -> None:
        require_capabilities(searching, "peek")
        push_every_state(searching, clock)
        states = MessageState if state is None else [state]
        expected = sorted(view.id for each in states for view in searching.peek(each))
        views = list(searching.search(state))
        assert sorted(view.id for view in views) == expected
        assert {view.state for view in views} == set(states)

    def test_a_search_yields_no_more_than_the_limit(self, searching: AnyQueue) -> None:
        searching.push_many(AnyMessage(kind="even" if n % 2 else "odd") for n in range(20))
        assert len(list(searching.search(where={"kind": "odd"}, limit=4))) == 4
        assert len(list(searching.search(where={"kind": "odd"}))) == 10
        assert list(searching.search(limit=0)) == []

    def test_a_search_reports_how_many_messages_it_has_seen(self, searching: AnyQueue) -> None:
        searching.push_many(AnyMessage(n=n) for n in range(30))
        seen: list[int] = []
        assert list(searching.search(where={"n": "x"}, on_progress=seen.append)) == []
        assert sum(seen) == 30

    def test_a_search_stays_in_its_own_queue(
        self, searching: AnyQueue, make_other_queue: MakeQueue
    ) -> None:
        make_other_queue().push(AnyMessage(id="theirs", domain="x"))
        searching.push(AnyMessage(id="ours", domain="x"))
        assert find_ids(searching, domain="x") == ["ours"]

    def test_a_search_changes_nothing(self, searching: AnyQueue, clock: ManualClock) -> None:
        require_capabilities(searching, "peek", "find")
        push_every_state(searching, clock)
        before = take_snapshot(searching)
        list(searching.search(where={"id": "ready"}, error="x"))
        assert take_snapshot(searching) == before


def find_ids(queue: AnyQueue, **where: str) -> list[str]:
    """Return the ids of the messages that have these fields."""
    return search_ids(queue, where=where)


def search_ids(queue: AnyQueue, **conditions: Any) -> list[str]:
    """Return the ids of the messages that a search yields."""
    return sorted(view.id for view in queue.search(**conditions))
