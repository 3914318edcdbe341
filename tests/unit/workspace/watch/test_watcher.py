"""The watcher: nothing that happens in a workspace is missed, and nothing is told wrongly."""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mulligan.model import ObjectKind
from mulligan.objects.memory import MemoryObjects
from mulligan.workspace.capture.capture import Capture, Captured, CaptureLimits
from mulligan.workspace.capture.ignore import FILE_NAME, Rules
from mulligan.workspace.capture.scan import Scan
from mulligan.workspace.watch import mounts
from mulligan.workspace.watch.hardlinks import HardLinks
from mulligan.workspace.watch.inotify import Inotify
from mulligan.workspace.watch.mounts import Mounts
from mulligan.workspace.watch.watcher import Drained, Watcher, available
from tests.trees import plain_tree

pytestmark = pytest.mark.skipif(not available(), reason="there is no inotify here")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "above" / "root"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "docs").mkdir()
    for name in ("top", "src/app.py", "src/deep/one", "docs/page"):
        (root / name).write_text(name)
    return root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    (outside / "came").mkdir(parents=True)
    (outside / "came" / "file").write_text("from outside")
    return outside


Start = Callable[..., Watcher]


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    started = []

    def begin(place: Path = root) -> Watcher:
        watcher = Watcher(os.fsencode(place), Rules.read(place))
        watcher.start()
        started.append(watcher)
        return watcher

    yield begin
    for watcher in started:
        watcher.close()


@pytest.fixture
def watcher(start: Start) -> Watcher:
    watcher = start()
    assert watcher.reason is None
    return watcher


class Follower:
    """Captures a workspace by the watcher's word, to be compared with a full scan."""

    def __init__(self, root: Path, watcher: Watcher) -> None:
        self.root = root
        self.watcher = watcher
        self.objects = MemoryObjects()
        self.captured = self.full()

    def full(self) -> Captured:
        changes = Scan(os.fsencode(self.root), None, Rules.read(self.root)).everything()
        return self._capture(None, changes, time.time_ns())

    def step(self, meanwhile: Callable[[], object] = lambda: None) -> Captured:
        """Capture what was drained, with something that happens just after the drain."""
        taken = time.time_ns()
        drained = told(self.watcher)
        meanwhile()
        scan = Scan(os.fsencode(self.root), self.captured.index, Rules.read(self.root))
        changes = scan.paths(drained.paths, drained.renewed)
        self.captured = self._capture(self.captured.index, changes, taken)
        return self.captured

    def settle(self) -> None:
        """Let everything so far be long ago, so that a scan trusts the times of directories."""
        self.captured.index.taken += 10**10

    def assert_same(self) -> None:
        followed, full = self.step(), self.full()
        assert followed.coverage == full.coverage
        assert self.tree(followed) == self.tree(full)

    def tree(self, captured: Captured) -> dict[str, Any]:
        return plain_tree(lambda digest: self.objects.get(ObjectKind.VALUE, digest), captured.tree)

    def _capture(self, index, changes, taken: int) -> Captured:  # type: ignore[no-untyped-def]
        bundle = self.objects.bundle()
        capture = Capture(self.root, bundle, index, CaptureLimits())
        captured = capture.run(changes, Rules.read(self.root), taken)
        bundle.flush()
        self.watcher.follow(capture.linked)
        return captured


@pytest.fixture
def follower(root: Path, watcher: Watcher) -> Follower:
    return Follower(root, watcher)


def told(watcher: Watcher) -> Drained:
    drained = watcher.drain()
    assert drained is not None, watcher.reason
    return drained


def watches() -> int:
    """Return how many watches this process has in the kernel."""
    found = 0
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            found += Path("/proc/self/fdinfo", name).read_text().count("inotify wd:")
        except FileNotFoundError:
            continue
    return found


# --- files -----------------------------------------------------------------------------------


def test_one_that_is_dropped_releases_what_it_had_open(root: Path) -> None:
    """A user has 128 queues; a program that forgets to close a session must not use them up."""
    gc.collect()  # what other tests dropped
    before = watching()
    watcher = Watcher(os.fsencode(root), Rules.read(root))
    watcher.start()
    watcher.follow({b"top": os.lstat(root / "top").st_ctime_ns})
    assert len(watching()) == len(before) + 3
    del watcher
    gc.collect()
    assert watching() == before


