"""The rules of a search by fields, which every queue uses."""

import json
from typing import Any

import pytest

from holdfast.queue.info import has_fields

# JSON values with the text that finds each.
VALUES: list[tuple[Any, str]] = [
    ("text", "text"),
    ("5", "5"),
    ("", ""),
    (True, "true"),
    (None, "null"),
    (0, "0"),
    (5, "5"),
    (-7, "-7"),
    (5.0, "5.0"),
    (1e22, "1e+22"),
    (0.30000000000000004, "0.30000000000000004"),
    (2**53 + 1, "9007199254740993"),
    (float("inf"), "Infinity"),
    ("na\ud800me", "na\ud800me"),
]


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_a_value_is_compared_as_a_whole_by_its_json_text(value: Any, text: str) -> None:
    assert has_fields({"field": value}, {"field": text})
    others = {other for _, other in VALUES} | {text + " ", text.upper() + "x", "%"}
    assert not any(has_fields({"field": value}, {"field": other}) for other in others - {text})


@pytest.mark.parametrize("value", [{}, [], {"a": 1}, ["a"], [1]])
def test_objects_and_lists_equal_no_value(value: Any) -> None:
    body = {"field": value}
    assert not any(
        has_fields(body, {name: text})
        for name in ("field", "field.0", "field[0]", "field.$")
        for text in (json.dumps(value), "a", "1", "", "null")
    )


def test_a_dotted_name_reaches_into_objects_and_is_also_the_name_of_a_field() -> None:
    body = {"site": {"host": {"name": "x"}, "port": 80}, "http.host": "x", "": {"": "x"}}
    for name, text in [("site.host.name", "x"), ("site.port", "80"), ("http.host", "x")]:
        assert has_fields(body, {name: text})
    for name in ("site.host", "site.host.name.x", ".site.port", "site..port", "http", "$"):
        assert not has_fields(body, {name: "x"})


def test_all_fields_must_match_and_a_body_that_is_no_object_has_none() -> None:
    assert has_fields({"a": 1, "b": 2}, {"a": "1", "b": "2"})
    assert not has_fields({"a": 1, "b": 2}, {"a": "1", "b": "3"})
    assert not has_fields(None, {"a": "1"})
    assert has_fields(None, {})
