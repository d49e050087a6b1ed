"""Names below a target: no name leads out of it (JB-34)."""

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.exports.errors import InvalidJob
from holdfast.exports.file_names import OWN_FOLDER, key_from_url, normalize_key


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "a.pdf",
        "exports/job-1/a b.pdf",
        ".hidden",
        "...a",
        "a:b",
        "ü/日本語.txt",
        "x" * 255,
        "-rf",
        "~",
        ".holdfast-2/x",
        "👨‍👩‍👧.png",
    ],
)
def test_an_ordinary_name_stays_as_it_is(key: str) -> None:
    assert normalize_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        ".",
        "..",
        "../a",
        "a/..",
        "a/../b",
        "a/./b",
        "/a",
        "a/",
        "a//b",
        "a\\b",
        "..\\a",
        "a\0b",
        "a\nb",
        "a\x7fb",
        "a\x85b",
        "a.",
        "a ",
        " a",
        "a./b",
        "a /b",
        "x" * 256,
        "ü" * 128,
        "/".join("x" * 100 for _ in range(11)),
        "\ud800",
        "gpj\u202eexe",
        OWN_FOLDER,
        f"{OWN_FOLDER}/x",
        ".HoldFast/x",
        ".hold\u200cfast/x",
        "．holdfast/x",
        f"a/{OWN_FOLDER}/x",
    ],
)
def test_a_name_that_could_do_harm_is_refused_with_a_reason(key: str) -> None:
    with pytest.raises(InvalidJob, match="cannot be used: "):
        normalize_key(key)


def test_a_name_is_normalized_to_nfc() -> None:
    assert normalize_key(unicodedata.normalize("NFD", "é.txt")) == "é.txt"


@given(st.text() | st.text(alphabet="./\\a\0 ~"))
def test_every_accepted_name_is_below_the_target(text: str) -> None:
    try:
        key = normalize_key(text)
    except InvalidJob:
        return
    path = os.path.normpath(os.path.join("/target", key))
    assert path == f"/target/{key}"
    assert normalize_key(key) == key


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://x/a/b.pdf", "b.pdf"),
        ("https://x/b.pdf?sig=a/c.pdf", "b.pdf"),
        ("https://x/b.pdf#c/d", "b.pdf"),
        ("https://x/a%20b%C3%BC.pdf", "a bü.pdf"),
        ("https://x/", "file"),
        ("https://x", "file"),
        ("https://x/..", "file"),
        ("https://x/%2e%2e", "file"),
        ("https://x/a%2Fb", "file"),
        ("https://x/..%5Cb", "file"),
        ("https://x/%00", "file"),
        ("https://x/%FF", "file"),
        ("https://x/.holdfast", "file"),
        ("https://x/" + "y" * 300, "file"),
        ("https://[x/a", "file"),
    ],
)
def test_a_name_is_made_of_the_last_part_of_a_url(url: str, key: str) -> None:
    assert key_from_url(url, ()) == key


def test_names_that_are_taken_are_numbered() -> None:
    taken: set[str] = set()
    for _ in range(5):
        taken.add(key_from_url("https://x/a.tar.gz", taken))
    assert taken == {"a.tar.gz", *(f"a.tar-{number}.gz" for number in range(2, 6))}
    assert key_from_url("https://x/.profile", {".profile"}) == ".profile-2"
    long = f"{'y' * 250}.txt"
    assert len(key_from_url(f"https://x/{long}", {long})) == 255


@given(st.sets(st.integers(min_value=2, max_value=60)))
def test_a_number_is_never_one_that_is_taken(numbers: set[int]) -> None:
    taken = {"a", *(f"a-{number}" for number in numbers)}
    assert key_from_url("https://x/a", taken) not in taken


def test_thousands_of_files_of_one_name_are_named_quickly() -> None:
    """A binary search finds the number; trying one by one would take millions of lookups."""

    class CountingSet(set[str]):
        lookups = 0

        def __contains__(self, name: object) -> bool:
            self.lookups += 1
            return super().__contains__(name)

    taken = CountingSet()
    for _ in range(3_000):
        taken.add(key_from_url("https://x/download", taken))
    assert len(taken) == 3_000
    assert taken.lookups < 3_000 * 40
