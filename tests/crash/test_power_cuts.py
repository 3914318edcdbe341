"""What a command has acknowledged survives a power cut: nothing of it is left unsynced."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from mulligan.cli.main import run
from tests.syncs import Call, Dirt, below, lost, recorded

COMMANDS = """
import json, os, sys
from mulligan.cli.main import run
for number, words in enumerate(json.loads(sys.argv[2])):
    os.mkdir(f"{sys.argv[1]}-{number}")
    if status := run(words):
        sys.exit(status)
"""
"""Runs commands one after the other, and makes a directory before each to tell them apart."""

NEVER_WHOLE = (
    "from mulligan.workspace import syscalls; syscalls.syncs_as_a_whole = lambda _: False; "
)
"""As on FUSE, where a sync of the whole filesystem does nothing."""


SEVERAL_PROCESSES = (
    "from mulligan.workspace import workers; from mulligan.workspace.checkout import worker; "
    "worker.MIN_FILES_PER_WORKER = 30; "
    "workers.processors = lambda: 3; worker.CheckoutWorkers.own = lambda _: (); "
)
"""Have other processes make all files that they can."""


UNSYNCED = """
import os, sys
from pathlib import Path
from mulligan.cli.main import run
Path("src/fresh").write_bytes(b"fresh" * 1000)
Path("src/new").mkdir()
Path("src/new/file").write_text("new")
Path("2.txt").unlink()
Path("src/deep/1.txt").chmod(0o600)
assert run(("checkpoint", "--label", "two")) == 0
"""
"""Works as an agent does, without a sync, and takes a checkpoint of it."""

SYNCED_BY = {
    "nothing differs": """
sys.exit(run(("restore", "two")))
""",
    "another file differs": """
Path("src/0.txt").write_text("changed")
sys.exit(run(("restore", "two")))
""",
    "a part": """
sys.exit(run(("restore", "two", "--only", "src", "--only", "workspace")))
""",
    "a restore was killed before its syncs": """
from mulligan.workspace.restore.apply import Apply
Path("src/fresh").write_text("changed")
if (child := os.fork()) == 0:
    Apply._make_durable = lambda *_: os._exit(9)
    run(("restore", "two"))
