"""Entries and names: one file name has one key, one key one file name, and both come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.errors import UnsafeName
from mulligan.model import Digest
from mulligan.workspace.entries import (
    Directory,
    File,
    Link,
    decode_entry,
    encode_entry,
    from_name,
    shown,
    to_name,
)
from mulligan.workspace.restore.plan import check_name, tree_path

NAMES = st.binary(min_size=1, max_size=30).filter(lambda raw: not {0, 47} & set(raw))


@given(NAMES)
def test_every_file_name_has_a_key_that_leads_back_to_it(raw: bytes) -> None:
    key = to_name(raw)
    assert from_name(key) == raw
    key.encode()
    if raw not in (b".", b".."):
        check_name(key)


@given(NAMES, NAMES)
def test_different_names_have_different_keys(one: bytes, other: bytes) -> None:
    assert (to_name(one) == to_name(other)) == (one == other)


@pytest.mark.parametrize(
    "key",
    ["", ".", "..", "/", "a/b", "/a", "a\x00", "\x00", "\x00.", "\x00a/b", "\x00plain", "\x00ሴ"],
)
def test_a_key_that_no_file_name_has_is_refused(key: str) -> None:
    with pytest.raises(UnsafeName):
        check_name(key)


def test_a_path_is_shown_with_what_is_no_text_escaped() -> None:
    assert shown(("a", to_name(b"caf\xe9"), "é")) == "a/caf\\xe9/é"


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ("src/app.py", ("src", "app.py")),
        ("./src//app.py/", ("src", "app.py")),
        ("a~1b/~0", ("a~1b", "~0")),
        ("caf\udce9", ("\x00caf\xe9",)),
        (("src", 1), ("src", "1")),
        ("", ()),
        ("../x", ("..", "x")),
    ],
)
def test_a_part_is_the_path_that_people_mean(part: object, path: tuple[str, ...]) -> None:
    assert tree_path(part) == path  # type: ignore[arg-type]


DIGESTS = st.binary(min_size=32, max_size=32).map(Digest)
XATTRS = st.none() | st.dictionaries(st.text(min_size=1), st.binary(), min_size=1)
TIMES = st.integers(-(2**62), 2**62)
MODES = st.integers(0, 0o7777)


@given(
    st.builds(Link, TIMES, st.binary(max_size=50))
    | st.builds(Directory, MODES, TIMES, XATTRS)
    | st.builds(
        File, MODES, TIMES, st.integers(0, 2**60), st.lists(DIGESTS, max_size=4).map(tuple), XATTRS
    )
)
def test_an_entry_comes_back_from_its_value(entry: File | Link | Directory) -> None:
    assert decode_entry(encode_entry(entry)) == entry