def watching() -> set[str]:
    """Return the handles of this process for events and for the table of mounts."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of this listing
            place = os.readlink(f"/proc/self/fd/{entry}")
            if place.endswith(("inotify", "/mountinfo")):
                found.add(entry)
    return found


def test_nothing_happened(watcher: Watcher) -> None:
    assert told(watcher) == Drained(set(), set())


def test_each_change_is_told_once(watcher: Watcher, root: Path) -> None:
    (root / "top").write_text("new")
    assert told(watcher) == Drained({b"top"}, set())
    assert told(watcher) == Drained(set(), set())


def test_a_file_still_open_for_writing(watcher: Watcher, root: Path) -> None:
    with (root / "src/app.py").open("ab", buffering=0) as stream:
        stream.write(b"more")
        assert told(watcher).paths == {b"src/app.py"}
        stream.write(b"and more")
        assert told(watcher).paths == {b"src/app.py"}


def test_a_new_file_and_its_directory(watcher: Watcher, root: Path) -> None:
    (root / "src/new").touch()
    assert told(watcher) == Drained({b"src", b"src/new"}, set())


def test_a_deleted_file_and_its_directory(watcher: Watcher, root: Path) -> None:
    (root / "src/app.py").unlink()
    assert told(watcher) == Drained({b"src", b"src/app.py"}, set())


def test_a_file_renamed_over_another(watcher: Watcher, root: Path) -> None:
    (root / "src/app.py").rename(root / "docs/page")
    assert told(watcher).paths == {b"src", b"src/app.py", b"docs", b"docs/page"}


def test_a_file_written_after_it_was_renamed(watcher: Watcher, root: Path) -> None:
    with (root / "src/app.py").open("ab", buffering=0) as stream:
        (root / "src/app.py").rename(root / "docs/moved")
        told(watcher)
        stream.write(b"late")
        assert told(watcher).paths == {b"docs/moved"}


def test_a_file_written_after_its_directory_was_moved(watcher: Watcher, root: Path) -> None:
    with (root / "src/deep/one").open("ab", buffering=0) as stream:
        (root / "src").rename(root / "lib")
        told(watcher)
        stream.write(b"late")
        assert told(watcher).paths == {b"lib/deep/one"}


def test_a_file_deleted_while_open_says_nothing_more(watcher: Watcher, root: Path) -> None:
    with (root / "top").open("ab", buffering=0) as stream:
        (root / "top").unlink()
        assert told(watcher).paths == {b"", b"top"}
        stream.write(b"unseen")
        assert told(watcher).paths == set()


def test_a_file_replaced_while_the_old_one_is_written(watcher: Watcher, root: Path) -> None:
    with (root / "top").open("ab", buffering=0) as stream:
        (root / "draft").write_text("new")
        (root / "draft").rename(root / "top")
        told(watcher)
        stream.write(b"to the old one")
        assert told(watcher).paths == set()


def test_a_mapping_is_told_when_it_ends(watcher: Watcher, root: Path) -> None:
    with (root / "top").open("r+b") as stream:
        mapping = mmap.mmap(stream.fileno(), 0)
    told(watcher)
    mapping[0:1] = b"M"
    mapping.close()
    assert told(watcher).paths == {b"top"}


def test_modes_times_and_attributes_of_a_file(watcher: Watcher, root: Path) -> None:
    for change in (
        lambda path: path.chmod(0o700),
        lambda path: os.utime(path, ns=(1, 1)),
        lambda path: os.setxattr(path, "user.test", b"x"),
        lambda path: os.chown(path, os.getuid(), os.getgid()),
        lambda path: os.truncate(path, 1),
    ):
        change(root / "src/app.py")
        assert told(watcher).paths == {b"src/app.py"}


def test_modes_and_times_of_directories(watcher: Watcher, root: Path) -> None:
    (root / "src/deep").chmod(0o700)
    os.utime(root, ns=(1, 1))
    assert told(watcher) == Drained({b"src/deep", b""}, set())


def test_names_that_are_not_text(watcher: Watcher, root: Path) -> None:
    name = b"new\nline\xff"
    Path(os.fsdecode(os.fsencode(root) + b"/" + name)).touch()
    assert told(watcher).paths == {b"", name}


def test_a_symlink_and_its_times(watcher: Watcher, root: Path) -> None:
    (root / "link").symlink_to("nowhere")
    assert told(watcher).paths == {b"", b"link"}
    os.utime(root / "link", ns=(1, 1), follow_symlinks=False)
    assert told(watcher).paths == {b"link"}


def test_changes_by_another_process(watcher: Watcher, root: Path) -> None:
    subprocess.run(["sh", "-c", "echo x > src/shell; rm docs/page"], cwd=root, check=True)
    assert told(watcher).paths == {b"src", b"src/shell", b"docs", b"docs/page"}


# --- files with several names ----------------------------------------------------------------


def test_a_write_through_another_name(follower: Follower, root: Path) -> None:
    (root / "docs/same").hardlink_to(root / "src/app.py")
    follower.assert_same()
    (root / "docs/same").write_text("through one")
    follower.assert_same()
    (root / "src/app.py").write_text("through the other")
    follower.assert_same()


def test_a_name_made_and_written_through_before_anyone_looked(
    follower: Follower, root: Path
) -> None:
    (root / "docs/same").hardlink_to(root / "src/app.py")
    (root / "docs/same").write_text("through the new one")
    follower.assert_same()


def test_names_that_were_there_before(root: Path, start: Start) -> None:
    (root / "docs/same").hardlink_to(root / "src/app.py")
    follower = Follower(root, start())
    (root / "docs/same").write_text("through one")
    follower.assert_same()


def test_a_write_through_a_name_outside(root: Path, outside: Path, start: Start) -> None:
    (outside / "same").hardlink_to(root / "src/app.py")
    watcher = start()
    Follower(root, watcher)
    told(watcher)
    (outside / "same").write_text("from outside")
    assert told(watcher).paths == {b"src/app.py"}


def test_a_name_that_moves_with_its_directory(follower: Follower, root: Path) -> None:
    (root / "docs/same").hardlink_to(root / "src/deep/one")
    follower.assert_same()
    (root / "src").rename(root / "lib")
    follower.assert_same()
    (root / "docs/same").write_text("through the one that stayed")
    follower.assert_same()


def test_a_change_between_the_look_and_the_watch(root: Path) -> None:
    (root / "same").hardlink_to(root / "top")
    long_ago = 10**18
    links = HardLinks(os.fsencode(root))
    links.follow({b"top": long_ago})
    assert links.drain() == {b"top"}
    assert links.drain() == set()
    links.close()


def test_names_that_are_gone_are_forgotten(root: Path) -> None:
    (root / "same").hardlink_to(root / "top")
    links = HardLinks(os.fsencode(root))
    links.follow({b"top": 0, b"same": 0})
    (root / "same").rename(root / "other")
    links.follow({b"other": 0})
    links.drain()
    (root / "top").write_text("new")
    assert links.drain() == {b"top", b"other"}
    links.close()


# --- directories -----------------------------------------------------------------------------


def test_of_a_new_directory_only_its_top_is_told(watcher: Watcher, root: Path) -> None:
    (root / "new/inner").mkdir(parents=True)
    (root / "new/inner/file").touch()
    drained = told(watcher)
    assert drained.renewed == {b"new"}
    assert drained.paths == {b""}


def test_later_changes_below_a_new_directory(watcher: Watcher, root: Path) -> None:
    (root / "new/inner").mkdir(parents=True)
    told(watcher)
    (root / "new/inner/file").touch()
    (root / "new/inner/more").mkdir()
    drained = told(watcher)
    assert drained.paths == {b"new/inner", b"new/inner/file"}
    assert drained.renewed == {b"new/inner/more"}


def test_a_directory_made_while_its_parent_is_being_listed(
    watcher: Watcher, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made after the listing and before the drain returns: the next drain has it."""
    listed = os.scandir

    class Late:
        def __init__(self, path: bytes) -> None:
            self.entries = list(listed(path))
            if path.endswith(b"/new"):
                os.mkdir(path + b"/late")

        def __enter__(self) -> list[os.DirEntry[bytes]]:
            return self.entries

        def __exit__(self, *error: object) -> None:
            pass

    (root / "new").mkdir()
    monkeypatch.setattr(os, "scandir", Late)
    assert told(watcher).renewed == {b"new"}
    monkeypatch.undo()
    assert told(watcher).renewed == {b"new/late"}
    (root / "new/late/file").touch()
    assert b"new/late/file" in told(watcher).paths


