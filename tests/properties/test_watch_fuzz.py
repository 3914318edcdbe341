"""Whatever is done to a workspace, the tree of watcher or scan is that of a first capture.

``MULLIGAN_TEST_SEED=7 MULLIGAN_TEST_SCALE=50`` replays a seed, or tries harder.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mulligan.model import Digest, ObjectKind
from mulligan.objects.memory import MemoryObjects
from mulligan.workspace import workers
from mulligan.workspace.capture import scan_worker
from mulligan.workspace.capture.capture import Capture, Captured, CaptureLimits
from mulligan.workspace.capture.ignore import FILE_NAME, Rules
from mulligan.workspace.capture.index import TIMESTAMP_GRAIN_NS
from mulligan.workspace.capture.scan import Scan
from mulligan.workspace.capture.tree import stored_tree
from mulligan.workspace.entries import from_name
from mulligan.workspace.watch.watcher import Watcher, available
from tests.scale import times
from tests.trees import plain_tree

pytestmark = pytest.mark.skipif(not available(), reason="there is no inotify here")

SEED = int(os.environ.get("MULLIGAN_TEST_SEED", "0")) or random.randrange(1, 1 << 32)
ROUNDS = times(70)

NAMES = [
    "a",
    "b",
    "c",
    "d-e",
    "d",
    "é",
    "x.py",
    "__pycache__",
    "kept",
    "build",
    os.fsdecode(b"\xff"),
]


def put(path: str, data: bytes, how: int = os.O_TRUNC) -> None:
    """Write to a file, new or not; fails rather than wait if it is a FIFO."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | how, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)


IGNORED = {"__pycache__", "build"}


