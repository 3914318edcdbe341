"""Making and adopting stores, and moving them, without a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan
from mulligan.errors import RestorePending, UnsafeWorkspace
from mulligan.locate.pointer import read_pointer
from mulligan.make_store import adopt_store, make_store
from mulligan.move_store import move_store


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_a_store_is_made_outside_once(work: Path, tmp_path: Path, variables) -> None:
    made = make_store(work, variables)
    assert made.is_new
    assert made.store.is_relative_to(tmp_path / "state")
    assert made.sessions == ["main"]
    again = make_store(work, variables, session="other", actor="server")
    assert (again.store, again.is_new, again.sessions) == (made.store, False, ["main", "other"])
    assert again.found is not None


def test_a_store_inside_is_made_and_is_found_again(work: Path, variables) -> None:
    made = make_store(work, variables, inside=True)
    assert made.store == work / ".mulligan"
    assert not make_store(work, variables).is_new


def test_the_home_directory_is_refused_and_gets_no_store(tmp_path: Path, variables) -> None:
    home = tmp_path / "home"
    with pytest.raises(UnsafeWorkspace, match="home directory"):
        make_store(home, variables)
    assert not list(home.iterdir())
    assert make_store(home, variables, force=True).is_new


def test_the_parent_of_the_stores_is_refused(tmp_path: Path, variables) -> None:
    with pytest.raises(UnsafeWorkspace, match="directory of the stores"):
        make_store(tmp_path, variables)
    assert not (tmp_path / "state").exists()


def test_a_store_above_is_named(work: Path, variables) -> None:
    make_store(work, variables)
    (work / "deep").mkdir()
    assert make_store(work / "deep", variables).above == work


def test_adopting_names_the_store_that_was_replaced(work: Path, tmp_path: Path, variables) -> None:
    (tmp_path / "other").mkdir()
    first, other = make_store(work, variables), make_store(tmp_path / "other", variables)
    adopted = adopt_store(work, other.store, variables)
    assert (adopted.store, adopted.replaced) == (other.store, first.store)
    pointer = read_pointer(work)
    assert pointer is not None
    assert pointer.names(other.store)
    assert (first.store / "FORMAT").is_file()


def test_a_store_inside_a_project_cannot_be_adopted(work: Path, tmp_path: Path, variables) -> None:
    inside = make_store(work, variables, inside=True).store
    (tmp_path / "other").mkdir()
    with pytest.raises(UnsafeWorkspace, match="cannot adopt"):
        adopt_store(tmp_path / "other", inside, variables)
    assert not list((tmp_path / "other").iterdir())


def test_a_store_moves_in_and_out(work: Path, variables) -> None:
    outside = make_store(work, variables).store
    assert move_store(outside, variables, inside=False) == outside
    inside = move_store(outside, variables, inside=True)
    assert inside == work / ".mulligan"
    assert move_store(inside, variables, inside=False).parent == outside.parent


def test_a_store_without_a_project_does_not_move_into_it(tmp_path: Path, variables) -> None:
    with mulligan.open(tmp_path / "loose") as store:
        path = Path(str(store.path))
    bare = path.rename(tmp_path / "bare")
    with pytest.raises(UnsafeWorkspace, match="knows no project"):
        move_store(bare, variables, inside=True)
    assert (bare / "FORMAT").is_file()


def test_a_store_with_a_pending_restore_stays(work: Path, variables, monkeypatch) -> None:
    path = make_store(work, variables).store
    monkeypatch.setattr(
        "mulligan.session.parts.files.Files.pending", property(lambda session: object())
    )
    with pytest.raises(RestorePending, match="main"):
        move_store(path, variables, inside=True)
    assert (path / "FORMAT").is_file()
    assert (work / ".mulligan").is_file()