assert os.waitpid(child, 0)[1] == 9 << 8
sys.exit(run(("restore", "--continue")))
""",
}
"""Restores that leave most of this work as it is."""


class Project:
    """A directory with a store and checkpoints of so many files: one, and an empty one."""

    def __init__(self, place: Path, files: int) -> None:
        self.place = place
        self.root = place / "project"
        home = {name: str(place / "home") for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
        self._env = {**os.environ, **home}
        (place / "home").mkdir()
        (self.root / "src" / "deep").mkdir(parents=True)
        rng = random.Random(files)
        for number in range(files):
            directory = self.root / ("src", "src/deep", ".")[number % 3]
            (directory / f"{number}.txt").write_bytes(rng.randbytes(rng.choice((0, 10, 5000))))
        (self.root / "link").symlink_to("src")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.root)
            for name, value in home.items():
                patch.setenv(name, value)
            assert run(("init",)) == run(("checkpoint", "--label", "one")) == 0

    def traced(self, *commands: Sequence[str], whole: bool, before: str = "") -> list[Dirt]:
        """Run commands in the project; return what a power cut would take of the work of each."""
        mark = str(self.place / "command")
        calls = self.calls(before + COMMANDS, mark, json.dumps(commands), whole=whole)
        marks = [at for at, call in enumerate(calls) if call[1][0].startswith(mark)]
        assert len(marks) == len(commands)
        return [lost(calls[a + 1 : b], whole=whole) for a, b in pairwise([*marks, len(calls)])]

    def calls(self, program: str, *arguments: str, whole: bool) -> list[Call]:
        """Run a program in the project and return its system calls."""
        command = [sys.executable, "-c", program if whole else NEVER_WHOLE + program, *arguments]
        return recorded(command, self.place / "traces", cwd=self.root, env=self._env)


@pytest.fixture(params=[3, 90], ids=["few files", "many files"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return Project(tmp_path, request.param)


@pytest.fixture(params=[True, False], ids=["syncfs", "no syncfs"])
def whole(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def targets(project: Project) -> list[Path]:
    """One that is new, one whose parents are, too, and one that is there."""
    (project.place / "there").mkdir()
    return [project.place / name for name in ("new", "made/on/the/way", "there")]


def test_a_fork_with_its_pointer_and_the_way_to_it(
    project: Project, targets: list[Path], whole: bool
) -> None:
    commands = [("fork", "one", "--to", str(to)) for to in targets]
    for to, dirt in zip(targets, project.traced(*commands, whole=whole), strict=True):
        assert (to / "src").exists()
        assert (to / ".mulligan").exists()
        assert below(dirt, to) == set()


def test_a_copy_and_the_way_to_it(project: Project, targets: list[Path], whole: bool) -> None:
    commands = [("restore", "one", "--to", str(to)) for to in targets]
    for to, dirt in zip(targets, project.traced(*commands, whole=whole), strict=True):
        assert (to / "link").is_symlink()
        assert below(dirt, to) == set()


def test_a_copy_that_several_processes_make(tmp_path: Path, whole: bool) -> None:
    project, to = Project(tmp_path, 90), tmp_path / "copy"
    given = ("restore", "one", "--to", str(to))
    [dirt] = project.traced(given, whole=whole, before=SEVERAL_PROCESSES)
    assert below(dirt, to) == set()
    traces = [file.read_text() for file in tmp_path.glob("traces/trace.*")]
    makers = [text for text in traces if f'{to}/src>, "' in text and "O_EXCL" in text]
    assert [text for text in makers if "mkdir" not in text], "no other process made a file"


def test_a_copy_of_parts(project: Project, whole: bool) -> None:
    to = project.place / "parts"
    only = ("restore", "one", "--only", "src/deep", "--to", str(to))
    [dirt] = project.traced(only, whole=whole)
    assert (to / "src" / "deep").is_dir()
    assert below(dirt, to) == set()


def test_a_restore_in_place(project: Project, whole: bool) -> None:
    for file in project.root.glob("src/*.txt"):
        file.write_text("changed")
    for file in project.root.glob("*.txt"):
        file.unlink()
    (project.root / "src/new").mkdir()
    (project.root / "src/new/file").write_text("new")
    (project.root / "link").unlink()
    [dirt] = project.traced(("restore", "one"), whole=whole)
    assert not (project.root / "src/new").exists()
    own = {item for item in below(dirt, project.root) if "/.mulligan" not in item[1]}
    assert own - {("names", str(project.place))} == set()


@pytest.mark.parametrize("way", SYNCED_BY)
def test_what_a_restore_leaves_as_it_is(project: Project, whole: bool, way: str) -> None:
    calls = project.calls(UNSYNCED + SYNCED_BY[way], whole=whole)
    assert (project.root / "src/fresh").read_bytes() == b"fresh" * 1000
    dirt = lost(calls, whole=whole)
    own = {item for item in below(dirt, project.root) if "/.mulligan" not in item[1]}
    assert own - {("names", str(project.place))} == set()


def test_a_restore_of_a_part_syncs_no_other_files(tmp_path: Path) -> None:
    project = Project(tmp_path, 3)
    program = UNSYNCED + 'sys.exit(run(("restore", "one", "--only", "src/deep/1.txt")))'
    dirt = lost(project.calls(program, whole=False), whole=False)
    assert ("content", str(project.root / "src/deep/1.txt")) not in dirt
    assert ("content", str(project.root / "src/fresh")) in dirt


def test_the_model_notices_what_is_not_synced(tmp_path: Path) -> None:
    program = (
        "import os; os.mkdir('a'); open('a/one', 'w').write('1'); open('a/two', 'w').write('2');"
        "h = os.open('a/two', os.O_RDONLY); os.fsync(h); os.rename('a/one', 'a/three');"
        "os.symlink('x', 'a/link')"
    )
    (tmp_path / "cwd").mkdir()
    command = [sys.executable, "-c", program]
    calls = recorded(command, tmp_path / "traces", cwd=tmp_path / "cwd", env=dict(os.environ))
    place = tmp_path / "cwd" / "a"
    assert below(lost(calls, whole=True), place) == {
        ("names", str(place.parent)),
        ("names", str(place)),
        ("content", str(place)),
        ("content", str(place / "three")),
    }
