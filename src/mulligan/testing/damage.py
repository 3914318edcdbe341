"""Random damage to the files of a store.

``python -m mulligan.testing.damage --rounds 60 [--seed N]`` is part of ``make crash``. In each
round one file of a store is damaged: a flipped bit, a zeroed block, garbage, an older block or an
older copy, a truncation, a deletion. Half of the time its modification time stays, as with a
failing disk. Then commands run on it. None may end by a signal or with an unexpected error, and
whatever a command returns as correct must be correct. Finally the damage is repaired: what could be
restored before can be restored after it, byte for byte, and ``verify`` finds nothing more.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mulligan.testing.commands import Done, fingerprint, run_mulligan
from mulligan.testing.syscall_faults import BUG

BLOCK = 4096
BROKEN = 60
"""The exit code of ``verify`` for damage that remains, and of a repair with losses."""

Damage = Callable[[bytearray, bytes, random.Random], None]
"""Changes the content of a file, given an older content and a source of randomness."""


def _flip(data: bytearray, _older: bytes, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _zero(data: bytearray, _older: bytes, rng: random.Random) -> None:
    start = rng.randrange(len(data)) // BLOCK * BLOCK
    data[start : start + BLOCK] = bytes(len(data[start : start + BLOCK]))


def _garbage(data: bytearray, _older: bytes, rng: random.Random) -> None:
    start = rng.randrange(len(data)) // BLOCK * BLOCK
    data[start : start + BLOCK] = rng.randbytes(len(data[start : start + BLOCK]))


def _stale_block(data: bytearray, older: bytes, rng: random.Random) -> None:
    start = rng.randrange(len(data)) // BLOCK * BLOCK
    block = older[start : start + BLOCK]
    data[start : start + len(block)] = block


def _stale(data: bytearray, older: bytes, _rng: random.Random) -> None:
    data[:] = older


def _cut(data: bytearray, _older: bytes, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


DAMAGES: dict[str, Damage] = {
    "a flipped bit": _flip,
    "a zeroed block": _zero,
    "a block of garbage": _garbage,
    "an older block": _stale_block,
    "an older copy": _stale,
    "a lost end": _cut,
}

DELETED = "no file"


class Subject:
    """A project whose store is damaged repeatedly, each time from the same intact copy."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.project = top / "project"
        self._older = top / "older"
        self._sound = top / "sound"
        self._damaged = top / "damaged"
        self.files: dict[str, str] = {}
        (top / "home").mkdir()
        self.project.mkdir()
        self._write(1)
        self._succeed("init")
        self._checkpoint("one")
        self.store = self._where()
        shutil.copytree(self.store, self._older)
        for number in range(2, 6):
            self._write(number)
            self._checkpoint(f"more-{number}")
        self._succeed("state", "set", "memory/plan", '"x"')
        shutil.copytree(self.store, self._sound)

    def reset(self) -> None:
        """Put the intact store back in place; it stays the same directory."""
        self._replace(self._sound)

    def _replace(self, source: Path) -> None:
        for old in self.store.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(source, self.store, dirs_exist_ok=True)

    def targets(self) -> list[Path]:
        """Return the non-empty files of the store."""
        paths = sorted(self.store.rglob("*"))
        return [path for path in paths if path.is_file() and path.stat().st_size]

    def damage(self, file: Path, kind: str, rng: random.Random) -> None:
        """Damage one file."""
        if kind == DELETED:
            file.unlink()
            return
        older = self._older / file.relative_to(self.store)
        data, status = bytearray(file.read_bytes()), file.stat()
        DAMAGES[kind](data, older.read_bytes() if older.exists() else b"", rng)
        file.write_bytes(data)
        if rng.random() < 0.5:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def violations(self) -> Iterator[str]:
        """Run commands on the damaged store; yield results that no damage may cause."""
        for command in (
            ("status",),
            ("log",),
            ("verify", "--full"),
            ("checkpoint", "--label", "after"),
        ):
            done = self.run(*command)
            yield from self._unexpected(command, done)
            if command[0] == "checkpoint" and done.returncode == 0:
                yield from self._wrong_files("after", fingerprint(self.project))
        for label, files in self.files.items():
            yield from self._wrong_files(label, files)

    def repair_violations(self, *, is_journal: bool) -> Iterator[str]:
        """Repair the damaged store; yield what a repair must not cause, or not leave.

        What could be restored before it can be restored after it. Of a damaged journal, all but the
        newest checkpoint is in the packs as well.
        """
        expected = {
            label for label, files in self.files.items() if not [*self._differs(label, files)]
        }
        if is_journal:
            expected |= {*list(self.files)[:-1]}
        done = self.run("--json", "verify", "--repair")
        yield from self._unexpected(("verify", "--repair"), done)
        if done.returncode not in (0, BROKEN):
            yield f"verify --repair: exit {done.returncode}: {done.stderr[-1500:]}"
            return
        after = self.run("verify", "--full")
        if after.returncode:
            yield f"after the repair, verify finds: {after.stdout[-1500:]}{after.stderr[-500:]}"
        for label in sorted(expected):
            for violation in self._differs(label, self.files[label]):
                yield f"after the repair: {violation}"
        again = self.run("checkpoint", "--label", "after-repair")
        if again.returncode:
            yield f"after the repair, checkpoint: exit {again.returncode}: {again.stderr[-1500:]}"

    def _differs(self, label: str, files: str) -> Iterator[str]:
        """Yield why a checkpoint cannot be restored exactly."""
        to = Path(tempfile.mkdtemp(dir=self.top))
        done = self.run("restore", "--yes", label, "--to", str(to))
        if done.returncode:
            yield f"restore of {label}: exit {done.returncode}: {done.stderr[-1500:]}"
        elif fingerprint(to) != files:
            yield f"restore of {label} writes other files"
        shutil.rmtree(to)

    def keep_damaged(self) -> None:
        """Keep the damaged store as it is, before commands write to it."""
        shutil.rmtree(self._damaged, ignore_errors=True)
        shutil.copytree(self.store, self._damaged)

    def damage_again(self) -> None:
        """Put the damaged store back as it was kept."""
        self._replace(self._damaged)

    def _wrong_files(self, label: str, files: str) -> Iterator[str]:
        to = Path(tempfile.mkdtemp(dir=self.top))
        done = self.run("restore", "--yes", label, "--to", str(to))
        yield from self._unexpected(("restore", label), done)
        if done.returncode == 0 and fingerprint(to) != files:
            yield f"restore of {label} reports success and writes other files"
        shutil.rmtree(to)

    def _unexpected(self, command: Sequence[str], done: Done) -> Iterator[str]:
        if done.returncode in (BUG, 1) or done.returncode < 0 or "Traceback" in done.stderr:
            yield f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-1500:]}"

    def run(self, *arguments: str) -> Done:
        """Run the command line in the project."""
        return run_mulligan(self.top, self.project, *arguments)

    def _succeed(self, *arguments: str) -> str:
        done = self.run(*arguments)
        if done.returncode:
            raise RuntimeError(f"mulligan {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def _checkpoint(self, label: str) -> None:
        self._succeed("checkpoint", "--label", label)
        self.files[label] = fingerprint(self.project)

    def _write(self, number: int) -> None:
        for n in range(40):
            path = self.project / f"directory-{n % 4}" / f"{n}.txt"
            path.parent.mkdir(exist_ok=True)
            if n % 5 == number % 5 or not path.exists():
                path.write_text(f"{number} {n}\n" * 50)

    def _where(self) -> Path:
        """Return the store's directory, wherever the command line created it."""
        found = [Path(path).parent for path, _, names in os.walk(self.top) if "data.mdb" in names]
        return found[0]


def run(rounds: int, seed: int, only: str | None) -> list[str]:
    """Damage a store this many times; return the violations."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    found = []
    with tempfile.TemporaryDirectory(prefix="mulligan-damage-") as top:
        subject = Subject(Path(top))
        for _ in range(rounds):
            subject.reset()
            targets = [file for file in subject.targets() if only is None or only in str(file)]
            file, kind = rng.choice(targets), rng.choice([*DAMAGES, DELETED])
            subject.damage(file, kind, rng)
            counts[file.name] += 1
            subject.keep_damaged()
            violations = list(subject.violations())
            subject.damage_again()
            violations += subject.repair_violations(is_journal=file.name == "data.mdb")
            for violation in violations:
                found.append(f"{kind} in {file.relative_to(subject.store)}: {violation}")
                print(f"VIOLATION: {found[-1]}", flush=True)
    print(f"{rounds} damages, {len(found)} violations: {dict(counts)}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Damage a store; exit 1 if a command crashed or returned something wrong."""
    parser = argparse.ArgumentParser(prog="python -m mulligan.testing.damage", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", help="damage only files whose path contains this")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    return 1 if run(options.rounds, seed, options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
