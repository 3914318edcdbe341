"""What a command has acknowledged survives a power cut: nothing of it is left unsynced."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.syncs import below, lost, recorded

MULLIGAN = "from mulligan.cli.main import main; import sys; sys.exit(main())"
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
        self.traced("init")
        self.traced("checkpoint", "--label", "one")

    def traced(self, *arguments: str, whole: bool = True, before: str = "") -> set[tuple[str, str]]:
        """Run a command in the project and return what a power cut would take of its work."""
        program = MULLIGAN if whole else NEVER_WHOLE + MULLIGAN
        command = [sys.executable, "-c", before + program, *arguments]
        traces = self.place / f"traces-{len(list(self.place.iterdir()))}"
        return lost(recorded(command, traces, cwd=self.root, env=self._env), whole=whole)


@pytest.fixture(params=[3, 90], ids=["few files", "many files"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return Project(tmp_path, request.param)


@pytest.fixture(params=[True, False], ids=["syncfs", "no syncfs"])
def whole(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("target", ["new", "made/on/the/way", "there"])
def test_a_fork_with_its_pointer_and_the_way_to_it(
    project: Project, whole: bool, target: str
) -> None:
    to = project.place / target
    if target == "there":
        to.mkdir()
    dirt = project.traced("fork", "one", "--to", str(to), whole=whole)
    assert (to / "src/1.txt").exists() or (to / "src").exists()
    assert (to / ".mulligan").exists()
    assert below(dirt, to) == set()


@pytest.mark.parametrize("target", ["new", "made/on/the/way", "there"])
def test_a_copy_and_the_way_to_it(project: Project, whole: bool, target: str) -> None:
    to = project.place / target
    if target == "there":
        to.mkdir()
    dirt = project.traced("restore", "one", "--to", str(to), whole=whole)
    assert (to / "link").is_symlink()
    assert below(dirt, to) == set()


def test_a_copy_that_several_processes_make(tmp_path: Path, whole: bool) -> None:
    project, to = Project(tmp_path, 90), tmp_path / "copy"
    given = ("restore", "one", "--to", str(to))
    assert below(project.traced(*given, whole=whole, before=SEVERAL_PROCESSES), to) == set()
    traces = [file.read_text() for file in tmp_path.glob("traces-*/trace.*")]
    makers = [text for text in traces if f'{to}/src>, "' in text and "O_EXCL" in text]
    assert [text for text in makers if "mkdir" not in text], "no other process made a file"


def test_a_copy_of_parts(project: Project, whole: bool) -> None:
    to = project.place / "parts"
    dirt = project.traced("restore", "one", "--only", "src/deep", "--to", str(to), whole=whole)
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
    dirt = project.traced("restore", "one", whole=whole)
    assert not (project.root / "src/new").exists()
    own = {item for item in below(dirt, project.root) if "/.mulligan" not in item[1]}
    assert own - {("names", str(project.place))} == set()


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
