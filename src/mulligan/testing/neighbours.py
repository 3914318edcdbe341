"""Captures beside busy and hostile programs.

``python -m mulligan.testing.neighbours --checkpoints 20 [--seed N]`` is part of ``make crash``.
Programs work in a directory while checkpoints of it are taken, with a scan and with the watcher:
git commits and collects garbage, a log grows, a database changes, files are renamed in bulk, and a
directory is swapped for a symlink that leads outside. Every checkpoint is written out and checked
against what each program could have left at one moment.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import mulligan
from mulligan.layout import CONFIG
from mulligan.session import Session

RENAMED_FILES = 200
"""Number of files that are renamed in bulk."""

ACCOUNTS = 50
SECRET = b"no checkpoint may hold this"

CONFIGURATION = """
[workspace.snapshot]
sqlite = ["bank.sqlite"]
"""


def _git(directory: Path, rng: random.Random) -> None:
    """Commit, branch, rebase and collect garbage."""
    repository = directory / "repository"
    number = 0
    while True:
        number += 1
        for _ in range(rng.randint(1, 8)):
            (repository / f"file-{rng.randint(1, 60)}").write_bytes(rng.randbytes(300))
        _run_git(repository, "add", "-A")
        _run_git(repository, "commit", "-q", "-m", f"commit {number}", "--allow-empty")
        if number % 9 == 0:
            _run_git(repository, "gc", "-q", "--prune=now")
        if number % 7 == 0:
            _run_git(repository, "rebase", "-q", "--force-rebase", "HEAD~3")


def _run_git(repository: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "gc.auto=0")
    subprocess.run(
        ["git", *who, *arguments], cwd=repository, stdin=subprocess.DEVNULL, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


def _log(directory: Path, rng: random.Random) -> None:
    """Append numbered lines."""
    with (directory / "app.log").open("ab", buffering=0) as file:
        number = 0
        while True:
            lines = (f"{n:012}\n" for n in range(number, number + 40))
            number += 40
            file.write("".join(lines).encode())
            time.sleep(0.001)


def _bank(directory: Path, rng: random.Random) -> None:
    """Move money between accounts: the sum never changes."""
    with contextlib.closing(sqlite3.connect(directory / "bank.sqlite")) as bank:
        while True:
            one, other = rng.sample(range(ACCOUNTS), 2)
            with bank:
                bank.execute("UPDATE account SET held = held - 1 WHERE number = ?", (one,))
                bank.execute("UPDATE account SET held = held + 1 WHERE number = ?", (other,))


def _rename(directory: Path, rng: random.Random) -> None:
    """Rename many files one by one between two directories, then pause.

    A capture retries until a listing is stable, so there must be a moment in which one can be.
    """
    here, there = directory / "left", directory / "right"
    while True:
        time.sleep(rng.uniform(0.02, 0.3))
        for number in range(RENAMED_FILES):
            os.rename(here / str(number), there / str(number))
        here, there = there, here


def _swap(directory: Path, rng: random.Random) -> None:
    """Replace a directory by a symlink that leads outside, and back."""
    real, link = directory / "swapped", directory / ".swap-link"
    aside = directory / ".swap-real"
    while True:
        link.symlink_to(directory.parent / "outside")
        os.rename(real, aside)
        os.rename(link, real)
        os.unlink(real)
        os.rename(aside, real)


PROGRAMS: dict[str, Callable[[Path, random.Random], None]] = {
    "git": _git,
    "log": _log,
    "bank": _bank,
    "rename": _rename,
    "swap": _swap,
}


def create_files(directory: Path) -> None:
    """Create what the programs work on."""
    for name in ("repository", "left", "right", "swapped"):
        (directory / name).mkdir(parents=True)
    outside = directory.parent / "outside"
    outside.mkdir()
    for number in range(RENAMED_FILES):
        (directory / "left" / str(number)).write_text(str(number))
        (directory / "swapped" / str(number)).write_text("inside")
        (outside / str(number)).write_bytes(SECRET)
    (directory / "app.log").touch()
    _run_git(directory / "repository", "init", "-q")
    for number in range(5):
        _run_git(directory / "repository", "commit", "-q", "--allow-empty", "-m", str(number))
    with contextlib.closing(sqlite3.connect(directory / "bank.sqlite")) as bank, bank:
        bank.execute("PRAGMA journal_mode=WAL")
        bank.execute("CREATE TABLE account (number INTEGER PRIMARY KEY, held INTEGER)")
        bank.executemany("INSERT INTO account VALUES (?, 100)", [(n,) for n in range(ACCOUNTS)])


@contextlib.contextmanager
def busy(
    directory: Path, names: Sequence[str], seed: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run programs in a directory, and kill them at the end."""
    children = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mulligan.testing.neighbours",
                "--be",
                name,
                str(directory),
                "--seed",
                str(seed),
            ],
            stdin=subprocess.DEVNULL,
            # A process group, so that the git processes it starts are killed with it.
            start_new_session=True,
        )
        for name in names
    ]
    try:
        yield children
    finally:
        for child in children:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def judge(copy: Path, changing: Collection[str] = ()) -> Iterator[str]:
    """Yield what the programs cannot have left at any moment, except paths known to be changing."""
    yield from _judge_git(copy / "repository")
    log = copy / "app.log"
    if log.exists():
        text = log.read_bytes()
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        if lines != [b"%012d" % n for n in range(len(lines))]:
            yield "the log is not the beginning of the log"
    else:
        yield "the log is missing"
    yield from _judge_bank(copy / "bank.sqlite")
    names = {path.name for side in ("left", "right") for path in (copy / side).iterdir()}
    if (missing := RENAMED_FILES - len(names)) and not {"left", "right"} & set(changing):
        yield f"{missing} files that were renamed meanwhile are missing"
    for path in copy.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.read_bytes() == SECRET:
            yield f"{path.relative_to(copy)} comes from outside"
        if path.name.startswith(".mulligan-"):
            yield f"{path.relative_to(copy)} is a temporary file of a restore"


