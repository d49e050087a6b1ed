"""Merging fragments into one text, and splitting a reply (I-MS-7, MS-19)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.chat.batching import merge_texts, sort_fragments
from holdfast.chat.model import ConversationKey, Fragment
from holdfast.chat.replies import split_text

KEY = ConversationKey("whatsapp:you", "c")


def fragment(sid: str, body: str, at: float, media: tuple[str, ...] = ()) -> Fragment:
    return Fragment(KEY, sid, body, received_at=at, staged_at=at, media=media)


@pytest.mark.requirement("R002-033", "R002-035")
def test_fragments_are_merged_as_they_were_received_with_a_line_each():
    rows = [fragment("a", "world", 2.0), fragment("c", "!", 2.5), fragment("b", "hello", 1.0)]
    rows = [replace(row, staged_at=-row.received_at) for row in rows]  # in another order
    assert merge_texts(sort_fragments(rows)) == "hello\nworld\n!"


@pytest.mark.requirement("R002-034")
def test_the_sid_decides_between_messages_of_the_same_moment():
    rows = [fragment("SM2", "second", 1.0), fragment("SM1", "first", 1.0)]
    assert [row.message_sid for row in sort_fragments(rows)] == ["SM1", "SM2"]


@pytest.mark.requirement("R002-034")
@given(st.permutations([fragment(f"SM{n}", f"text {n}", float(n // 2)) for n in range(7)]))
def test_the_order_of_staging_changes_nothing(rows):
    expected = merge_texts(sort_fragments(sorted(rows, key=lambda row: row.message_sid)))
    assert merge_texts(sort_fragments(rows)) == expected


def test_a_message_without_words_is_merged_by_what_is_attached():
    rows = [fragment("a", "", 1.0, ("image/jpeg",)), fragment("b", "see?", 2.0, ("audio/ogg",))]
    assert merge_texts(rows) == "[attached: image/jpeg]\nsee?\n[attached: audio/ogg]"


def test_a_short_reply_is_one_message():
    assert split_text("  Hello.\n", 1600) == ["Hello."]
    assert split_text(" \n ", 1600) == []


def test_a_long_reply_is_cut_after_a_paragraph_a_line_a_sentence_or_a_word():
    assert split_text("aaaa bbbb\n\ncccc dddd", 12) == ["aaaa bbbb", "cccc dddd"]
    assert split_text("aaaa bbbb\ncccc dddd", 12) == ["aaaa bbbb", "cccc dddd"]
    assert split_text("One two. Three four.", 14) == ["One two.", "Three four."]
    assert split_text("aaaa bbbb cccc", 10) == ["aaaa bbbb", "cccc"]
    assert split_text("abcdefghij", 4) == ["abcd", "efgh", "ij"]


@given(st.text(max_size=150), st.integers(min_value=2, max_value=25))
def test_no_part_is_too_long_and_no_letter_is_lost(text, longest):
    parts = split_text(text, longest)
    assert all(len(part.encode("utf-16-le", "surrogatepass")) // 2 <= longest for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())
