"""What a store knows of directories: written whole, checked when read, never half believed."""

from __future__ import annotations

import errno
import os
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mulligan
from mulligan.locate.identity import identity_of
from mulligan.locate.project import forget_project, project_of, read_places, remember


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with mulligan.open(tmp_path / "store") as made:
        return Path(str(made.path))


def directory(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def test_a_store_of_an_earlier_version_knows_none(store: Path) -> None:
    assert read_places(store) == []
    assert project_of(store) is None


def test_a_directory_is_known_by_path_and_identity(store: Path, tmp_path: Path) -> None:
    work = directory(tmp_path, "work")
    remember(store, work)
    place = project_of(store)
    assert place is not None
    assert place.path == str(work)
    assert place.identity.matches(identity_of(work))


def test_the_project_and_each_fork_have_one_place(store: Path, tmp_path: Path) -> None:
    one, two, three = (directory(tmp_path, name) for name in ("one", "two", "three"))
    remember(store, one)
    remember(store, two, "bold")
    remember(store, three, "bold")
    remember(store, two)
    known = {place.session: place.path for place in read_places(store)}
    assert known == {None: str(two), "bold": str(three)}
    forget_project(store)
    assert project_of(store) is None
    assert [place.session for place in read_places(store)] == ["bold"]


def test_what_several_write_at_once_is_all_there(store: Path, tmp_path: Path) -> None:
    work = directory(tmp_path, "work")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: remember(store, work, f"s{number}"), range(24)))
    assert {place.session for place in read_places(store)} == {f"s{n}" for n in range(24)}
    assert list((store / "tmp").iterdir()) == []


def test_no_flipped_bit_leads_to_another_directory(store: Path, tmp_path: Path) -> None:
    work = directory(tmp_path, "work")
    remember(store, work)
    place, sound = project_of(store), (store / "PROJECT").read_bytes()
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        (store / "PROJECT").write_bytes(damaged)
        assert project_of(store) in (None, place)
    for cut in range(len(sound) - 2):
        (store / "PROJECT").write_bytes(sound[:cut])
        assert project_of(store) is None


def test_what_is_known_stays_where_there_is_no_room_for_more(store: Path, tmp_path: Path) -> None:
    work = directory(tmp_path, "work")
    for number in range(20):
        remember(store, work, f"s{number}")
    known, size = read_places(store), (store / "PROJECT").stat().st_size
    pid = os.fork()
    if pid == 0:
        # The write that reaches the limit is cut short; only the one after it fails.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            remember(store, work, "one more")
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EFBIG
    assert read_places(store) == known
    assert list((store / "tmp").iterdir()) == []


def test_what_cannot_be_read_now_is_not_written_over(store: Path, tmp_path: Path) -> None:
    work = directory(tmp_path, "work")
    remember(store, work, "fork")
    known = read_places(store)
    (store / "PROJECT").rename(store / "kept")
    (store / "PROJECT").symlink_to("PROJECT")  # opening it fails, as with a failing disk
    with pytest.raises(OSError, match="symbolic links"):
        remember(store, work)
    (store / "kept").rename(store / "PROJECT")
    assert read_places(store) == known
