"""Counts with their nouns."""

import pytest

from holdfast.text import format_count


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 batches"), (1, "1 batch"), (2000, "2,000 batches")]
)
def test_a_count_has_the_form_of_its_noun(count: int, text: str) -> None:
    assert format_count(count, "batch", "batches") == text
    assert format_count(count, "message").removesuffix("s") == f"{count:,} message"
