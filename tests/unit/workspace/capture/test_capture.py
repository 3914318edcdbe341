"""Capturing: everything that is there comes back, and what is left out is named."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest

import mulligan
from mulligan import Session, codec
from mulligan.document.document import settle
from mulligan.document.values import freeze
from mulligan.errors import UnsafeWorkspace
from mulligan.failpoints import Failpoint
from mulligan.model import Checkpoint, Digest
from mulligan.session.write import checkpointer
from mulligan.store import Store
from mulligan.testing.clock import FakeClock
from mulligan.testing.failpoints import fail_at
from mulligan.testing.stores import open_store
from mulligan.workspace.capture import file_reader
from mulligan.workspace.capture.index import (
    COARSE_TIMESTAMP_GRAIN_NS,
    TIMESTAMP_GRAIN_NS,
    VERSION,
    Edits,
    Index,
    SeenDirectory,
)
from tests.nobody import as_nobody, place_of_nobody
from tests.pictures import Picture, picture
from tests.trees import plain_tree


def wipe(work: Path) -> None:
    for entry in os.scandir(work):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def left_out(checkpoint: Checkpoint) -> dict[str, str]:
    assert checkpoint.coverage is not None
    return {left.path: left.rule for left in checkpoint.coverage.left_out}


def changing(checkpoint: Checkpoint) -> dict[str, str]:
    assert checkpoint.coverage is not None
    return {found.path: found.reason for found in checkpoint.coverage.changing}


def has_xattrs(place: Path) -> bool:
    probe = place / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.probe", b"1")
    except (OSError, AttributeError):
        return False
    finally:
        probe.unlink()
    return True


# --- everything that is there ----------------------------------------------------------------


def ordinary_files(work: Path) -> None:
    (work / "src" / "deep" / "er").mkdir(parents=True)
    (work / "src" / "app.py").write_bytes(b"print(1)\n")
    (work / "src" / "deep" / "er" / "binary").write_bytes(bytes(range(256)) * 40)
    (work / "crlf.txt").write_bytes(b"a\r\nb\nc\r")
    (work / "no-newline").write_bytes(b"x")


def empty_files(work: Path) -> None:
    (work / "empty").touch()
    (work / "sub").mkdir()
    (work / "sub" / "empty too").touch()


def empty_directories(work: Path) -> None:
    (work / "empty").mkdir()
    (work / "a" / "b" / "c").mkdir(parents=True)
    os.utime(work / "a" / "b" / "c", ns=(1, 1_000_000_007))


def modes(work: Path) -> None:
    for mode in (0o600, 0o644, 0o755, 0o444, 0o400, 0o711, 0o666, 0o777, 0o4755, 0o2755, 0o6711):
        file = work / f"file-{mode:o}"
        file.write_bytes(b"#!/bin/sh\n")
        file.chmod(mode)
        assert stat.S_IMODE(file.stat().st_mode) == mode
    for mode in (0o700, 0o755, 0o777, 0o1777, 0o2775):
        directory = work / f"directory-{mode:o}"
        directory.mkdir()
        (directory / "file").write_bytes(b"in")
        directory.chmod(mode)


def times(work: Path) -> None:
    moments = (0, 1, 999_999_999, 1_700_000_000_123_456_789, 1_700_000_000_000_000_001, -1)
    for moment in (*moments, -86_400_000_000_000, 4_000_000_000_000_000_003):
        (work / f"file-{moment}").write_bytes(b"x")
        os.utime(work / f"file-{moment}", ns=(5, moment))
        os.symlink("nowhere", work / f"link-{moment}")
        os.utime(work / f"link-{moment}", ns=(5, moment), follow_symlinks=False)
        (work / f"directory-{moment}").mkdir()
        (work / f"directory-{moment}" / "in").touch()
        os.utime(work / f"directory-{moment}", ns=(5, moment))
    os.utime(work, ns=(7, 1_600_000_000_000_000_042))


def symlinks(work: Path) -> None:
    (work / "directory").mkdir()
    (work / "directory" / "file").write_bytes(b"behind")
    os.symlink("directory/file", work / "to-file")
    os.symlink("directory", work / "to-directory")
    os.symlink("missing", work / "dangling")
    os.symlink("/etc/passwd", work / "absolute")
    os.symlink("/no/such/place", work / "absolute-dangling")
    os.symlink("loop", work / "loop")
    os.symlink("ping", work / "pong")
    os.symlink("pong", work / "ping")
    os.symlink("..", work / "directory" / "up")
    os.symlink("../../../..", work / "directory" / "far-up")
    os.symlink(b"not utf-8 \xff\xfe", os.fsencode(work / "strange-target"))
    os.symlink("x" * 4000, work / "long-target")


def hard_links(work: Path) -> None:
    (work / "one").write_bytes(b"shared")
    os.link(work / "one", work / "two")
    (work / "sub").mkdir()
    os.link(work / "one", work / "sub" / "three")


NAMES = [
    b"caf\xe9",
    b"\xff",
    b"\xff\xfe\xfd",
    b"\x80dir-like",
    b"ends with \xc3",
    b"newline\nin it",
    b"\n",
    b"tab\tand\rreturn",
    b" leading",
    b"trailing ",
    b" ",
    b"-rf",
    b"--help",
    b"~",
    b"~1",
    b"a~0b",
    b"~root",
    b"\\x00",
    b"\\0",
    b"back\\slash",
    b"\x01\x1b[31m\x7f",
    b"...",
    b"..a",
    b".hidden",
    b"*?[a]{b}",
    b"#comment",
    b"!bang",
    b"quo'te\"s`$HOME`",
    b"colon:name",
    "caf\u00e9".encode(),
    "cafe\u0301".encode(),
    "\U0001f3cc \u202e rtl".encode(),
    b"workspace",
    b"0",
    b"-1",
    b".mulligan-draft-x",
    b"x",
    b".mulligan-draft-",
]


def strange_names(work: Path) -> None:
    root = os.fsencode(work)
    for number, name in enumerate(NAMES):
        with open(root + b"/" + name, "wb") as file:
            file.write(b"%d" % number)
    os.mkdir(root + b"/directory \xff\n")
    for name in NAMES:
        os.mkdir(root + b"/directory \xff\n/" + name)
        os.symlink(name, root + b"/directory \xff\n/" + name + b"/" + name)


def long_names(work: Path) -> None:
    root = os.fsencode(work)
    for name in (b"n" * 255, b"n" * 254 + b"m", b"\xff" * 255, "é".encode() * 127, b"d" * 200):
        with open(root + b"/" + name, "wb") as file:
            file.write(name[-3:])
    os.mkdir(root + b"/" + b"D" * 255)
    os.symlink(b"n" * 255, root + b"/" + b"D" * 255 + b"/" + b"s" * 255)


def long_paths(work: Path) -> None:
    """As long as the system can open by its whole path."""
    room = os.pathconf(work, "PC_PATH_MAX") - 1 - len(os.fsencode(work)) - 1
    parts = [b"p" * 200] * ((room - 20) // 201)
    rest = room - sum(map(len, parts)) - len(parts)
    directory = b"/".join([os.fsencode(work), *parts])
    os.makedirs(directory)
    with open(directory + b"/" + b"f" * (rest - 1), "wb") as file:
        file.write(b"at the end")


def deep_directories(work: Path) -> None:
    """As deep as trees go."""
    (work / "/".join("d" * 200)).mkdir(parents=True)
    (work / "/".join("d" * 200) / "file").write_bytes(b"down there")


def sparse_files(work: Path) -> None:
    with (work / "sparse").open("wb") as file:
        file.seek(3_000_000)
        file.write(b"in the middle")
        file.truncate(6_000_000)


def many_files(work: Path) -> None:
    (work / "many").mkdir()
    for number in range(300):
        (work / "many" / f"{number:03}").write_bytes(b"%d" % number)


def files_around_the_chunk_sizes(work: Path) -> None:
    for size in (
        file_reader.SINGLE_CHUNK_BYTES - 1,
        file_reader.SINGLE_CHUNK_BYTES,
        file_reader.SINGLE_CHUNK_BYTES + 1,
        3 * file_reader.SINGLE_CHUNK_BYTES,
    ):
        block = b"".join(b"%d\n" % n for n in range(size // 6))
        (work / str(size)).write_bytes((block + b"." * size)[:size])


def extended_attributes(work: Path) -> None:
    if not has_xattrs(work):
        pytest.skip("this filesystem has no extended attributes")
    (work / "file").write_bytes(b"content")
    os.setxattr(work / "file", "user.plain", b"value")
    os.setxattr(work / "file", "user.binary", bytes(range(256)))
    os.setxattr(work / "file", b"user.caf\xe9", b"a name that is not UTF-8")
    os.setxattr(work / "file", "user.empty", b"")
    (work / "read-only").write_bytes(b"content")
    os.setxattr(work / "read-only", "user.plain", b"value")
    (work / "read-only").chmod(0o444)
    (work / "directory").mkdir()
    os.setxattr(work / "directory", "user.of", b"a directory")


def nested_git_repositories(work: Path) -> None:
    for place in (work, work / "vendor" / "lib"):
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "-q", place], check=True)
        (place / "tracked.txt").write_text("tracked\n")
        subprocess.run(["git", "-C", place, "add", "tracked.txt"], check=True)
        (place / ".gitignore").write_text("*.secret\n")
        (place / "untracked.txt").write_text("untracked\n")
        (place / "ignored.secret").write_text("ignored by git\n")


TREES: list[Callable[[Path], None]] = [
    ordinary_files,
    empty_files,
    empty_directories,
    modes,
    times,
    symlinks,
    hard_links,
    strange_names,
    long_names,
    long_paths,
    deep_directories,
    sparse_files,
    many_files,
    files_around_the_chunk_sizes,
    extended_attributes,
    nested_git_repositories,
]


@pytest.mark.parametrize("make", TREES, ids=lambda make: make.__name__)
def test_everything_comes_back_exactly(
    session: Session, store: Store, work: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(work)
    then = picture(work)
    made = session.checkpoint()
    assert picture(work) == then, "a capture changes nothing"
    again = session.checkpoint()
    assert again.workspace == made.workspace
    afresh = store.session("another", workspace=work).checkpoint()
    assert afresh.workspace == made.workspace
    assert made.coverage == afresh.coverage
    assert_counts(made, then)
    wipe(work)
    done = session.restore(made)
    assert done.problems == ()
    assert picture(work) == then
    # Copied with its bytes elsewhere, too.
    assert session.files.copy(made, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == then
    assert store.verify().ok


def assert_counts(made: Checkpoint, then: Picture) -> None:
    assert made.coverage is not None
    kinds = [seen.kind for seen in then.values()]
    assert made.coverage.left_out == []
    assert made.coverage.files == kinds.count("file") + kinds.count("symlink")
    assert made.coverage.directories == kinds.count("directory")
    assert made.coverage.bytes == sum(seen.size for seen in then.values() if seen.kind == "file")


def test_the_content_of_every_name_can_be_read(session: Session, work: Path) -> None:
    strange_names(work)
    made = session.checkpoint()
    for number, name in enumerate(NAMES):
        assert session.files.read(made, os.fsdecode(name)) == b"%d" % number


def test_the_counts_follow_every_change(session: Session, work: Path) -> None:
    ordinary_files(work)
    session.checkpoint()
    (work / "crlf.txt").write_bytes(b"longer than it was before")
    (work / "new").write_bytes(b"new")
    (work / "src" / "app.py").unlink()
    (work / "no-newline").unlink()
    (work / "no-newline").mkdir()
    (work / "no-newline" / "in").write_bytes(b"1234")
    assert_counts(session.checkpoint(), picture(work))
    shutil.rmtree(work / "src")
    (work / "src").write_bytes(b"a file now")
    assert_counts(session.checkpoint(), picture(work))
    wipe(work)
    assert_counts(session.checkpoint(), picture(work))


def test_where_a_checkpoint_was_captured_is_in_its_coverage(session: Session, work: Path) -> None:
    coverage = session.checkpoint().coverage
    assert coverage is not None
    assert coverage.root == str(work)


def test_a_workspace_whose_own_path_is_not_utf_8(tmp_path: Path, store: Store) -> None:
    work = Path(os.fsdecode(os.fsencode(tmp_path) + b"/w\xff"))
    work.mkdir()
    (work / "file").write_bytes(b"1")
    session = store.session("run", workspace=work)
    made = session.checkpoint()
    (work / "file").write_bytes(b"2")
    session.restore(made)
    assert (work / "file").read_bytes() == b"1"
    session.close()
    assert store.session("run", workspace=work).checkpoint().workspace == made.workspace


@pytest.mark.skipif(sys.platform != "linux", reason="measured as Linux counts it")
def test_a_large_file_is_captured_and_restored_in_little_memory(tmp_path: Path) -> None:
    code = """
        import os, re, sys
        import mulligan

        def peak():
            return re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]

        def make(megabytes):
            with open(place + "/work/large", "wb") as file:
                for _ in range(megabytes):
                    file.write(os.urandom(1 << 20))

        def there_and_back():
            made = session.checkpoint()
            os.rename(place + "/work/large", place + "/kept")
            session.restore(made)

        place = sys.argv[1]
        os.mkdir(place + "/work")
        with mulligan.open(place + "/store") as store:
            session = store.session("run", workspace=place + "/work")
            make(30)
            there_and_back()  # so that everything is loaded and all buffers are there
            before = peak()
            make(60)
            there_and_back()
            print(before, peak())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    small, large = (int(number) >> 10 for number in done.stdout.split())
    assert large - small < 25, f"{small} MB for 30 MB, {large} MB for 60 MB"
    kept, back = (tmp_path / "kept").read_bytes(), (tmp_path / "work" / "large").read_bytes()
    assert kept == back