def test_a_removed_directory(watcher: Watcher, root: Path) -> None:
    shutil.rmtree(root / "src")
    drained = told(watcher)
    assert b"src" in drained.renewed
    assert b"" in drained.paths
    assert told(watcher) == Drained(set(), set())


def test_a_directory_removed_and_made_again(follower: Follower, root: Path) -> None:
    shutil.rmtree(root / "src")
    (root / "src").mkdir()
    (root / "src/deep").mkdir()
    (root / "src/deep/one").write_text("another one")
    follower.assert_same()
    (root / "src/deep/two").touch()
    follower.assert_same()


def test_a_directory_removed_while_someone_is_in_it(watcher: Watcher, root: Path) -> None:
    handle = os.open(root / "src/deep", os.O_RDONLY)
    shutil.rmtree(root / "src/deep")
    (root / "src/deep").mkdir()
    assert b"src/deep" in told(watcher).renewed
    (root / "src/deep/new").touch()
    assert told(watcher).paths == {b"src/deep", b"src/deep/new"}
    os.close(handle)
    assert told(watcher) == Drained(set(), set())
    (root / "src/deep/newer").touch()
    assert told(watcher).paths == {b"src/deep", b"src/deep/newer"}


def test_a_directory_moved_within(watcher: Watcher, root: Path) -> None:
    (root / "src").rename(root / "docs/lib")
    assert told(watcher) == Drained({b"", b"docs"}, {b"src", b"docs/lib"})
    (root / "docs/lib/deep/one").write_text("new")
    (root / "docs/lib/app.py").write_text("new")
    assert told(watcher) == Drained({b"docs/lib/deep/one", b"docs/lib/app.py"}, set())