def _judge_git(repository: Path) -> Iterator[str]:
    done = subprocess.run(
        ["git", "fsck", "--full"], cwd=repository, capture_output=True, text=True, check=False
    )
    if done.returncode:
        yield f"git fsck: {done.stderr.strip()[-500:]}"


def _judge_bank(file: Path) -> Iterator[str]:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as bank:
            (held,) = bank.execute("SELECT sum(held) FROM account").fetchone()
            if held != ACCOUNTS * 100:
                yield f"money was lost or made: {held}"
            if bank.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                yield "the database is damaged"
    except sqlite3.Error as error:
        yield f"the database cannot be read: {error}"


def run(checkpoints: int, seed: int, names: Sequence[str]) -> list[str]:
    """Take checkpoints beside the programs, check each, and return the violations."""
    found = []
    with tempfile.TemporaryDirectory(prefix="mulligan-neighbours-") as top:
        project = Path(top) / "project"
        create_files(project)
        with mulligan.open(project) as store:
            (Path(store.path or "") / CONFIG).write_text(CONFIGURATION)
        with mulligan.open(project) as store, busy(project, names, seed) as children:
            for watching in (False, True):
                session = store.session("main", workspace=project)
                if watching:
                    session.internal.watch()
                for number in range(checkpoints):
                    how = f"checkpoint {number} by {'the watcher' if watching else 'a scan'}"
                    found += [f"{how}: {wrong}" for wrong in _checkpoint(session, Path(top))]
                session.close()
            for name, child in zip(names, children, strict=True):
                if child.poll() is not None:
                    found.append(f"the neighbour {name} has ended with {child.returncode}")
    return found


def _checkpoint(session: Session, top: Path) -> list[str]:
    taken = session.checkpoint()
    copy = top / "copy"
    problems = session.files.copy(taken, copy)
    changing = [one.path for one in taken.coverage.changing] if taken.coverage else []
    found = [f"the copy is not complete: {problem}" for problem in problems]
    found += judge(copy, changing)
    shutil.rmtree(copy)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Take checkpoints beside busy programs, or run as one of them."""
    parser = argparse.ArgumentParser(
        prog="python -m mulligan.testing.neighbours", description=__doc__
    )
    parser.add_argument("--checkpoints", type=int, default=20, help="by a scan, and by the watcher")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--beside", action="append", choices=list(PROGRAMS))
    parser.add_argument("--be", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    if options.be:
        name, directory = options.be
        PROGRAMS[name](Path(directory), random.Random(seed))
    print(f"seed {seed}", flush=True)
    found = run(options.checkpoints, seed, options.beside or list(PROGRAMS))
    for wrong in found:
        print(f"VIOLATION: {wrong}")
    print(f"{2 * options.checkpoints} checkpoints beside busy programs, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