class Mutator:
    """Does things to a workspace, at random but always the same for a seed."""

    def __init__(self, root: str, outside: str, seed: int) -> None:
        self.root = root
        self.outside = outside
        self.random = random.Random(seed)
        self.count = 0
        self.alone = False
        self.done: list[str] = []
        self.acts: list[Callable[[], None]] = [
            *[self.write] * 4,
            *[self.append] * 2,
            *[self.make_directory] * 2,
            *[self.rename] * 3,
            *[getattr(self, name) for name in sorted(vars(Mutator)) if name.startswith("do_")],
        ]

    def step(self, count: int) -> None:
        """Do a number of things; what is impossible just now is left undone."""
        self.alone = count == 1
        for _ in range(count):
            act = self.random.choice(self.acts)
            try:
                act()
            except OSError as error:
                self.done.append(f"{act.__name__} failed: {error}")

    def note(self, text: str, *paths: str) -> None:
        self.done.append(f"{text} {' '.join(repr(os.path.relpath(p, self.root)) for p in paths)}")

    # --- choosing ---

    def directories(self) -> list[str]:
        return sorted(here for here, _, _ in os.walk(self.root))

    def one_of(self, paths: list[str]) -> str:
        if not paths:
            raise FileNotFoundError("there is none")
        return self.random.choice(paths)

    def directory(self) -> str:
        return self.random.choice(self.directories())

    def any_directory(self) -> str:
        return self.one_of(self.directories()[1:])

    def leaves(self) -> list[str]:
        found = []
        for here, directories, files in os.walk(self.root):
            links = [d for d in directories if os.path.islink(os.path.join(here, d))]
            found += [os.path.join(here, name) for name in files + links]
        return sorted(path for path in found if not path.endswith(FILE_NAME))

    def leaf(self) -> str:
        return self.one_of(self.leaves())

    def file(self) -> str:
        files = [p for p in self.leaves() if os.path.isfile(p) and not os.path.islink(p)]
        return self.one_of(files)

    def anything(self) -> str:
        return self.any_directory() if self.random.random() < 0.4 else self.leaf()

    def new(self) -> str:
        return os.path.join(self.directory(), self.random.choice(NAMES))

    def content(self) -> bytes:
        self.count += 1
        return b"%d " % self.count * self.random.choice([0, 1, 1, 3, 50])

    def away(self) -> str:
        self.count += 1
        return os.path.join(self.outside, f"{os.getpid()}-{self.count}")

    # --- doing ---

    def write(self) -> None:
        path = self.file() if self.random.random() < 0.6 else self.new()
        self.note("write", path)
        put(path, self.content())

    def append(self) -> None:
        path = self.file()
        self.note("append", path)
        put(path, self.content(), os.O_APPEND)

    def make_directory(self) -> None:
        path = self.new()
        self.note("mkdir", path)
        os.mkdir(path)

    def rename(self) -> None:
        old, new = self.anything(), self.new() if self.random.random() < 0.7 else self.anything()
        self.note("rename", old, new)
        os.rename(old, new)

    def do_make_nested(self) -> None:
        path = os.path.join(self.new(), *self.random.choices(NAMES, k=3))
        self.note("makedirs", path)
        os.makedirs(path)
        put(os.path.join(path, "deep"), self.content())

    def do_delete(self) -> None:
        path = self.leaf()
        self.note("unlink", path)
        os.unlink(path)

    def do_delete_tree(self) -> None:
        path = self.any_directory()
        self.note("rmtree", path)
        shutil.rmtree(path)

    def do_delete_and_make_again(self) -> None:
        path = self.any_directory()
        self.note("rmtree and mkdir", path)
        shutil.rmtree(path)
        os.mkdir(path)
        put(os.path.join(path, self.random.choice(NAMES)), self.content())

    def do_replace(self) -> None:
        path = self.leaf()
        self.note("replace", path)
        draft = path + ".draft"
        put(draft, self.content())
        os.replace(draft, path)

    def do_exchange_directories(self) -> None:
        one, other, aside = self.any_directory(), self.any_directory(), self.away()
        self.note("exchange", one, other)
        os.rename(one, aside)
        try:
            os.rename(other, one)
        finally:
            os.rename(aside, other if os.path.exists(one) else one)

    def do_move_away_and_back(self) -> None:
        path, aside = self.any_directory(), self.away()
        self.note("away and back", path)
        for leaf in self.leaves():
            if leaf.startswith(path + "/"):
                os.utime(leaf, follow_symlinks=False)
        os.rename(path, aside)
        time.sleep(self.random.choice([0, 0.0005, 0.002]))  # for whoever is just looking at it
        os.rename(aside, path)

    def do_chmod(self) -> None:
        path = self.file()
        self.note("chmod", path)
        os.chmod(path, self.random.choice([0o600, 0o644, 0o755, 0o400]))

    def do_chmod_directory(self) -> None:
        path = self.directory()
        self.note("chmod directory", path)
        os.chmod(path, self.random.choice([0o700, 0o755, 0o750, 0o1777]))

    def do_utime(self) -> None:
        path = self.anything()
        self.note("utime", path)
        moment = self.random.randrange(10**18)
        os.utime(path, ns=(moment, moment), follow_symlinks=False)

    def do_set_attribute(self) -> None:
        path = self.file() if self.random.random() < 0.7 else self.directory()
        self.note("setxattr", path)
        os.setxattr(path, "user.fuzz", self.content()[:100])

    def do_truncate(self) -> None:
        path = self.file()
        self.note("truncate", path)
        os.truncate(path, self.random.choice([0, 1, 100]))

    def do_symlink(self) -> None:
        target, path = self.random.choice(["..", "a", "nowhere", self.outside]), self.new()
        self.note("symlink", path)
        os.symlink(target, path)

    def do_swap_for_symlink(self) -> None:
        path, aside = self.any_directory(), self.away()
        self.note("swap for symlink", path)
        os.rename(path, aside)
        os.symlink(aside, path)

    def do_swap_back(self) -> None:
        links = [p for p in self.leaves() if os.path.islink(p) and os.path.isdir(p)]
        if links:
            path = self.random.choice(links)
            target = os.path.join(os.path.dirname(path), os.readlink(path))
            self.note("swap back", path)
            os.unlink(path)
            if target.startswith(self.outside + "/"):
                os.rename(target, path)

    def do_hard_link(self) -> None:
        old, new = self.leaf(), self.new()
        self.note("link", old, new)
        os.link(old, new, follow_symlinks=False)
        if not self.alone or not IGNORED.isdisjoint(new.split("/")):
            # Nothing tells of a name that is made in a place which is not watched, or is gone
            # before anyone looked. This does.
            os.utime(old, follow_symlinks=False)

    def do_write_linked(self) -> None:
        linked = [p for p in self.leaves() if os.lstat(p).st_nlink > 1 and not os.path.islink(p)]
        if linked:
            path = self.random.choice(linked)
            self.note("append to linked", path)
            put(path, b"linked", os.O_APPEND)

    def do_move_out(self) -> None:
        path, away = self.any_directory(), self.away()
        self.note("move out", path)
        os.rename(path, away)

    def do_move_in(self) -> None:
        if waiting := sorted(os.listdir(self.outside)):
            path, new = os.path.join(self.outside, self.random.choice(waiting)), self.new()
            self.note("move in", new)
            os.rename(path, new)
            put(os.path.join(new, "came"), self.content())

    def do_write_after_rename(self) -> None:
        old, new = self.file(), self.new()
        self.note("write after rename", old, new)
        with open(old, "ab") as stream:
            os.rename(old, new)
            stream.write(b"after")

    def do_write_after_unlink(self) -> None:
        path = self.file()
        self.note("write after unlink", path)
        with open(path, "ab") as stream:
            os.unlink(path)
            stream.write(b"gone")

    def do_fifo(self) -> None:
        path = self.new()
        self.note("mkfifo", path)
        os.mkfifo(path)

    def do_burst(self) -> None:
        here = self.directory()
        self.note("burst", here)
        for i in range(30):
            path = os.path.join(here, f"burst{i}")
            if self.random.random() < 0.3 and os.path.exists(path):
                os.unlink(path)
            else:
                put(path, self.content())

    def prune(self) -> None:
        """Keep the tree small."""
        for path in os.listdir(self.root):
            place = os.path.join(self.root, path)
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
        for path in os.listdir(self.outside):
            shutil.rmtree(os.path.join(self.outside, path), ignore_errors=True)