def test_a_directory_moved_within_keeps_its_watches(watcher: Watcher, root: Path) -> None:
    before = watches()
    (root / "src").rename(root / "lib")
    told(watcher)
    assert watches() == before
    assert told(watcher) == Drained(set(), set())


def test_a_change_before_and_after_a_move(follower: Follower, root: Path) -> None:
    (root / "src/deep/one").write_text("before")
    (root / "src").rename(root / "lib")
    (root / "lib/deep/two").write_text("after")
    (root / "lib").rename(root / "src2")
    (root / "src2/deep").rename(root / "deep")
    (root / "deep/three").write_text("after that")
    follower.assert_same()
    (root / "deep/one").write_text("later")
    follower.assert_same()


def test_a_directory_moved_into_a_new_one(follower: Follower, root: Path) -> None:
    (root / "new").mkdir()
    (root / "src").rename(root / "new/src")
    follower.assert_same()
    (root / "new/src/deep/one").write_text("later")
    follower.assert_same()


def test_directories_that_change_places(follower: Follower, root: Path) -> None:
    (root / "docs/deep").mkdir()
    follower.assert_same()
    (root / "src").rename(root / "aside")
    (root / "docs").rename(root / "src")
    (root / "aside").rename(root / "docs")
    follower.assert_same()
    (root / "docs/deep/one").write_text("later")
    (root / "src/deep/two").write_text("later")
    follower.assert_same()


def test_a_directory_moved_out_is_watched_no_longer(
    watcher: Watcher, root: Path, outside: Path
) -> None:
    before = watches()
    (root / "src").rename(outside / "src")
    assert told(watcher) == Drained({b""}, {b"src"})
    assert watches() == before - 2
    (outside / "src/app.py").write_text("unseen")
    (outside / "src/deep/new").touch()
    assert told(watcher) == Drained(set(), set())


def test_a_directory_moved_out_and_another_in_at_its_place(
    follower: Follower, root: Path, outside: Path
) -> None:
    (root / "src").rename(outside / "src")
    (outside / "came").rename(root / "src")
    follower.assert_same()
    (outside / "src/app.py").write_text("unseen")
    (root / "src/file").write_text("seen")
    assert told(follower.watcher).paths == {b"src/file"}


def test_a_directory_moved_in(follower: Follower, root: Path, outside: Path) -> None:
    (outside / "came").rename(root / "docs/came")
    follower.assert_same()
    (root / "docs/came/file").write_text("later")
    follower.assert_same()


