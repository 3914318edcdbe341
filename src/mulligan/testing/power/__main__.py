"""The power-cut run: ``python -m mulligan.testing.power --cuts 40 [--seed N]``.

It is part of ``make crash``. The real command line works on a project on a recorded disk with ext4,
xfs and btrfs. Then the power is cut at random moments: the disk is reconstructed as it would have
been, mounted, and compared with everything acknowledged before. It needs root, ``/dev/fuse`` and
the mkfs tools of these filesystems; without them it reports what it skips.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from mulligan.testing.commands import environment
from mulligan.testing.power.cuts import images
from mulligan.testing.power.disk import Record, RecordedDisk
from mulligan.testing.power.project import Line, decode_line

PROJECT = "mulligan.testing.power.project"

FILESYSTEMS = {
    "ext4": (64, ("mkfs.ext4", "-q", "-F")),
    "xfs": (320, ("mkfs.xfs", "-q", "-f")),
    "btrfs": (128, ("mkfs.btrfs", "-q", "-f", "--mixed")),
}
"""For each filesystem the size of its disk in MiB, and the command that creates it."""

WRITES_NEAR_PROMISE = 12
"""Half of the cuts come within this many writes after an acknowledgement."""


class MountFailed(Exception):
    """The kernel refused to mount a filesystem."""


class Run(NamedTuple):
    """What happened on a disk: its first image, its record, and the lines with their positions."""

    base: bytes
    record: list[Record]
    lines: list[tuple[int, Line]]


def recorded(filesystem: str, directory: Path, seed: int, steps: int) -> Run:
    """Work on a project on a new disk and return everything that reached the disk."""
    size, make = FILESYSTEMS[filesystem]
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(size << 20)
    _run(*make, str(image))
    base = image.read_bytes()
    image.unlink()
    served, mounted = directory / "served", directory / "mounted"
    served.mkdir()
    lines: list[tuple[int, Line]] = []
    with RecordedDisk(base, served) as disk, mount(disk.path, mounted):
        command = [sys.executable, "-m", PROJECT, "run", str(mounted), str(seed), str(steps)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for line in child.stdout:
                # Read after the acknowledgement arrived: the promise may be older than this
                # position, but never younger.
                lines.append((len(disk.record), decode_line(line)))
        if disk.failure is not None:
            raise disk.failure
        if child.returncode:
            raise RuntimeError(f"the workload on {filesystem} ended with {child.returncode}")
        record = list(disk.record)
    return Run(base, record, lines)


def cut_positions(run: Run, cuts: int, rng: random.Random) -> list[int]:
    """Return where the power is cut: anywhere, and half of the time soon after a promise."""
    last = len(run.record)
    chosen = [rng.randrange(last) for _ in range(cuts // 2)]
    for _ in range(cuts - len(chosen)):
        position, _line = rng.choice(run.lines)
        chosen.append(min(last, position + rng.randrange(WRITES_NEAR_PROMISE)))
    return chosen


def check(run: Run, directory: Path, cuts: int, rng: random.Random) -> Iterator[str]:
    """Cut the power repeatedly; yield the promises that do not hold."""
    image = directory / "image"
    for position, fate, data in images(run.base, run.record, cut_positions(run, cuts, rng), rng):
        image.write_bytes(data)
        lines = [line for stamp, line in run.lines if stamp <= position]
        where = f"cut at {position} of {len(run.record)}, writes since the last flush {fate}"
        try:
            with mount(image, directory / "mounted"):
                command = [sys.executable, "-m", PROJECT, "check", str(directory / "mounted")]
                done = subprocess.run(
                    command,
                    input=msgspec.json.encode(lines),
                    env=environment(directory / "mounted"),
                    capture_output=True,
                    check=False,
                )
        except MountFailed as error:
            print(f"{where}: the filesystem itself did not survive: {error}", flush=True)
            continue
        if done.returncode:
            yield f"{where}: the check failed: {done.stderr.decode()[-2000:]}"
        for violation in done.stdout.decode().splitlines():
            yield f"{where}: {violation}"


@contextmanager
def mount(image: Path, at: Path) -> Iterator[None]:
    """Mount an image through a loop device."""
    at.mkdir(exist_ok=True)
    try:
        _run("mount", "-o", "loop", str(image), str(at))
    except RuntimeError as error:
        raise MountFailed(str(error)) from error
    try:
        yield
    finally:
        _run("umount", str(at))


def missing(filesystem: str) -> str | None:
    """Return why the test cannot run here, or None."""
    if os.geteuid():
        return "only root may mount a disk"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "there is no /dev/fuse"
    tools = (FILESYSTEMS[filesystem][1][0], "mount", "umount", "losetup")
    return next((f"there is no {tool}" for tool in tools if shutil.which(tool) is None), None)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Cut the power on each filesystem; exit 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m mulligan.testing.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--filesystem", action="append", choices=list(FILESYSTEMS))
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    broken = 0
    for filesystem in options.filesystem or FILESYSTEMS:
        if reason := missing(filesystem):
            print(f"{filesystem}: left out, {reason}", flush=True)
            continue
        directory = Path(tempfile.mkdtemp(prefix="mulligan-power-", dir=_memory()))
        try:
            run = recorded(filesystem, directory, seed, options.steps)
            found = list(check(run, directory, options.cuts, random.Random(seed)))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        print(
            f"{filesystem}: {options.cuts} cuts over {len(run.record)} writes and flushes, "
            f"{len(found)} broken promises (seed {seed})",
            flush=True,
        )
        for violation in found:
            print(f"VIOLATION on {filesystem}: {violation}")
        broken += len(found)
    return 1 if broken else 0


def _memory() -> str | None:
    """Return a directory in memory, because an image is written for each cut."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108


if __name__ == "__main__":
    sys.exit(main())
