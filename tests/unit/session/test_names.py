"""Names: what may be one, and that no two of them are ever mixed up."""

from __future__ import annotations

import pytest

import mulligan
from mulligan.errors import InvalidName
from mulligan.session.names import MAX_NAME, check_name

GOOD = [
    "a",
    "run 7",
    "feature/login",
    "a.b_c-d",
    "émile",
    "走る",
    "🎲",
    "x" * MAX_NAME,
    "🎲" * MAX_NAME,
    "a@b",
    "a#b",
    "'quoted'",
    "100%",
    "..",
    "/",
    "\\",
    "NULL",
    "2026-01-01",
    "deadbeef",
    "latest",
]

BAD = {
    "": "0 characters",
    "x" * (MAX_NAME + 1): str(MAX_NAME + 1),
    " a": "space",
    "a ": "space",
    "@latest": "starts with",
    "#3": "starts with",
    "-x": "starts with",
    "a:b": "contains ':'",
    "a~1": "contains '~'",
    "a\nb": "contains",
    "a\x00b": "contains",
    "a\tb": "contains",
    "a\u202eb": "contains",
    "a\u00a0b": "contains",
    "a\u2028b": "contains",
    "\ud800": "contains",
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_is_kept_as_it_is(name: str) -> None:
    assert check_name(name, "session name") == name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_and_the_reason_said(name: str) -> None:
    with pytest.raises(InvalidName, match=BAD[name]):
        check_name(name, "label")


def test_what_it_would_be_the_name_of_has_its_article() -> None:
    with pytest.raises(InvalidName, match=r"^An agent name has 1 to 120 characters, not 0"):
        check_name("", "agent name")
    with pytest.raises(InvalidName, match=r"^A session name has 1 to 120 characters"):
        check_name("", "session name")


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["list"]])
def test_only_text_is_a_name(name: object) -> None:
    with pytest.raises(InvalidName, match="is a string"):
        check_name(name, "label")


@pytest.mark.parametrize("place", ["memory:", "disk"])
def test_every_good_name_names_one_session_one_label_one_kind_one_actor(
    place: str, tmp_path: object
) -> None:
    with mulligan.open(str(tmp_path) if place == "disk" else place) as store:
        for number, name in enumerate(GOOD):
            session = store.session(name, actor=name)
            session.state.set("number", number)
            session.checkpoint(kind=name, label=name)
        for number, name in enumerate(GOOD):
            session = store.session(name, create=False)
            assert session.state.get("number") == number
            [found] = session.checkpoints()
            assert (found.kind, found.label, found.actor) == (name, name, name)
            assert session.point(name).seq == found.seq
        assert [session.name for session in store.sessions()] == GOOD


def test_a_bad_name_is_refused_wherever_one_is_given() -> None:
    with mulligan.open("memory:") as store:
        session = store.session("s")
        for attempt in (
            lambda: store.session("a:b"),
            lambda: store.session("s", actor="a:b"),
            lambda: store.agent("a:b", session="s"),
            lambda: session.checkpoint(kind="a:b"),
            lambda: session.checkpoint(label="a:b"),
            lambda: session.fork(1, "a:b"),
        ):
            with pytest.raises(InvalidName):
                attempt()
        assert [s.name for s in store.sessions()] == ["s"]
        assert session.head.seq == 1


def test_a_fork_without_a_name_gets_a_free_one_whatever_the_parents() -> None:
    with mulligan.open("memory:") as store:
        session = store.session("🎲" * MAX_NAME)
        names = [session.fork(1).name for _ in range(12)]
        assert len(set(names)) == 12
        assert all(check_name(name, "session name") for name in names)