def test_a_small_change_in_a_large_file_costs_a_small_part_of_it(
    session: Session, work: Path
) -> None:
    large = work / "large"
    large.write_bytes(os.urandom(12 << 20))
    session.checkpoint()
    with large.open("r+b") as file:
        file.seek(6 << 20)
        file.write(os.urandom(1024))
    assert session.checkpoint().cost.bytes <= 2 * file_reader.CHUNK_MAX + 65_536


# --- what cannot be captured is named --------------------------------------------------------


def test_sockets_fifos_and_devices_are_named_and_left_alone(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)  # a socket's path must be short
    os.mkfifo("fifo")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket")
    listening.close()
    expected = {"fifo": "it is a FIFO", "socket": "it is a socket"}
    try:
        os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        expected["device"] = "it is a device"
    except PermissionError:
        pass
    (work / "file").write_bytes(b"1")
    made = session.checkpoint()
    assert left_out(made) == expected
    assert made.coverage is not None
    assert (made.coverage.files, made.coverage.directories) == (1, 1)
    (work / "file").write_bytes(b"2")
    before = picture(work)
    done = session.restore(made)
    assert done.problems == ()
    kept = {os.fsencode(name) for name in expected}
    after = picture(work)
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_a_fifo_among_the_rules_makes_nobody_wait(session: Session, work: Path) -> None:
    os.mkfifo(work / ".mulliganignore")
    (work / "file").write_bytes(b"1")
    assert left_out(session.checkpoint()) == {".mulliganignore": "it is a FIFO"}


