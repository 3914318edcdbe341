"""A project on the recorded disk: the work on it, its promises, and whether they hold.

The real command line does everything, as a user would. It prints a line before each step, which
says that the files may change from now on, and a promise after it.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

import mulligan
from mulligan.errors import MulliganError
from mulligan.store import Store
from mulligan.testing.commands import fingerprint, run_mulligan


class StepStarted(msgspec.Struct, frozen=True, tag="started"):
    """A step has started: nothing is promised about the working files until it ends."""

    step: str


class Checkpointed(msgspec.Struct, frozen=True, tag="checkpointed"):
    """A checkpoint was taken, with these files."""

    id: str
    files: str


class Restored(msgspec.Struct, frozen=True, tag="restored"):
    """The working files were restored, and nothing has touched them since."""

    files: str


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """A directory was written that nothing touches any more; with a session if it is a fork."""

    directory: str
    files: str
    session: str | None


Line = StepStarted | Checkpointed | Restored | Copied

_encode = msgspec.json.encode
decode_line = msgspec.json.Decoder(Line).decode
decode_lines = msgspec.json.Decoder(list[Line]).decode


class Project:
    """Random steps in a directory, one command each."""

    def __init__(self, top: Path, rng: random.Random) -> None:
        self._top = top
        self._project = top / "project"
        self._rng = rng
        self._checkpoints: list[str] = []
        self._made = 0

    def run(self, steps: int) -> None:
        """Create the store, then take random steps."""
        self._project.mkdir()
        (self._top / "home").mkdir()
        self._edit()
        self._mulligan("init")
        self._checkpoint()
        for _ in range(steps):
            step = self._rng.choice(
                (self._checkpoint, self._checkpoint, self._restore, self._copy, self._fork)
            )
            step()

    def _checkpoint(self) -> None:
        _print_line(StepStarted("checkpoint"))
        self._edit()
        taken = self._mulligan("-q", "checkpoint")
        self._checkpoints.append(taken)
        _print_line(Checkpointed(taken, fingerprint(self._project)))

    def _restore(self) -> None:
        _print_line(StepStarted("restore"))
        self._mulligan("-q", "restore", "--yes", self._rng.choice(self._checkpoints))
        _print_line(Restored(fingerprint(self._project)))

    def _copy(self) -> None:
        self._write_directory("restore", "--yes")

    def _fork(self) -> None:
        self._made += 1
        self._write_directory("fork", "--name", f"fork-{self._made}", session=f"fork-{self._made}")

    def _write_directory(self, *command: str, session: str | None = None) -> None:
        _print_line(StepStarted(command[0]))
        self._made += 1
        directory = self._top / "made" / str(self._made)
        point = self._rng.choice(self._checkpoints)
        self._mulligan("-q", *command, point, "--to", str(directory))
        _print_line(Copied(str(directory.relative_to(self._top)), fingerprint(directory), session))

    def _edit(self) -> None:
        """Change some files as an agent would: without a sync."""
        for _ in range(self._rng.randint(1, 90)):
            path = self._project / self._rng.choice("abc") / f"file-{self._rng.randint(1, 120)}"
            path.parent.mkdir(exist_ok=True)
            if path.exists() and self._rng.random() < 0.2:
                path.unlink()
            else:
                path.write_bytes(self._rng.randbytes(self._rng.choice((10, 500, 9_000))))

    def _mulligan(self, *arguments: str) -> str:
        done = run_mulligan(self._top, self._project, *arguments)
        if done.returncode:
            raise RuntimeError(f"mulligan {' '.join(arguments)}: {done.stderr}")
        return done.stdout.strip()


def violations(top: Path, lines: list[Line]) -> Iterator[str]:
    """Yield what was promised before the power cut and does not hold."""
    if not any(isinstance(line, Checkpointed) for line in lines):
        return  # the first checkpoint promises everything before it
    try:
        with mulligan.open(top / "project", create=False) as store:
            for problem in store.verify().problems:
                yield f"verify: {problem.what} at {problem.where}: {problem.detail}"
            yield from _broken_checkpoints(store, lines)
    except (MulliganError, OSError) as error:
        yield f"the store raised {type(error).__name__}: {error}"
        return
    for line in lines:
        if isinstance(line, Copied):
            yield from _broken_copy(top, line)
    if isinstance(lines[-1], Restored) and fingerprint(top / "project") != lines[-1].files:
        yield "the files of a finished restore differ after the cut"
    yield from _left_behind(top)


def _broken_checkpoints(store: Store, lines: list[Line]) -> Iterator[str]:
    session = store.session("main", create=False)
    for line in lines:
        if not isinstance(line, Checkpointed):
            continue
        to = Path(tempfile.mkdtemp(prefix="mulligan-power-"))
        try:
            session.files.copy(line.id, to)
            if fingerprint(to) != line.files:
                yield f"checkpoint {line.id} has other files than acknowledged"
        finally:
            shutil.rmtree(to)


def _broken_copy(top: Path, line: Copied) -> Iterator[str]:
    directory = top / line.directory
    if not directory.is_dir():
        yield f"{line.directory} was acknowledged and is gone"
    elif fingerprint(directory) != line.files:
        yield f"{line.directory} has other files than acknowledged"
    elif line.session is not None:
        done = run_mulligan(top, directory, "status", "--json")
        if done.returncode or f'"{line.session}"' not in done.stdout:
            yield f"{line.directory} does not lead to its session: {done.stderr or done.stdout}"


def _left_behind(top: Path) -> Iterator[str]:
    """Yield temporary names that a writing command leaves in the project."""
    done = run_mulligan(top, top / "project", "-q", "checkpoint")
    if done.returncode:
        yield f"no checkpoint can be taken after the cut: {done.stderr}"
    for path in (top / "project").rglob("*mulligan-*"):
        yield f"a temporary name is left in the project: {path.name}"


def _print_line(line: Line) -> None:
    os.write(1, _encode(line) + b"\n")


def main() -> int:
    """Run steps on a disk (``run TOP SEED STEPS``), or check what is left (``check TOP``)."""
    verb, top = sys.argv[1], Path(sys.argv[2])
    if verb == "run":
        Project(top, random.Random(int(sys.argv[3]))).run(int(sys.argv[4]))
        return 0
    for violation in violations(top, decode_lines(sys.stdin.buffer.read())):
        print(violation)
    return 0


if __name__ == "__main__":
    sys.exit(main())