class Follower:
    """Captures a workspace again and again, by the watcher's word alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rules = Rules.read(root)
        self.objects = MemoryObjects()
        self.scans = 0
        self.begin()

    def begin(self) -> None:
        self.scans += 1
        self.watcher = Watcher(os.fsencode(self.root), self.rules)
        self.watcher.start()
        assert self.watcher.reason is None
        self.captured = self.full(follow=True)

    def full(self, *, follow: bool = False) -> Captured:
        scan = Scan(os.fsencode(self.root), None, self.rules)
        changes = scan.everything()
        captured, linked = self._capture(changes, None, time.time_ns())
        if follow:
            self.watcher.follow(linked)
        return captured

    def step(self) -> Captured:
        taken = time.time_ns()
        drained = self.watcher.drain()
        if drained is None:
            self.watcher.close()
            self.begin()
            return self.captured
        changes = Scan(os.fsencode(self.root), self.captured.index, self.rules).paths(
            drained.paths, drained.renewed
        )
        self.captured, linked = self._capture(changes, self.captured.index, taken)
        self.watcher.follow(linked)
        return self.captured

    def _capture(self, changes: Any, index: Any, taken: int) -> tuple[Captured, dict[bytes, int]]:
        """Return what was captured, and which files have several names: a watcher follows them."""
        bundle = self.objects.bundle()
        capture = Capture(self.root, bundle, index, CaptureLimits())
        captured = capture.run(changes, self.rules, taken)
        bundle.flush()
        return captured, capture.linked


class Scanner(Follower):
    """Captures a workspace again and again, by scans against what is known."""

    def begin(self) -> None:
        self.captured = self.full()

    def step(self) -> Captured:
        taken = time.time_ns()
        changes = Scan(os.fsencode(self.root), self.captured.index, self.rules).everything()
        self.captured, _ = self._capture(changes, self.captured.index, taken)
        return self.captured


def known(follower: Follower, captured: Captured) -> dict[bytes, Any]:
    """Return all that is known of every path, in a form that says what differs."""
    found: dict[bytes, Any] = {}
    for path, directory in captured.index.directories.items():
        found[path + b"/"] = (directory.ino, directory.mode, directory.mtime)
        found[path + b"/ directories"] = sorted(directory.directories)
        for name, seen in directory.leaves.items():
            found[path + b"/" + name] = (seen.ino, seen.room, seen.size, seen.mtime)
        for name, reason in directory.left_out.items():
            found[path + b"/" + name] = reason
    tree = plain_tree(lambda d: follower.objects.get(ObjectKind.VALUE, d), captured.tree)
    pending: list[tuple[bytes, Any]] = [(b"in the tree:", tree)]
    while pending:
        path, entry = pending.pop()
        if isinstance(entry, dict):
            pending += [(path + b"/" + from_name(name), below) for name, below in entry.items()]
        else:
            found[path] = entry
    return found


def in_full(follower: Follower, captured: Captured) -> Digest:
    """Return the tree as it would be if it were stored in full, whatever was told as a patch."""
    index = captured.index
    bundle = follower.objects.bundle()
    touched = {path: set(names) for path, names in index.edits.touched.items()}
    touched.setdefault(b"", set())
    return stored_tree(
        index.directories, touched, lambda data: bundle.put(ObjectKind.VALUE, data), {**index.nodes}
    )


def assert_same(follower: Follower, done: list[str], seed: int) -> None:
    followed, full = follower.step(), follower.full()
    one, other = known(follower, followed), known(follower, full)
    differing = [
        f"{path!r}: {one.get(path)} should be {other.get(path)}"
        for path in sorted(one | other)
        if one.get(path) != other.get(path)
    ]
    if differing:
        pytest.fail("\n".join([f"seed {seed}:", *differing, "after:", *done]))
    assert in_full(follower, followed) == full.tree
    assert followed.coverage == full.coverage


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / FILE_NAME).write_text("build/\n*.log\n!kept\n")
    return root, outside


@pytest.mark.parametrize("part", range(2))
def test_the_watchers_tree_is_that_of_a_full_scan(places: tuple[Path, Path], part: int) -> None:
    root, outside = places
    seed = SEED + part
    print(f"MULLIGAN_TEST_SEED={seed}")
    mutator = Mutator(str(root), str(outside), seed)
    mutator.step(100)
    follower = Follower(root)
    for _ in range(ROUNDS):
        mutator.done.clear()
        mutator.step(mutator.random.choice([1, 1, 2, 3, 8, 30]))
        if len(mutator.directories()) > 60:
            mutator.prune()
        assert_same(follower, mutator.done, seed)
    assert follower.scans == 1


@pytest.mark.parametrize("processors", [1, 3])
def test_the_tree_of_scans_is_that_of_a_full_scan(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, processors: int
) -> None:
    """With scan workers and without, and with changes long enough ago for them to be trusted."""
    monkeypatch.setattr(scan_worker, "MIN_PATHS_PER_WORKER", 1)
    monkeypatch.setattr(scan_worker, "WORKER_START_PATHS", 0)
    monkeypatch.setattr(workers, "processors", lambda: processors)
    root, outside = places
    seed = SEED + processors
    print(f"MULLIGAN_TEST_SEED={seed}")
    mutator = Mutator(str(root), str(outside), seed)
    mutator.step(100)
    scanner = Scanner(root)
    for _ in range(ROUNDS // 3):
        mutator.done.clear()
        mutator.step(mutator.random.choice([1, 1, 2, 3, 8, 30]))
        if len(mutator.directories()) > 60:
            mutator.prune()
        assert_same(scanner, mutator.done, seed)
        if mutator.random.random() < 0.3:
            let_the_clock_move()


def let_the_clock_move() -> None:
    """Let what was done become old enough to be trusted; the filesystem's clock is no fake."""
    start = time.time_ns()
    while time.time_ns() < start + 2 * TIMESTAMP_GRAIN_NS:
        pass


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from test_watch_fuzz import Mutator
mutator = Mutator(sys.argv[2], sys.argv[3], int(sys.argv[4]))
for line in sys.stdin:
    mutator.done.clear()
    mutator.step(int(line))
    if len(mutator.directories()) > 60:
        mutator.prune()
    print("|".join(mutator.done), flush=True)
