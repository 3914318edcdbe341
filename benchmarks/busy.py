"""A large restore in place while the machine is busy: thousands of changed files, beside git.

Four processes keep the processors busy and one keeps the disk busy, as builds and tests of other
agents do. Git changes the same files back with ``git checkout``; it syncs nothing and keeps
nothing of what it replaces, so it is shown with a ``sync`` after it as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import mulligan
from benchmarks import harness
from benchmarks.harness import Result, Row, Setting, Table, Target
from benchmarks.timing import median, ratio, timed

OURS = "mulligan: safety checkpoint, restore, check, durable"
GIT = "git checkout"
SYNCED = "git checkout, sync"

TARGETS = (Target("restore/git", "a restore beside git checkout and a sync, busy", 2.5, None, "×"),)

VERSIONS = ("one", "two")
SPINNING = "while True: pass"
WRITING = """
import sys
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
"""


def run(setting: Setting) -> Result:
    """Go back and forth between two versions of all files, each keeper in its turn."""
    files = setting.choose(full=5000, quick=1000)
    tree = setting.directory / "tree"
    seconds: dict[str, list[float]] = {OURS: [], GIT: [], SYNCED: []}
    with mulligan.open(setting.directory / "store") as store:
        tree.mkdir()
        session = store.session("busy", workspace=tree)
        git = _Git(tree, setting.directory / "git")
        for version in VERSIONS:
            _write(tree, files, version)
            session.checkpoint(label=version)
            git.commit(version)
        with _busy(setting.directory / "dirt"):
            for _ in range(setting.choose(full=3, quick=2)):
                for version in VERSIONS:
                    _measure(seconds, partial(session.restore, version), OURS)
                for version in VERSIONS:
                    _measure(seconds, partial(git.checkout, version), GIT, SYNCED)
    result = Result([Table(f"{files:,} changed files, machine busy", _rows(seconds))])
    result.measure("restore/git", ratio(median(seconds[OURS]), median(seconds[SYNCED])))
    return result


def _measure(
    seconds: dict[str, list[float]], act: Callable[[], object], name: str, synced: str | None = None
) -> None:
    elapsed = timed(act)[0]
    seconds[name].append(elapsed)
    if synced is not None:
        seconds[synced].append(elapsed + timed(os.sync)[0])


class _Git:
    """A repository beside the tree."""

    def __init__(self, tree: Path, directory: Path) -> None:
        self._tree, self._directory = tree, directory
        self._run("init", "--quiet")

    def commit(self, name: str) -> None:
        """Keep the tree under a name."""
        who = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
        self._run("add", "-A")
        self._run(*who, "commit", "--quiet", "-m", name)
        self._run("tag", name)

    def checkout(self, name: str) -> None:
        """Bring all files of a commit back."""
        self._run("checkout", "--quiet", name, "--", ".")

    def _run(self, *arguments: str) -> None:
        places = (f"--git-dir={self._directory}", f"--work-tree={self._tree}")
        quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(
            ["git", *places, *arguments], cwd=self._tree, env={**os.environ, **quiet}, check=True
        )


def _write(tree: Path, files: int, word: str) -> None:
    for number in range(files):
        file = tree / f"d{number % 200}" / f"{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{word} {number}\n" * 100)


@contextmanager
def _busy(dirt: Path) -> Iterator[None]:
    """Keep processors and disk busy meanwhile."""
    commands = [[SPINNING]] * 4 + [[WRITING, str(dirt)]]
    with ExitStack() as stack:
        for program in commands:
            process = subprocess.Popen([sys.executable, "-c", *program])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def _rows(seconds: dict[str, list[float]]) -> list[Row]:
    return [_row(name, taken, median(seconds[SYNCED])) for name, taken in seconds.items()]


def _row(name: str, taken: Sequence[float], git: float) -> Row:
    return {
        "keeper": name,
        "median s": median(taken),
        "slowest s": max(taken),
        "× git, synced": ratio(median(taken), git),
    }


BENCHMARK = harness.Benchmark("busy", "A large restore on a busy machine", TARGETS, run)

if __name__ == "__main__":
    raise SystemExit(harness.main(BENCHMARK))