def test_a_directory_renamed_over_an_empty_one(follower: Follower, root: Path) -> None:
    (root / "empty").mkdir()
    follower.assert_same()
    (root / "src").rename(root / "empty")
    follower.assert_same()
    (root / "empty/deep/one").write_text("later")
    follower.assert_same()


def test_a_symlink_that_replaces_a_directory(follower: Follower, root: Path, outside: Path) -> None:
    (root / "src").rename(outside / "src")
    (root / "src").symlink_to(outside / "src")
    follower.assert_same()
    (outside / "src/app.py").write_text("unseen")
    assert told(follower.watcher) == Drained(set(), set())
    (root / "src").unlink()
    (outside / "src").rename(root / "src")
    follower.assert_same()
    (root / "src/app.py").write_text("seen")
    follower.assert_same()


def test_a_file_and_a_directory_that_replace_each_other(follower: Follower, root: Path) -> None:
    shutil.rmtree(root / "docs")
    (root / "docs").write_text("a file")
    (root / "top").unlink()
    (root / "top/inner").mkdir(parents=True)
    follower.assert_same()
    (root / "top/inner/file").touch()
    follower.assert_same()
    shutil.rmtree(root / "top")
    follower.assert_same()


def test_a_fifo_that_replaces_a_file(follower: Follower, root: Path) -> None:
    (root / "top").unlink()
    os.mkfifo(root / "top")
    follower.assert_same()
    (root / "top").unlink()
    (root / "top").touch()
    follower.assert_same()


# --- captures amid changes -------------------------------------------------------------------


@pytest.mark.parametrize("changed", ["src/deep/one", "src/deep"])
def test_what_is_away_only_while_it_is_looked_at(
    follower: Follower, root: Path, outside: Path, changed: str
) -> None:
    """A directory above comes back, and nothing in those below it shows that it was away."""
    os.utime(root / changed, ns=(1, 1))
    follower.step(meanwhile=lambda: (root / "src").rename(outside / "src"))
    follower.settle()
    (outside / "src").rename(root / "src")
    follower.assert_same()


def test_a_file_that_is_away_only_while_it_is_read(
    follower: Follower, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "src/deep/one").write_text("new")
    run = Capture.run

    def run_while_away(self: Capture, *arguments: Any) -> Captured:
        (root / "src").rename(outside / "src")
        return run(self, *arguments)

    monkeypatch.setattr(Capture, "run", run_while_away)
    follower.step()
    monkeypatch.undo()
    follower.settle()
    (outside / "src").rename(root / "src")
    follower.assert_same()


def test_a_directory_that_is_away_only_while_its_files_are_listed(
    follower: Follower, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = os.scandir

    class Away:
        def __init__(self, handle: int) -> None:
            self.entries = list(listed(handle))
            if "file" in [entry.name for entry in self.entries]:
                (root / "new").rename(outside / "new")

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *error: object) -> None:
            pass

    (root / "new/deep").mkdir(parents=True)
    (root / "new/deep/file").touch()
    follower.step(meanwhile=lambda: monkeypatch.setattr(os, "scandir", Away))
    monkeypatch.undo()
    follower.settle()
    (outside / "new").rename(root / "new")
    follower.assert_same()


# --- rules -----------------------------------------------------------------------------------


def test_what_is_left_out_is_not_watched(root: Path, start: Start) -> None:
    (root / FILE_NAME).write_text("build/\n")
    (root / "build/deep").mkdir(parents=True)
    (root / "src/__pycache__").mkdir()
    before = watches()
    watcher = start()
    assert watches() - before == 4
    (root / "build/deep/file").touch()
    (root / "src/__pycache__/file").touch()
    assert told(watcher) == Drained(set(), set())


def test_a_directory_that_comes_under_a_rule_and_out_again(root: Path, start: Start) -> None:
    (root / FILE_NAME).write_text("build/\n")
    follower = Follower(root, start())
    (root / "src").rename(root / "build")
    follower.assert_same()
    (root / "build/deep/one").write_text("unseen")
    assert told(follower.watcher) == Drained(set(), set())
    (root / "build").rename(root / "src")
    follower.assert_same()
    (root / "src/deep/one").write_text("seen")
    follower.assert_same()


