"""Stores outside of their projects: where they are, how they are found, killed while made."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mulligan
from mulligan.failpoints import Failpoint
from mulligan.locate.find import Note, find_in
from mulligan.locate.registry import (
    find_by_id,
    find_match,
    known_stores,
    note_inside,
    state_directory,
)
from mulligan.opener import make_outside
from mulligan.testing.failpoints import kill_at

POINTS = [
    point
    for point in Failpoint
    if point.name.startswith(("STORE_", "PROJECT_", "OUTSIDE_", "POINTER_"))
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "mulligan"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/u"}, "/state/mulligan"),
        ({"HOME": "/home/u"}, "/home/u/.local/state/mulligan"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/u"}, "/home/u/.local/state/mulligan"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/u"}, "/home/u/.local/state/mulligan"),
        ({"HOME": "relative"}, f"{Path.cwd()}/relative/.local/state/mulligan"),
    ],
)
def test_where_stores_are(variables: dict[str, str], expected: str) -> None:
    assert state_directory(variables) == Path(expected)


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_is_made(work: Path, state: Path, point: Failpoint) -> None:
    pid = os.fork()
    if pid == 0:
        make_outside(work, state, kill_at(point))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    found = find_in(work, state, write=True)
    is_whole = point.name.startswith(("OUTSIDE_", "POINTER_"))
    assert (found is not None) == is_whole
    store = found.store if found else make_outside(work, state)
    with mulligan.open(work) as opened:
        assert opened.path == str(store)
        opened.session("s").state.set("a", 1)
        assert opened.verify().ok
    assert [known.path for known in known_stores(state)] == [store]
    work.with_name("other").mkdir()
    make_outside(work.with_name("other"), state)
    left = [entry.name for entry in (state / "stores").iterdir() if entry.name.startswith(".new")]
    assert left == [], "what the killed one left is swept by the next"


def test_of_many_makers_one_wins_and_all_agree(work: Path, state: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        made = set(pool.map(lambda _: make_outside(work, state), range(6)))
    assert made == {known.path for known in known_stores(state)}
    assert len(made) == 1


def test_a_directory_is_known_by_path_or_by_a_proved_identity(work: Path, state: Path) -> None:
    store = make_outside(work, state)
    by_path = find_match(state, work)
    assert by_path is not None
    assert (by_path.store, by_path.same_path, by_path.same_directory) == (store, True, True)
    moved = work.rename(work.with_name("moved"))
    by_identity = find_match(state, moved)
    if by_path.place.born:  # the filesystem tells when a directory was created
        assert by_identity is not None
        assert (by_identity.same_path, by_identity.same_directory) == (False, True)
    else:
        assert by_identity is None
    work.mkdir()
    anew = find_match(state, work)
    assert anew is not None
    assert (anew.same_path, anew.same_directory) == (True, False)


def test_an_inode_that_was_given_away_again_is_not_taken_for_the_project(
    work: Path, state: Path
) -> None:
    make_outside(work, state)
    shutil.rmtree(work)
    others = [work.with_name(f"other-{number}") for number in range(50)]
    for other in others:
        other.mkdir()
    assert [other for other in others if find_match(state, other)] == []


def test_a_store_inside_is_known_until_it_is_gone(work: Path, state: Path) -> None:
    with mulligan.open(work) as made:
        store = Path(str(made.path))
    note_inside(state, store)
    [known] = known_stores(state)
    assert (known.path, known.inside, known.project) == (store, True, work)
    assert find_by_id(state, known.id) == store
    shutil.rmtree(store)
    assert list(known_stores(state)) == []


@pytest.mark.parametrize("content", [b"", b"/nonexistent\n", b"\xff\x00", b"relative"])
def test_a_garbled_note_is_passed_over(work: Path, state: Path, content: bytes) -> None:
    store = make_outside(work, state)
    (state / "inside").mkdir()
    (state / "inside" / ("0" * 32)).write_bytes(content)
    assert [known.path for known in known_stores(state)] == [store]


def test_reading_puts_nothing_back(work: Path, state: Path) -> None:
    store = make_outside(work, state)
    (work / ".mulligan").unlink()
    found = find_in(work, state, write=False)
    assert found is not None
    assert (found.store, found.note) == (store, Note.PUT_BACK)
    assert list(work.iterdir()) == []
