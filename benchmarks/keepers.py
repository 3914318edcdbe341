"""Who keeps files: Mulligan, the peers, and the limit, each used as people use it.

A peer is a program that may be installed or not; one that is not is left out and shown as such.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from benchmarks.timing import peak_memory

if TYPE_CHECKING:
    from mulligan.clock import Clock


class Keeper(ABC):
    """Something that captures a tree again and again and gives its newest capture back."""

    name: ClassVar[str]
    programs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tree: Path, directory: Path) -> None:
        """Make a new store in an empty directory."""
        self.tree = tree
        self.directory = directory

    @classmethod
    def is_installed(cls) -> bool:
        """Whether everything it needs is there."""
        return all(shutil.which(program) for program in cls.programs)

    @abstractmethod
    def capture(self) -> None:
        """Capture the tree as it is."""

    @abstractmethod
    def restore(self, to: Path) -> None:
        """Write the newest capture into an empty directory."""

    def check(self) -> None:
        """Read every byte that is stored, and check it."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 -- a program that has ended holds nothing
        """Let go of everything; the store stays."""

    def _run(self, *command: str | Path, cwd: Path, **environment: str | Path) -> None:
        values = {name: str(value) for name, value in environment.items()}
        quiet = subprocess.DEVNULL
        subprocess.run(command, check=True, cwd=cwd, env=os.environ | values, stdout=quiet)


class MulliganScan(Keeper):
    """A session of ours that finds changes by a scan, and gives files back as a copy."""

    name = "mulligan: scan"

    def __init__(self, tree: Path, directory: Path, clock: Clock | None = None) -> None:
        from mulligan.testing.stores import open_store

        super().__init__(tree, directory)
        self.store = open_store(directory / "store", clock=clock)
        self.session = self.store.session("bench", workspace=tree)

    def capture(self) -> None:
        self.newest = self.session.checkpoint(kind="routine")

    def restore(self, to: Path) -> None:
        problems = self.session.files.copy(self.newest, to)
        if problems:
            raise AssertionError(f"{len(problems)} files were not restored")

    def rollback(self) -> None:
        """Bring the newest capture back in place, with safety checkpoint and verification."""
        done = self.session.restore(self.newest)
        if done.problems:
            raise AssertionError(f"{len(done.problems)} files were not rolled back")

    def close(self) -> None:
        self.store.close()


class MulliganWatch(MulliganScan):
    """A session of ours that is told of changes by the kernel."""

    name = "mulligan: watch"

    def __init__(self, tree: Path, directory: Path) -> None:
        super().__init__(tree, directory)
        self.session.internal.watch()


class ShadowGit(Keeper):
    """A repository beside the tree, as coding agents keep one for their rewinds."""

    name = "shadow git"
    programs = ("git",)

    def __init__(self, tree: Path, directory: Path) -> None:
        super().__init__(tree, directory)
        self._git("init", "--quiet")

    def capture(self) -> None:
        self._git("add", "-A")
        self._git("write-tree")

    def restore(self, to: Path) -> None:
        self._git("checkout-index", "--all", "--force", f"--prefix={to}/")

    def _git(self, *arguments: str) -> None:
        places = (f"--git-dir={self.directory / 'git'}", f"--work-tree={self.tree}")
        nobody = os.devnull
        self._run(
            *("git", *places, *arguments),
            cwd=self.tree,
            GIT_CONFIG_GLOBAL=nobody,
            GIT_CONFIG_SYSTEM=nobody,
        )


class Restic(Keeper):
    """A restic repository with its default compression."""

    name = "restic"
    programs = ("restic",)

    def __init__(self, tree: Path, directory: Path) -> None:
        super().__init__(tree, directory)
        self._restic("init", "--repository-version", "2")

    def capture(self) -> None:
        self._restic("backup", ".")

    def restore(self, to: Path) -> None:
        self._restic("restore", "latest", "--target", str(to))

    def check(self) -> None:
        self._restic("check", "--read-data")

    def _restic(self, *arguments: str) -> None:
        self._run(
            *("restic", "--quiet", *arguments),
            cwd=self.tree,
            RESTIC_PASSWORD="bench",
            RESTIC_REPOSITORY=self.directory / "repository",
            RESTIC_CACHE_DIR=self.directory.with_name(self.directory.name + "-cache"),
        )


class Borg(Keeper):
    """A borg repository without encryption, compressed with zstd as ours is."""

    name = "borg"
    programs = ("borg",)

    def __init__(self, tree: Path, directory: Path) -> None:
        super().__init__(tree, directory)
        self._captures = 0
        self._borg("init", "--encryption=none", str(self._repository), cwd=tree)

    def capture(self) -> None:
        self._captures += 1
        self._borg("create", "--compression=zstd,3", self._newest, ".", cwd=self.tree)

    def restore(self, to: Path) -> None:
        to.mkdir()
        self._borg("extract", self._newest, cwd=to)

    def check(self) -> None:
        self._borg("check", "--verify-data", str(self._repository), cwd=self.tree)

    @property
    def _repository(self) -> Path:
        return self.directory / "repository"

    @property
    def _newest(self) -> str:
        return f"{self._repository}::{self._captures}"

    def _borg(self, *arguments: str, cwd: Path) -> None:
        self._run(
            *("borg", *arguments),
            cwd=cwd,
            BORG_BASE_DIR=self.directory.with_name(self.directory.name + "-cache"),
            BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes",
            BORG_RELOCATED_REPO_ACCESS_IS_OK="yes",
        )


class TarZstd(Keeper):
    """``tar | zstd -1``: what it takes to read all files and compress them a little."""

    name = "the limit: tar | zstd -1"
    programs = ("tar", "zstd")

    def capture(self) -> None:
        self._shell(f"tar -cf - . | zstd -q -1 -f -o '{self.directory}/tar.zst'", self.tree)

    def restore(self, to: Path) -> None:
        to.mkdir()
        self._shell(f"zstd -q -d -c '{self.directory}/tar.zst' | tar -xf -", to)

    def _shell(self, command: str, cwd: Path) -> None:
        self._run("sh", "-c", command, cwd=cwd)


PEERS: tuple[type[Keeper], ...] = (ShadowGit, Restic, Borg)


def peak_in_child(tree: Path, directory: Path) -> dict[str, int]:
    """The most memory a process of ours takes to capture a tree, and then to restore it."""
    command = [sys.executable, "-m", "benchmarks.keepers", str(tree), str(directory)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    peaks: dict[str, int] = json.loads(done.stdout)
    return peaks


def main(argv: Sequence[str]) -> None:
    """``TREE DIRECTORY``: capture and restore a tree and print the peak memory after each."""
    tree, directory = map(Path, argv)
    directory.mkdir()
    keeper = MulliganWatch(tree, directory)
    peaks: dict[str, int] = {}
    keeper.capture()
    peaks["captured"] = peak_memory()
    keeper.restore(directory / "copy")
    peaks["restored"] = peak_memory()
    keeper.close()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(sys.argv[1:])