"""


@pytest.fixture
def child(places: tuple[Path, Path]) -> Iterator[subprocess.Popen[str]]:
    root, outside = places
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", CHILD, here, str(root), str(outside), str(SEED)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_changes_by_another_process(
    places: tuple[Path, Path], child: subprocess.Popen[str]
) -> None:
    print(f"MULLIGAN_TEST_SEED={SEED}")
    follower = Follower(places[0])
    assert child.stdin is not None
    assert child.stdout is not None
    for _ in range(ROUNDS):
        child.stdin.write("5\n")
        child.stdin.flush()
        assert_same(follower, child.stdout.readline().split("|"), SEED)
    assert follower.scans == 1


def test_captures_amid_the_changes_of_another_process(
    places: tuple[Path, Path], child: subprocess.Popen[str]
) -> None:
    """What is captured meanwhile may be of any moment, but once it is quiet all is right."""
    print(f"MULLIGAN_TEST_SEED={SEED}")
    follower = Follower(places[0])
    assert child.stdin is not None
    assert child.stdout is not None
    for _ in range(ROUNDS // 10):
        child.stdin.write("100\n")
        child.stdin.flush()
        # Only a whole line says that the child is done, so nothing is read but by readline.
        while not select.select([child.stdout], [], [], 0)[0]:
            follower.step()
        assert_same(follower, child.stdout.readline().split("|"), SEED)
