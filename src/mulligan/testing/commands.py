"""Run the real command line in an isolated directory, and fingerprint the result."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

import mulligan

Done = subprocess.CompletedProcess[str]


def environment(top: Path) -> dict[str, str]:
    """Return the variables of a user whose home and state are below a directory."""
    return {
        "HOME": str(top / "home"),
        "XDG_STATE_HOME": str(top / "state"),
        "PATH": os.defpath,
        "PYTHONPATH": str(Path(mulligan.__file__).parents[1]),
        "LANG": "C.UTF-8",
    }


def run_mulligan(top: Path, cwd: Path, *arguments: str, prefix: Sequence[str] = ()) -> Done:
    """Run the command line as a user whose home and state are below ``top``."""
    return subprocess.run(
        [*prefix, sys.executable, "-m", "mulligan", *arguments],
        cwd=cwd,
        env=environment(top),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def fingerprint(directory: Path) -> str:
    """Return a digest of all files below a directory, except Mulligan's own."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if relative.parts[0] == ".mulligan":
            continue
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISDIR(status.st_mode):
            content = b"/"
        else:
            content = str(status.st_mtime_ns).encode() + path.read_bytes()
        digest.update(msgspec.json.encode((str(relative), stat.S_IMODE(status.st_mode), content)))
    return digest.hexdigest()
