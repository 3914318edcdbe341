"""Any text gets a session name of its own that is valid and, if short, can be reversed."""

from __future__ import annotations

from urllib.parse import unquote

from hypothesis import example, given
from hypothesis import strategies as st

from mulligan import session_name
from mulligan.session.names import MAX_NAME, check_name

texts = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.text(st.sampled_from("-%@#~: /aB2D.é\ud800")),
    st.text(min_size=MAX_NAME - 2, max_size=MAX_NAME + 2, alphabet=st.sampled_from("ab%-")),
)


@given(texts)
@example("")
@example("%")
@example("-")
@example("%-")
@example("x" * MAX_NAME)
def test_every_name_is_valid(text: str) -> None:
    assert check_name(session_name(text), "session name") == session_name(text)


@given(texts)
def test_short_names_can_be_reversed(text: str) -> None:
    name = session_name(text)
    if "%-" in name:
        assert len(name) == MAX_NAME
    else:
        assert unquote(name, errors="surrogatepass") == (text or "%")


@given(texts, texts)
@example("", "%")
@example("-a", "%2Da")
@example("x" * 200, "x" * 201)
@example("x" * 200, session_name("x" * 200))
@example("\ud800", "%ED%A0%80")
def test_different_texts_have_different_names(one: str, other: str) -> None:
    assert (session_name(one) == session_name(other)) == (one == other)


def test_ids_stay_readable() -> None:
    assert session_name("claude-0e1f.A_b") == "claude-0e1f.A_b"
    assert session_name("user:7/thread 1") == "user%3A7%2Fthread%201"
    assert session_name("é") == "%C3%A9"
    assert session_name("x" * 121) == f"{'x' * 86}%-{session_name('x' * 121)[88:]}"
