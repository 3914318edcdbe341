"""Fault injection: kill a command, or fail a call, at its Nth system call.

``python -m mulligan.testing.syscall_faults --faults 60 [--seed N]``, part of ``make crash``. A real
command runs under strace, which kills it at the Nth call that changes something on disk, or makes
that call fail with EIO, ENOSPC or EACCES. Then the store must verify clean, nothing that was on
disk before may be lost, and the command must work when it is run again.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import mulligan
from mulligan.session import Session
from mulligan.testing.commands import Done, fingerprint, run_mulligan

CALLS = (
    "write,pwrite64,writev,pwritev,ftruncate,truncate,fsync,fdatasync,syncfs,msync,sync_file_range,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,"
    "chmod,fchmod,fchmodat,utimensat,fsetxattr,fallocate,copy_file_range"
)
"""The system calls that may change something on disk."""

ERRORS = ("EIO", "ENOSPC", "EACCES")

BUG = 70
"""The exit code for an error that Mulligan does not expect."""


class Fault(NamedTuple):
    """A system call of a command, and what happens there: SIGKILL, or an error that it returns."""

    call: str
    nth: int
    error: str | None

    def __str__(self) -> str:
        return f"{self.error or 'SIGKILL'} at {self.call} {self.nth}"

    def option(self) -> str:
        """Return the option for strace, which counts each kind of call separately."""
        how = f"error={self.error}" if self.error else "signal=SIGKILL"
        return f"inject={self.call}:{how}:when={self.nth}"


class Sandbox:
    """A project with two versions of its files: ``before``, checkpointed, and ``now``, not yet."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.project = top / "work" / "project"
        self.project.mkdir(parents=True)
        (top / "home").mkdir()
        self._write("before")

    def prepare(self) -> None:
        """Create the store, take a checkpoint, and change the files."""
        self.mulligan("init")
        self.mulligan("checkpoint", "--label", "before")
        self.before = fingerprint(self.project)
        self._write("now")
        self.now = fingerprint(self.project)

    def _write(self, text: str) -> None:
        for number in range(12):
            path = self.project / f"directory-{number % 3}" / f"{text[:number]}-{number}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{text} {number}\n" * (1 + 40 * number))

    def mulligan(self, *arguments: str, prefix: Sequence[str] = ()) -> str:
        """Run a command that must succeed."""
        done = self.run(*arguments, prefix=prefix)
        if done.returncode:
            raise AssertionError(f"mulligan {' '.join(arguments)}: {done.returncode} {done.stderr}")
        return done.stdout

    def run(self, *arguments: str, prefix: Sequence[str] = ()) -> Done:
        """Run the command line in the project."""
        return run_mulligan(self.top, self.project, *arguments, prefix=prefix)

    def is_kept(self, files: str) -> bool:
        """Whether the project, or else a checkpoint, has these files."""
        if fingerprint(self.project) == files:
            return True
        with mulligan.open(self.project, create=False, read_only=True) as store:
            session = store.session("main", create=False)
            return any(
                self._copied(session, checkpoint.id) == files
                for checkpoint in reversed(session.checkpoints())
            )

    def _copied(self, session: Session, point: str) -> str:
        to = Path(tempfile.mkdtemp(dir=self.top))
        session.files.copy(point, to)
        found = fingerprint(to)
        shutil.rmtree(to)
        return found


class Scenario(NamedTuple):
    """A command to inject a fault into, its preparation, and the check afterwards."""

    command: tuple[str, ...]
    prepare: Callable[[Sandbox], None]
    check: Callable[[Sandbox], Iterator[str]]


def _check_init(sandbox: Sandbox) -> Iterator[str]:
    sandbox.mulligan("init")
    sandbox.prepare()
    yield from _check_kept(sandbox)


def _check_kept(sandbox: Sandbox) -> Iterator[str]:
    for name in ("before", "now"):
        if not sandbox.is_kept(getattr(sandbox, name)):
            yield f"the files called {name!r} are lost"


def _check_restore(sandbox: Sandbox) -> Iterator[str]:
    yield from _check_kept(sandbox)
    sandbox.mulligan("restore", "--yes", "before")
    if fingerprint(sandbox.project) != sandbox.before:
        yield "the restore, run again, does not restore the files"
    yield from _check_kept(sandbox)


def _prepare_undo(sandbox: Sandbox) -> None:
    sandbox.prepare()
    sandbox.mulligan("restore", "--yes", "before")