def test_changed_rules_change_everything(watcher: Watcher, root: Path) -> None:
    (root / FILE_NAME).write_text("*.log\n")
    assert watcher.drain() is None
    assert watcher.reason == ".mulliganignore was changed"


# --- not sure --------------------------------------------------------------------------------


def test_more_changes_than_the_queue_holds(watcher: Watcher, root: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 1_000_000:
        pytest.skip("the queue is too long to be filled")
    for i in range(limit // 2 + 1):
        os.utime(root / "top", ns=(i, i))  # an event like the one before it is not queued again
        os.utime(root / "src/app.py", ns=(i, i))
    assert watcher.drain() is None
    assert "queue" in str(watcher.reason)
    (root / "top").write_text("new")
    assert watcher.drain() is None


@pytest.mark.parametrize(
    ("number", "setting"), [(errno.ENOSPC, "max_user_watches"), (errno.ENOMEM, "memory")]
)
def test_no_more_watches(
    start: Start, monkeypatch: pytest.MonkeyPatch, number: int, setting: str
) -> None:
    add = Inotify.add

    def limited(self: Inotify, path: bytes, mask: int) -> int:
        if path.endswith(b"/deep"):
            raise OSError(number, os.strerror(number), path)
        return add(self, path, mask)

    monkeypatch.setattr(Inotify, "add", limited)
    before = watches()
    watcher = start()
    assert setting in str(watcher.reason)
    assert watcher.drain() is None
    assert watches() == before


def test_no_more_watches_for_a_new_directory(
    watcher: Watcher, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: Inotify, path: bytes, mask: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(Inotify, "add", none_left)
    (root / "new").mkdir()
    assert watcher.drain() is None
    assert "max_user_watches" in str(watcher.reason)


def test_no_more_watches_for_a_file_with_several_names(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: Inotify, path: bytes, mask: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(Inotify, "add", none_left)
    watcher.follow({b"top": 0})
    assert watcher.drain() is None
    assert "max_user_watches" in str(watcher.reason)


def test_no_more_queues(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: Inotify) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Inotify, "__init__", none_left)
    watcher = start()
    assert watcher.drain() is None
    assert "max_user_instances" in str(watcher.reason)


def test_the_root_is_moved(watcher: Watcher, root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    assert watcher.drain() is None
    assert "moved" in str(watcher.reason)


def test_the_root_is_moved_and_back(watcher: Watcher, root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.with_name("elsewhere").rename(root)
    assert watcher.drain() is None


def test_the_root_is_removed_and_made_again(watcher: Watcher, root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()
    assert watcher.drain() is None


def test_a_directory_above_the_root_is_replaced(watcher: Watcher, root: Path) -> None:
    root.parent.rename(root.parent.with_name("elsewhere"))
    root.mkdir(parents=True)
    assert watcher.drain() is None
    assert "replaced" in str(watcher.reason)


def test_there_is_no_root(start: Start, tmp_path: Path) -> None:
    watcher = start(tmp_path / "nowhere")
    assert watcher.reason is not None
    assert watcher.drain() is None


def test_a_root_that_is_a_symlink(start: Start, root: Path, outside: Path) -> None:
    link = outside / "link"
    link.symlink_to(root)
    watcher = start(link)
    (root / "src/app.py").write_text("new")
    assert told(watcher).paths == {b"src/app.py"}
    link.unlink()
    link.symlink_to(outside)
    assert watcher.drain() is None


def test_before_the_start_and_after_the_end(root: Path, start: Start) -> None:
    watcher = Watcher(os.fsencode(root), Rules([]))
    assert watcher.drain() is None
    watcher.start()
    assert told(watcher) == Drained(set(), set())
    watcher.close()
    watcher.close()
    assert watcher.drain() is None
    assert watcher.reason == "the watcher was closed"


def test_closing_leaves_nothing_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    watcher = Watcher(os.fsencode(root), Rules([]))
    watcher.start()
    watcher.follow({b"top": 0})
    watcher.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_process_takes_nothing_away(watcher: Watcher, root: Path) -> None:
    (root / "top").write_text("new")
    child = os.fork()
    if child == 0:
        os._exit(0 if watcher.drain() is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert told(watcher).paths == {b"top"}


def test_a_program_that_is_started_does_not_inherit_the_queue(watcher: Watcher) -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import os; print(*map(os.readlink, os.scandir('/proc/self/fd')))"],
        capture_output=True,
        text=True,
        check=False,
        close_fds=False,
    )
    assert "inotify" not in listed.stdout
    assert watcher.reason is None


# --- permissions -----------------------------------------------------------------------------


@pytest.fixture
def as_user(start: Start) -> Iterator[Path]:
    """Give a workspace of a user to whom permissions apply."""
    user = 65534 if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as place:
        if user is not None:
            os.chown(place, user, user)
            os.seteuid(user)
        root = Path(place, "root")
        (root / "closed/inner").mkdir(parents=True)
        (root / "closed/inner/file").write_text("x")
        (root / "closed/file").write_text("x")
        yield root
        (root / "closed").chmod(0o700)
        if user is not None:
            os.seteuid(0)


@pytest.mark.parametrize("mode", [0, 0o300, 0o400, 0o600])
def test_a_directory_that_is_closed_opened_and_closed_again(
    as_user: Path, start: Start, mode: int
) -> None:
    (as_user / "closed").chmod(mode)
    follower = Follower(as_user, start(as_user))
    assert [left.path for left in follower.captured.coverage.left_out] == ["closed"]
    (as_user / "closed").chmod(0o700)
    follower.assert_same()
    assert follower.captured.coverage.files == 2
    (as_user / "closed/inner/file").write_text("y")
    follower.assert_same()
    (as_user / "closed").chmod(mode)
    follower.assert_same()
    assert follower.captured.coverage.files == 0


def test_a_root_that_is_closed(as_user: Path, start: Start) -> None:
    (as_user / "closed").chmod(0)
    watcher = start(as_user / "closed")
    assert watcher.drain() is None
    assert "ermission" in str(watcher.reason)


# --- mounts ----------------------------------------------------------------------------------

TABLE = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /home rw - {home} server:/home rw
31 30 0:27 / /home/me/a\040b rw - tmpfs tmpfs rw
32 22 0:28 / /srv rw - fuse.sshfs there rw
"""


@pytest.mark.parametrize(
    ("root", "home", "shared"),
    [
        (b"/work", "nfs4", None),
        (b"/home/me", "nfs4", "nfs4"),
        (b"/home/me", "btrfs", None),
        (b"/homes", "nfs4", None),
        (b"/home/me/a b/c", "nfs4", None),
        (b"/srv", "btrfs", "fuse.sshfs"),
        (b"/", "btrfs", "fuse.sshfs"),
    ],
)
def test_filesystems_that_others_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: bytes, home: str, shared: str | None
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.strip().format(home=home) + "\n")
    monkeypatch.setattr(mounts, "_TABLE", table)
    found = Mounts(root)
    assert found.shared() == shared
    found.close()


def test_a_workspace_that_others_change_is_not_watched(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mounts, "shared", lambda self: "virtiofs")
    watcher = start()
    assert watcher.drain() is None
    assert "virtiofs" in str(watcher.reason)


MOUNTED = """
import os, subprocess, sys
from mulligan.workspace.capture.ignore import Rules
from mulligan.workspace.watch.watcher import Watcher

root = sys.argv[1]

def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)

def started():
    watcher = Watcher(os.fsencode(root), Rules([]))
    watcher.start()
    return watcher

watcher = started()
os.mkdir(root + "/../elsewhere")
mount("-t", "tmpfs", "none", root + "/../elsewhere")
print(watcher.drain() is not None)

mount("-t", "tmpfs", "none", root + "/docs")
print(watcher.drain(), watcher.reason)

watcher = started()
open(root + "/docs/on-another-filesystem", "w").close()
print(sorted(watcher.drain().paths))
subprocess.run(["umount", root + "/docs"], check=True)
print(watcher.drain(), watcher.reason)

mount("--bind", root + "/src", root + "/docs")
watcher = started()
print(watcher.drain(), "are one directory" in watcher.reason)
"""


def test_mounts_in_the_workspace(root: Path) -> None:
    """In a namespace of its own, where a test may mount what it likes."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounts of one's own are not permitted here")
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", MOUNTED, str(root)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == textwrap.dedent("""\
        True
        None a filesystem in the workspace was mounted or unmounted
        [b'docs', b'docs/on-another-filesystem']
        None the workspace was unmounted
        None True
        """)