@contextmanager
def longer_than_paths_can_be(work: Path) -> Iterator[int]:
    """Make a file that no absolute path can open; it takes small steps to get there."""
    handle = os.open(work, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("n" * 250, dir_fd=handle)
        inner = os.open("n" * 250, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    try:
        with open("far", "wb", opener=lambda name, f: os.open(name, f, dir_fd=handle)) as file:
            file.write(b"far away")
        yield handle
    finally:
        os.close(handle)
        subprocess.run(["rm", "-rf", work / ("n" * 250)], check=True)


def test_paths_beyond_the_systems_limit_are_named_and_stay(session: Session, work: Path) -> None:
    (work / "near").write_bytes(b"1")
    empty = session.checkpoint()
    with longer_than_paths_can_be(work) as handle:
        made = session.checkpoint()
        [(path, rule)] = left_out(made).items()
        assert rule == "it cannot be read: File name too long"
        assert path.startswith("n" * 250 + "/n")
        session.restore(empty)
        assert os.stat("far", dir_fd=handle).st_size == 8
        session.undo()
        assert os.stat("far", dir_fd=handle).st_size == 8


def test_directories_deeper_than_trees_go_are_named_and_stay(session: Session, work: Path) -> None:
    handle = os.open(work, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    made = session.checkpoint()
    [(path, rule)] = left_out(made).items()
    assert path == "/".join("d" * 201)
    assert rule == "it cannot be read: it lies more than 200 directories deep"
    (work / "file").touch()
    assert session.restore(made).problems == ()
    assert (work / "/".join("d" * 202)).is_dir()
    subprocess.run(["rm", "-rf", work / "d"], check=True)


def test_what_may_not_be_read_is_named_and_the_checkpoint_completes() -> None:
    with place_of_nobody() as place:

        def body() -> None:
            work = place / "work"
            (work / "closed").mkdir(parents=True)
            (work / "closed" / "in").write_bytes(b"unseen")
            (work / "secret").write_bytes(b"unseen")
            (work / "open").write_bytes(b"seen")
            (work / "secret").chmod(0)
            (work / "closed").chmod(0)
            with mulligan.open(place / "store") as store:
                session = store.session("run", workspace=work)
                made = session.checkpoint()
                denied = "it cannot be read: Permission denied"
                assert left_out(made) == {"secret": denied, "closed": denied}
                assert made.coverage is not None
                assert made.coverage.changing == []
                assert session.files.read(made, "open") == b"seen"
                # It is looked at again as soon as it can be read, with nothing else changed.
                (work / "secret").chmod(0o600)
                (work / "closed").chmod(0o700)
                made = session.checkpoint()
                assert left_out(made) == {}
                assert session.files.read(made, "closed/in") == b"unseen"
                (work / "secret").chmod(0)
                assert left_out(session.checkpoint()) == {"secret": denied}

        as_nobody(body)


def test_unreadable_rules_are_as_none(session: Session, work: Path) -> None:
    (work / ".mulliganignore").mkdir()
    (work / "file.log").touch()
    assert left_out(session.checkpoint()) == {}
    (work / ".mulliganignore").rmdir()
    os.symlink(".mulliganignore", work / ".mulliganignore")
    assert left_out(session.checkpoint()) == {}


# --- files that change while they are read ---------------------------------------------------


class Meddler:
    """Does something to a file right after each reading of it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, file: Path, act: Callable[[], None], times: int
    ) -> None:
        self.left = times
        self._inode = file.stat().st_ino
        self._act = act
        self._read = os.pread
        monkeypatch.setattr(file_reader.os, "pread", self)

    def __call__(self, handle: int, size: int, at: int) -> bytes:
        data = self._read(handle, size, at)
        if self.left and os.fstat(handle).st_ino == self._inode:
            self.left -= 1
            self._act()
        return data


def test_a_file_that_grows_while_it_is_read_is_captured_as_it_was_at_first(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = work / "log"
    file.write_bytes(b"first\n")

    def append() -> None:
        with file.open("ab") as stream:
            stream.write(b"more\n")

    meddler = Meddler(monkeypatch, file, append, times=1000)
    for _ in range(3):
        before = file.read_bytes()
        made = session.checkpoint()
        assert (left_out(made), changing(made)) == ({}, {})
        assert session.files.read(made, "log") == before
    meddler.left = 0
    assert session.files.read(session.checkpoint(), "log") == file.read_bytes()


def test_a_file_replaced_by_a_longer_one_while_it_is_read_is_not_cut(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = work / "document"
    file.write_bytes(b"[1]")
    Meddler(monkeypatch, file, lambda: file.write_bytes(b"[1, 2, 3]") and None, times=1)
    made = session.checkpoint()
    assert session.files.read(made, "document") == b"[1, 2, 3]"
    assert changing(made) == {}


def test_a_file_cut_short_while_it_is_read_is_read_again(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = work / "log"
    file.write_bytes(b"to be rotated")
    Meddler(monkeypatch, file, lambda: os.truncate(file, 2), times=1)
    made = session.checkpoint()
    assert session.files.read(made, "log") == b"to"
    assert changing(made) == {}


def test_a_file_rewritten_at_its_size_while_it_is_read_is_read_again(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = work / "data"
    file.write_bytes(b"old!")
    os.utime(file, ns=(1, 1))
    Meddler(monkeypatch, file, lambda: file.write_bytes(b"new!") and None, times=1)
    made = session.checkpoint()
    assert session.files.read(made, "data") == b"new!"


@pytest.mark.parametrize("size", [100, file_reader.SINGLE_CHUNK_BYTES + 1], ids=["small", "large"])
def test_a_file_that_never_rests_is_captured_and_named_as_torn(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    file = work / "database"
    file.write_bytes(b"0" * size)
    (work / "quiet").write_bytes(b"y")
    numbers = iter(range(1, 1000))

    def rewrite() -> None:
        with file.open("r+b") as stream:
            stream.write(b"%03d" % next(numbers))

    meddler = Meddler(monkeypatch, file, rewrite, times=900)
    torn = made = session.checkpoint()
    assert left_out(made) == {}
    assert changing(made) == {"database": "it kept changing while it was read"}
    assert made.coverage is not None
    assert [found.torn for found in made.coverage.changing] == [True]
    assert len(session.files.read(made, "database")) == size
    meddler.left = 0
    then = picture(work)
    made = session.checkpoint()
    assert (left_out(made), changing(made)) == ({}, {})
    # It is like any other file in a restore, and so is the torn one.
    file.write_bytes(b"lost")
    session.restore(made)
    assert picture(work) == then
    session.restore(torn)
    assert file.read_bytes() == session.files.read(torn, "database")


def test_what_was_torn_is_read_again_even_if_nothing_shows(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = work / "database"
    file.write_bytes(b"0" * 100)
    numbers = iter(range(1, 1000))

    def rewrite() -> None:
        with file.open("r+b") as stream:
            stream.write(b"%03d" % next(numbers))
        os.utime(file, ns=(1, 1))

    meddler = Meddler(monkeypatch, file, rewrite, times=900)
    assert changing(session.checkpoint()) != {}
    meddler.left = 0
    counted = Counted(monkeypatch)
    made = session.checkpoint()
    assert counted.drain() == [b"database"]
    assert session.files.read(made, "database") == file.read_bytes()
    session.close()


def test_a_file_that_goes_while_it_is_read_is_captured_as_read_or_not_at_all(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = work / "short-lived"
    file.write_bytes(b"content")
    Meddler(monkeypatch, file, file.unlink, times=1)
    session.checkpoint()
    made = session.checkpoint()
    assert made.coverage is not None
    assert (made.coverage.files, made.coverage.left_out) == (0, [])


SWAPS: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
    "a symlink": lambda path: path.symlink_to("/etc/passwd"),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("what", SWAPS)
def test_a_file_replaced_between_scan_and_read_leads_nowhere_else(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    file = work / "file"
    file.write_bytes(b"content")
    (work / "other").write_bytes(b"other")
    real = file_reader.read_leaf

    def swapped(directory: int, name: bytes, *rest: object) -> object:
        if name == b"file" and file.is_file() and not file.is_symlink():
            file.unlink()
            SWAPS[what](file)
        return real(directory, name, *rest)

    monkeypatch.setattr("mulligan.workspace.capture.capture.read_leaf", swapped)
    session.checkpoint()
    # Whatever the hurried look made of it, the next one sees what is there.
    made = session.checkpoint()
    back = work.with_name("copy")
    session.files.copy(made, back)
    expected = picture(work)
    if what == "a FIFO":
        assert left_out(made) == {"file": "it is a FIFO"}
        del expected[b"file"]
    else:
        assert left_out(made) == {}
    assert picture(back) == expected


# --- nothing is trusted that cannot be -------------------------------------------------------


def test_a_file_rewritten_at_its_size_and_time_is_noticed(session: Session, work: Path) -> None:
    file = work / "file"
    for number in range(30):
        file.write_bytes(b"%06d" % number)
        os.utime(file, ns=(1, 1_700_000_000_000_000_000))
        made = session.checkpoint()
        assert session.files.read(made, "file") == b"%06d" % number


def test_a_replaced_file_of_the_same_size_and_time_is_noticed(session: Session, work: Path) -> None:
    file, other = work / "file", work.with_name("other")
    for number in range(30):
        other.write_bytes(b"%06d" % number)
        os.utime(other, ns=(1, 1_700_000_000_000_000_000))
        other.replace(file)
        made = session.checkpoint()
        assert session.files.read(made, "file") == b"%06d" % number


def test_files_that_come_and_go_within_a_moment_are_noticed(session: Session, work: Path) -> None:
    (work / "sub").mkdir()
    session.checkpoint()
    for number in range(30):
        (work / "sub" / str(number)).touch()
        (work / "sub" / str(number - 1)).unlink(missing_ok=True)
        os.utime(work / "sub", ns=(1, 1))
        session.checkpoint()
        added = [c.path for c in session.diff("@latest~1", "@latest").files if c.change == "added"]
        assert added == [f"sub/{number}"]


class Counted:
    """Counts which files a capture reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[bytes] = []
        self._real = file_reader.read_leaf
        monkeypatch.setattr("mulligan.workspace.capture.capture.read_leaf", self)

    def __call__(self, directory: int, name: bytes, *rest: object) -> object:
        self.names.append(name)
        return self._real(directory, name, *rest)

    def drain(self) -> list[bytes]:
        names, self.names = self.names, []
        return sorted(names)


def test_what_changed_within_the_clocks_grain_of_a_capture_is_read_again(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks of filesystems stand still for some milliseconds; here it is ours that is set."""
    (work / "file").write_bytes(b"1")
    changed = datetime.fromtimestamp(os.lstat(work / "file").st_ctime_ns / 1e9, UTC)
    clock = FakeClock(changed + timedelta(milliseconds=5))
    with open_store(tmp_path / "store", clock=clock) as store:
        session = store.session("run", workspace=work)
        counted = Counted(monkeypatch)
        for milliseconds in (5, 15, 1000):
            clock.set(changed + timedelta(milliseconds=milliseconds))
            session.checkpoint()
            assert counted.drain() == [b"file"]
        session.checkpoint()
        assert counted.drain() == []
        clock.set(changed - timedelta(hours=1))  # put back, it makes no file trustworthy
        session.checkpoint()
        session.checkpoint()
        assert counted.drain() == [b"file"]


def test_a_clock_that_counts_seconds_is_trusted_later(work: Path) -> None:
    second = 1_000_000_000
    for ctime, grain in (
        (5 * second, COARSE_TIMESTAMP_GRAIN_NS),
        (5 * second + 1, TIMESTAMP_GRAIN_NS),
    ):
        directory = SeenDirectory(1, ctime, ctime, 0o40755, {}, {}, {})
        other = SeenDirectory(2, 7 * second, 7 * second, 0o40755, {}, {}, {})
        index = Index(
            VERSION,
            "",
            "",
            100 * second,
            Digest(b""),
            {b"": directory, b"a": other},
            0,
            0,
            {},
            Edits(Digest(b"")),
        )
        assert index.fresh_from == 100 * second - grain


def test_mode_and_attributes_alone_are_noticed(session: Session, work: Path) -> None:
    file = work / "file"
    file.write_bytes(b"1")
    session.checkpoint()
    file.chmod(0o755)
    [change] = session.diff("@latest").files
    assert (change.path, change.change, change.mode) == ("file", "attributes", 0o755)
    if has_xattrs(work):
        one = session.checkpoint()
        os.setxattr(work, "user.here", b"on the root itself")
        assert session.checkpoint().workspace != one.workspace


# --- a long list of what is left out -----------------------------------------------------------


def many_ignored(work: Path, count: int = 400) -> None:
    for number in range(count):
        (work / f"package-{number:04}" / "__pycache__").mkdir(parents=True, exist_ok=True)
    (work / "file").write_bytes(b"0")


def test_a_long_list_of_what_is_left_out_is_worked_out_once_while_it_does_not_change(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step costs the same however long the list is: it is neither encoded nor read again."""
    many_ignored(work)
    session.internal.watch()
    first = session.checkpoint()
    valued, read = [], []
    value, convert = checkpointer.left_out_value, session._engine.left_out.__wrapped__
    monkeypatch.setattr(checkpointer, "left_out_value", lambda now: valued.append(1) or value(now))
    monkeypatch.setattr(
        session._engine, "left_out", lru_cache(lambda data: read.append(1) or convert(data))
    )
    for number in range(5):
        (work / "file").write_bytes(b"%d" % number)
        taken = session.checkpoint()
        assert taken.coverage is not None
        assert first.coverage is not None
        assert taken.coverage.left_out == first.coverage.left_out
        assert len(taken.coverage.left_out) == 400
    assert (len(valued), len(read)) == (0, 1)
    assert taken.cost.bytes < 4096
    (work / "more" / "__pycache__").mkdir(parents=True)
    assert left_out(session.checkpoint())["more/__pycache__"]
    shutil.rmtree(work / "package-0007")
    assert set(left_out(session.checkpoint())) == set(left_out(first)) - {
        "package-0007/__pycache__"
    } | {"more/__pycache__"}
    assert len(valued) == 2


def test_what_is_left_out_is_stored_as_any_value_is(session: Session, work: Path) -> None:
    """Sharing the list changes no byte of a checkpoint: earlier versions read it."""
    for count in (3, 90, 400):
        many_ignored(work, count)
        taken = session.checkpoint()
        with session._engine.read() as view:
            event = next(iter(view.events(session._record.number, taken.seq, taken.seq)))
        expected = freeze(msgspec.to_builtins(taken.coverage))
        assert codec.encode(event.payload["coverage"]) == settle(expected, codec.value_digest)


def test_a_list_of_what_is_left_out_that_was_not_committed_is_put_again(
    tmp_path: Path, work: Path
) -> None:
    many_ignored(work)
    failing = fail_at(Failpoint.JOURNAL_APPENDED, OSError(errno.EIO, "no"), nth=2)
    with open_store(tmp_path / "store", failpoint=failing) as store:
        session = store.session("run", workspace=work)
        with pytest.raises(OSError, match="no"):
            session.checkpoint()
        taken = session.checkpoint()
        assert taken.coverage is not None
        assert len(taken.coverage.left_out) == 400
        assert store.verify(full=True).ok


# --- the saved index -------------------------------------------------------------------------


def index_files(store: Store) -> list[Path]:
    assert store.path is not None
    return list((Path(store.path) / "tmp").glob("index-*"))


def test_a_saved_index_spares_the_next_process_the_reading(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary_files(work)
    age(work)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        session.close()
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        (work / "crlf.txt").write_bytes(b"changed")
        counted = Counted(monkeypatch)
        again = session.checkpoint()
        assert counted.drain() == [b"crlf.txt"]
        assert again.workspace != made.workspace
        assert_counts(again, picture(work))


def age(work: Path) -> None:
    """Let the clock move past the moment within which no time can be trusted."""
    newest = max(os.lstat(path).st_ctime_ns for path in [work, *work.rglob("*")])
    probe = work.with_name("clock")
    while not probe.exists() or os.lstat(probe).st_ctime_ns < newest + 50_000_000:
        probe.write_bytes(b"x")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"garbage",
        lambda data: data[: len(data) // 2],
        lambda data: data + b"more",
    ],
    ids=["empty", "garbage", "cut", "longer"],
)
def test_a_saved_index_that_cannot_be_used_is_ignored(
    tmp_path: Path, work: Path, spoil: Callable[[bytes], bytes]
) -> None:
    ordinary_files(work)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        session.close()
        [index] = index_files(store)
        index.write_bytes(spoil(index.read_bytes()))
    with mulligan.open(tmp_path / "store") as store:
        again = store.session("run", workspace=work).checkpoint()
        assert again.workspace == made.workspace
        assert store.verify().ok


@pytest.mark.parametrize("boot", ["another", None], ids=["another boot", "none known"])
def test_an_index_from_before_a_reboot_is_not_trusted(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, boot: str | None
) -> None:
    """A power cut may take a file's bytes and leave its times."""
    ordinary_files(work)
    age(work)
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("one\n")
    monkeypatch.setattr("mulligan.workspace.capture.index.BOOT_ID", boot_id)
    counted = Counted(monkeypatch)
    for changes_boot in (False, False, True):
        if changes_boot:
            boot_id.unlink()
        if changes_boot and boot:
            boot_id.write_text(boot)
        with mulligan.open(tmp_path / "store") as store:
            session = store.session("run", workspace=work)
            session.checkpoint()
            session.close()
            reads = counted.drain()
    assert b"crlf.txt" in reads


def test_an_index_that_cannot_be_saved_is_done_without(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ordinary_files(work)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        monkeypatch.setattr(Path, "replace", refuse)
        session.close()
        assert index_files(store) == []


def test_a_time_beyond_all_clocks_is_kept(session: Session, work: Path) -> None:
    far = 2**63 + 5 * 10**8
    (work / "file").write_bytes(b"1")
    os.utime(work / "file", ns=(far, far))
    if os.lstat(work / "file").st_mtime_ns != far:
        pytest.skip("this filesystem keeps no such times")
    made = session.checkpoint()
    assert session.checkpoint().workspace == made.workspace
    (work / "file").write_bytes(b"22")
    os.utime(work / "file", ns=(far, far))
    assert session.checkpoint().workspace != made.workspace
    assert session.restore(made).problems == ()
    assert ((work / "file").read_bytes(), os.lstat(work / "file").st_mtime_ns) == (b"1", far)


# --- nodes that are kept ---------------------------------------------------------------------


def test_a_directory_that_is_kept_as_a_node_is_stored_as_if_made_anew(
    tmp_path: Path, work: Path
) -> None:
    """Names come and go, and the directory becomes a large one and a small one again."""
    source = random.Random(7)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        for round_number in range(60):
            for _ in range(source.randrange(1, 30)):
                shake(work, source, grow=round_number // 15 % 2 == 0)
            made = session.checkpoint()
            anew = store.session(f"run-{round_number}", workspace=work).checkpoint()
            load = session._engine.load
            assert plain_tree(load, anew.workspace) == plain_tree(load, made.workspace)


def shake(work: Path, source: random.Random, *, grow: bool) -> None:
    """Write a file, or a file in a directory, or remove either."""
    path = work / f"name-{source.randrange(150)}"
    if path.is_dir():
        if grow and source.random() < 0.8:
            (path / "inner").write_bytes(source.randbytes(4))
        else:
            shutil.rmtree(path)
    elif grow or not path.exists():
        if path.exists() or source.random() < 0.8:
            path.write_bytes(source.randbytes(4))
        else:
            path.mkdir()
    else:
        path.unlink()


def test_an_index_of_a_tree_that_the_store_has_not_is_ignored(tmp_path: Path, work: Path) -> None:
    ordinary_files(work)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.checkpoint()
        session.close()
        [index] = index_files(store)
        saved = index.read_bytes()
    with mulligan.open(tmp_path / "other") as store:
        assert store.path is not None
        (Path(store.path) / "tmp" / index.name).write_bytes(saved)
        made = store.session("run", workspace=work).checkpoint()
        assert store.verify().ok
        wipe(work)
        assert store.session("run", workspace=work).restore(made).problems == ()
        assert (work / "src" / "app.py").read_bytes() == b"print(1)\n"


def test_a_moved_workspace_is_found_as_it_is(tmp_path: Path, work: Path) -> None:
    ordinary_files(work)
    with mulligan.open(work) as store:  # the store moves along
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        session.close()
    then = picture(work)
    work.rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    with mulligan.open(moved) as store:
        session = store.session("run", workspace=moved)
        assert session.diff(made).files == ()
        shutil.rmtree(moved / "src")
        assert session.restore(made).problems == ()
    assert picture(moved) == then


def test_a_checkpoint_that_fails_does_not_spoil_the_next(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary_files(work)
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        with monkeypatch.context() as patch:
            patch.setattr(type(session._engine.journal), "write", broken)
            with pytest.raises(RuntimeError):
                session.checkpoint()
        made = session.checkpoint()
        assert store.verify().problems == ()
        wipe(work)
        session.restore(made)
        assert (work / "src" / "app.py").read_bytes() == b"print(1)\n"


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("no journal today")


# --- what must not be a workspace ------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    (place / "project" / "sub").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(place))
    return place


@pytest.mark.parametrize(
    ("directory", "reason"),
    [
        ("/", "the root of the filesystem"),
        ("{home}", "the home directory"),
        ("{home}/../home/.", "the home directory"),
        ("{home}/link-to-home", "the home directory"),
        ("{store}/..", "holds more than the directory of the store"),
    ],
)
def test_a_directory_that_holds_far_more_than_a_project_is_refused(
    home: Path, directory: str, reason: str
) -> None:
    (home / "link-to-home").symlink_to(home)
    place = home / "project" / "sub"
    with mulligan.open(place) as store:
        root = directory.format(home=home, store=place)
        with pytest.raises(UnsafeWorkspace, match=reason) as refused:
            store.session("run", workspace=root)
        assert "force" in refused.value.hint
        session = store.session("run", workspace=root, force=True)
        assert session.head.seq == 1, "forced, it is taken; nothing is captured until asked"


@pytest.mark.parametrize("force", [False, True])
def test_the_store_itself_is_no_workspace(home: Path, force: bool) -> None:
    with mulligan.open(home / "project") as store:
        for place in (".mulligan", ".mulligan/packs"):
            with pytest.raises(UnsafeWorkspace, match="belongs to the store"):
                store.session("run", workspace=home / "project" / place, force=force)


def test_the_directory_beside_the_store_and_those_below_are_taken(home: Path) -> None:
    with mulligan.open(home / "project") as store:
        assert store.session("one", workspace=home / "project").checkpoint().workspace
        assert store.session("two", workspace=home / "project" / "sub").checkpoint().workspace


def test_a_workspace_must_be_a_directory_that_exists(home: Path) -> None:
    (home / "file").touch()
    with mulligan.open(home / "project") as store:
        with pytest.raises(UnsafeWorkspace, match="not a directory"):
            store.session("run", workspace=home / "file")
        with pytest.raises((UnsafeWorkspace, FileNotFoundError)):
            store.session("run", workspace=home / "missing")
