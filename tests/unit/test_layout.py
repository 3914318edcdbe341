"""The store's directory: found, made, recognised, and left alone when it is something else."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mulligan
from mulligan import layout
from mulligan.errors import DamagedJournal, NotAStore, StoreNotFound, UnknownFormat
from mulligan.journal.lmdb.tables import LmdbTables
from mulligan.layout import locate

ID = "0123456789abcdef" * 2


def test_a_store_is_made_beside_the_work(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        assert store.path == str(tmp_path / ".mulligan")
    names = {entry.name for entry in (tmp_path / ".mulligan").iterdir()}
    assert names == {"FORMAT", ".gitignore", "journal", "packs", "locks", "tmp"}
    assert (tmp_path / ".mulligan" / ".gitignore").read_text() == "*\n"
    assert list((tmp_path / ".mulligan" / "tmp").iterdir()) == []


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("large", "x" * 10_000)
    for entry in (tmp_path / ".mulligan", *(tmp_path / ".mulligan").rglob("*")):
        mode = stat.S_IMODE(entry.stat().st_mode)
        assert mode == (0o700 if entry.is_dir() else 0o600), entry


def test_format_says_what_it_is(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    found = json.loads((tmp_path / ".mulligan" / "FORMAT").read_text())
    assert found["format"] == 1
    assert found["features"] == ["patches", "pins", "ordered"]
    assert len(bytes.fromhex(found["id"])) == 16


def test_missing_directories_are_made_on_the_way_and_their_names_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(layout, "sync_directory", synced.append)
    mulligan.open(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b" / ".mulligan" / "FORMAT").is_file()
    assert {tmp_path, tmp_path / "a"} <= set(synced)


def test_a_store_is_named_by_itself_or_by_the_directory_around_it(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    inside = tmp_path / ".mulligan"
    assert locate(tmp_path) == locate(inside) == inside
    with mulligan.open(inside, create=False) as store:
        assert store.path == str(inside)
    moved = tmp_path / "backup"
    inside.rename(moved)
    assert locate(moved) == moved
    with mulligan.open(moved, create=False) as store:
        assert store.path == str(moved)


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    format_ = (tmp_path / ".mulligan" / "FORMAT").read_bytes()
    mulligan.open(tmp_path).close()
    assert (tmp_path / ".mulligan" / "FORMAT").read_bytes() == format_


def test_nothing_is_made_when_told_so(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match=str(tmp_path)):
        mulligan.open(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("create", [True, False])
def test_something_else_under_our_name_is_left_alone(tmp_path: Path, create: bool) -> None:
    (tmp_path / ".mulligan").mkdir()
    (tmp_path / ".mulligan" / "precious.txt").write_text("mine")
    with pytest.raises(NotAStore):
        mulligan.open(tmp_path, create=create)
    assert [entry.name for entry in (tmp_path / ".mulligan").iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("create", [True, False])
def test_a_file_in_the_way(tmp_path: Path, create: bool) -> None:
    (tmp_path / "work").write_text("mine")
    (tmp_path / ".mulligan").write_text("mine")
    for path in (tmp_path, tmp_path / ".mulligan"):
        with pytest.raises(NotAStore):
            mulligan.open(path, create=create)
    with pytest.raises((NotAStore, StoreNotFound)):
        mulligan.open(tmp_path / "work", create=create)
    assert (tmp_path / "work").read_text() == (tmp_path / ".mulligan").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", NotAStore),
        (b"\x00\xff garbage", NotAStore),
        (b"[]", NotAStore),
        (b"{}", NotAStore),
        (b'{"format": "1"}', NotAStore),
        (b'{"format": 1.5}', NotAStore),
        (b'{"format": 1, "\xff": 1}', NotAStore),
        (b'{"format": 1, "id": "\xff\xfe"}', NotAStore),
        (b"\xff\xfe{}", NotAStore),
        (b'{"format": 1, "id": "nonsense"}', NotAStore),
        (b'{"format": 1, "id": "abcd"}', NotAStore),
        (b'{"format": 2, "id": "%s"}' % ID.encode(), UnknownFormat),
        (b'{"format": 0, "id": "%s"}' % ID.encode(), UnknownFormat),
        (b'{"format": 999, "anything": [1, 2]}', UnknownFormat),
        (b'{"format": 1, "id": "%s", "more": 1}' % ID.encode(), UnknownFormat),
        (b'{"format": 1, "id": "%s", "features": ["s3"]}' % ID.encode(), UnknownFormat),
        (b'{"format": 1, "id": "%s", "features": ["patches", "s3"]}' % ID.encode(), UnknownFormat),
        (b'{"format": 1, "id": "%s", "features": []}' % ID.encode(), DamagedJournal),
    ],
)
def test_an_unknown_or_garbled_format_is_refused(
    tmp_path: Path, content: bytes, error: type[Exception]
) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("a", "x" * 10_000)
    place = tmp_path / ".mulligan"
    (place / "FORMAT").write_bytes(content)
    before = {file: file.read_bytes() for file in place.rglob("*.[mp]*") if file.is_file()}
    for create in (True, False):
        with pytest.raises(error):
            mulligan.open(tmp_path, create=create)
    assert {file: file.read_bytes() for file in before} == before
    assert (place / "FORMAT").read_bytes() == content


def test_a_store_whose_journal_is_gone_is_damaged_and_its_packs_stay(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("a", "x" * 10_000)
    packs = {file: file.read_bytes() for file in (tmp_path / ".mulligan" / "packs").iterdir()}
    (tmp_path / ".mulligan" / "journal" / "data.mdb").unlink()
    for read_only in (False, True, False):
        with pytest.raises(DamagedJournal, match=r"no data\.mdb") as refused:
            mulligan.open(tmp_path, read_only=read_only)
        assert "mulligan verify --repair" in refused.value.hint
    assert not (tmp_path / ".mulligan" / "journal" / "data.mdb").exists()
    shutil.rmtree(tmp_path / ".mulligan" / "journal")
    for read_only in (True, False):
        with pytest.raises(DamagedJournal, match="no journal"):
            mulligan.open(tmp_path, read_only=read_only)
    assert {file: file.read_bytes() for file in packs} == packs


@pytest.mark.parametrize("gone", [["data.mdb"], ["data.mdb", "lock.mdb"], ["."]])
def test_packs_whose_format_and_journal_are_gone_are_not_taken_over(
    tmp_path: Path, gone: list[str]
) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("a", "x" * 10_000)
    place = tmp_path / ".mulligan"
    (place / "FORMAT").unlink()
    for name in gone:
        victim = place / "journal" / name
        shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    for _ in range(2):
        with pytest.raises(NotAStore, match="packs") as refused:
            mulligan.open(tmp_path)
        assert "Nothing was changed" in refused.value.hint
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_an_empty_journal_counts_as_gone(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("a", "x" * 10_000)
    place = tmp_path / ".mulligan"
    (place / "FORMAT").unlink()
    (place / "journal" / "data.mdb").write_bytes(b"")
    with pytest.raises(NotAStore, match="packs"):
        mulligan.open(tmp_path)
    assert not (place / "journal" / "data.mdb").stat().st_size


def test_packs_beside_the_journal_of_another_store_are_not_taken_over(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with mulligan.open(tmp_path / name) as store:
            store.session("s").state.set("a", "x" * 10_000)
    one, other = tmp_path / "one/.mulligan", tmp_path / "other/.mulligan"
    (one / "FORMAT").unlink()
    shutil.rmtree(one / "journal")
    shutil.copytree(other / "journal", one / "journal")
    with pytest.raises(NotAStore, match="different stores"):
        mulligan.open(tmp_path / "one")
    assert not (one / "FORMAT").exists()


def test_a_store_that_lost_its_format_alone_is_completed(tmp_path: Path) -> None:
    with mulligan.open(tmp_path) as store:
        store.session("s").state.set("a", "x" * 10_000)
    format_ = (tmp_path / ".mulligan/FORMAT").read_bytes()
    (tmp_path / ".mulligan/FORMAT").unlink()
    with mulligan.open(tmp_path) as store:
        assert store.session("s").state.get("a") == "x" * 10_000
        assert store.verify().ok
    assert (tmp_path / ".mulligan/FORMAT").read_bytes() == format_


def test_an_empty_journal_in_the_place_of_a_lost_one_names_the_repair(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    journal = tmp_path / ".mulligan" / "journal"
    shutil.rmtree(journal)
    journal.mkdir()
    LmdbTables(journal).close()
    with pytest.raises(DamagedJournal, match="is empty") as refused:
        mulligan.open(tmp_path)
    assert "mulligan verify --repair" in refused.value.hint


def test_the_journal_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        mulligan.open(tmp_path / name).close()
    journal = tmp_path / "one" / ".mulligan" / "journal" / "data.mdb"
    journal.write_bytes((tmp_path / "two" / ".mulligan" / "journal" / "data.mdb").read_bytes())
    with pytest.raises(DamagedJournal, match="does not belong") as refused:
        mulligan.open(tmp_path / "one")
    assert "move it away" in refused.value.hint


def test_of_many_makers_one_wins_and_all_agree(tmp_path: Path) -> None:
    for attempt in range(10):
        place = tmp_path / str(attempt)

        def begin(number: int, place: Path = place) -> None:
            with mulligan.open(place) as store:
                store.session(f"s{number}").state.set("large", str(number) * 10_000)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(begin, range(6)))
        with mulligan.open(place, create=False) as store:
            assert len(store.sessions()) == 6
            assert store.verify().ok


def test_a_store_that_is_made_during_the_look_is_not_taken_for_an_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ".mulligan"
    (place / "packs").mkdir(parents=True)
    real = Path.iterdir

    def meanwhile(path: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", real)
        with mulligan.open(place) as store:
            store.session("s").state.set("large", "x" * 10_000)
        return real(path)

    monkeypatch.setattr(Path, "iterdir", meanwhile)
    layout._refuse_orphans(place)
    shutil.rmtree(place / "journal")
    with pytest.raises(NotAStore, match="whose FORMAT and journal are gone"):
        layout._refuse_orphans(place)


def test_a_store_found_through_a_symlink_is_the_same_store(tmp_path: Path) -> None:
    mulligan.open(tmp_path / "real").close()
    os.symlink(tmp_path / "real", tmp_path / "link")
    with mulligan.open(tmp_path / "real") as one, mulligan.open(tmp_path / "link") as other:
        one.session("s").state.set("a", 1)
        assert other.session("s").state.get("a") == 1


def odd_tree(place: Path) -> tuple[Path, Path]:
    """Return a directory of all kinds of entries, and one outside that a symlink in it names."""
    outside, tree = place / "outside", place / "tree"
    outside.mkdir()
    (outside / "kept").touch()
    for number in range(40):
        (tree / f"d{number % 4}" / "deep").mkdir(parents=True, exist_ok=True)
        (tree / f"d{number % 4}" / "deep" / str(number)).write_text("x")
    (tree / "link").symlink_to(outside)
    (tree / "d0" / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    return tree, outside


def test_a_tree_is_removed_and_nothing_outside_of_it(tmp_path: Path) -> None:
    tree, outside = odd_tree(tmp_path)
    layout.remove_tree(tree)
    assert not tree.exists()
    assert [one.name for one in outside.iterdir()] == ["kept"]
    with pytest.raises(FileNotFoundError):
        layout.remove_tree(tree)


def test_a_tree_is_removed_where_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    tree, _ = odd_tree(tmp_path)
    layout.remove_tree(tree)
    assert not tree.exists()