def _check_fork(sandbox: Sandbox) -> Iterator[str]:
    sandbox.mulligan("checkpoint")  # the next writing command cleans up leftovers
    target = sandbox.project.parent / "made"
    done = sandbox.run("-s", "made", "log", "--json")
    if done.returncode == 0 and not target.is_dir():
        yield "there is a session without its directory"
    if done.returncode and target.exists():
        yield "there is a directory without its session"
    if target.is_dir() and fingerprint(target) != sandbox.before:
        yield "the fork's directory is not complete"
    for path in sandbox.project.parent.iterdir():
        if path not in (target, sandbox.project):
            yield f"{path.name} is left over beside the fork"
    yield from _check_kept(sandbox)


def _prepared(sandbox: Sandbox) -> None:
    sandbox.prepare()


SCENARIOS = {
    "init": Scenario(("init",), lambda sandbox: None, _check_init),
    "checkpoint": Scenario(("checkpoint", "--label", "faulty"), _prepared, _check_kept),
    "restore": Scenario(("restore", "--yes", "before"), _prepared, _check_restore),
    "undo": Scenario(("undo",), _prepare_undo, _check_restore),
    "fork": Scenario(
        ("fork", "before", "--name", "made", "--to", "../made"), _prepared, _check_fork
    ),
}


def inject(scenario: Scenario, fault: Fault, top: Path) -> Iterator[str]:
    """Run a command with one fault; yield what is wrong afterwards."""
    sandbox = Sandbox(top)
    scenario.prepare(sandbox)
    trace = ("strace", "-f", "-qq", "-o", str(top / "trace"), "-e", f"trace={CALLS}")
    done = sandbox.run(*scenario.command, prefix=(*trace, "-e", fault.option()))
    if done.returncode == BUG or "Traceback" in done.stderr:
        yield f"exit {done.returncode}: {done.stderr[-1500:]}"
    elif done.returncode < 0 and done.returncode != -signal.SIGKILL:
        yield f"it was ended by signal {-done.returncode}: {done.stderr[-500:]}"
    try:
        yield from scenario.check(sandbox)
        checked = sandbox.run("verify")
        if checked.returncode:
            yield f"verify: {checked.stdout} {checked.stderr}"
    except AssertionError as error:
        yield str(error)


def count_calls(scenario: Scenario, top: Path) -> list[tuple[str, int]]:
    """Return each call of a command that can fail, with its number."""
    sandbox = Sandbox(top)
    scenario.prepare(sandbox)
    trace = top / "trace"
    sandbox.mulligan(
        *scenario.command, prefix=("strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={CALLS}")
    )
    made = re.findall(r"^(\d+) +(\w+)\(", trace.read_text(errors="replace"), re.MULTILINE)
    found: dict[str, int] = {}
    for (_thread, call), count in Counter(made).items():
        found[call] = max(count, found.get(call, 0))  # strace counts per thread
    return [(call, nth) for call, count in sorted(found.items()) for nth in range(1, count + 1)]


def missing() -> str | None:
    """Return why faults cannot be injected here, or None."""
    if shutil.which("strace") is None:
        return "there is no strace"
    tried = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False)
    return "strace may not trace" if tried.returncode else None


def run(faults: int, seed: int, names: Sequence[str]) -> list[str]:
    """Inject this many faults into each command, one per run; return the violations."""
    rng = random.Random(seed)
    found = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="mulligan-faults-") as top:
            calls = count_calls(SCENARIOS[name], Path(top))
        broken = 0
        for _ in range(faults):
            fault = Fault(*rng.choice(calls), rng.choice((None, None, *ERRORS)))
            with tempfile.TemporaryDirectory(prefix="mulligan-faults-") as top:
                for violation in inject(SCENARIOS[name], fault, Path(top)):
                    found.append(f"{name}, {fault}: {violation}")
                    broken += 1
                    print(f"VIOLATION: {found[-1]}", flush=True)
        print(f"{name}: {faults} faults at {len(calls)} calls, {broken} violations", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Inject faults into commands; exit 1 if something was lost or left broken."""
    program = "python -m mulligan.testing.syscall_faults"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--faults", type=int, default=12, help="for each command")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--command", action="append", choices=list(SCENARIOS))
    options = parser.parse_args(arguments)
    if reason := missing():
        print(f"system call faults: left out, {reason}")
        return 0
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    return 1 if run(options.faults, seed, options.command or list(SCENARIOS)) else 0


if __name__ == "__main__":
    sys.exit(main())
