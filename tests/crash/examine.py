"""Opens damaged copies of a store, each in a process of its own, and says how that ended.

Run as ``examine.py STORE WORK [OLDER] < cases``: a JSON list of kinds of damage to data.mdb, see
``damaged``; OLDER is an earlier data.mdb of the store. Prints ``[case, outcome]`` for each:
``right``, ``refused`` (an error of ours), ``incomplete`` (other values than in the sound store, and
verify says what is broken), ``wrong`` (verify does not), ``crashed`` (any other exception), or the
name of the signal that killed the process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import mulligan
from mulligan.cli.main import run
from mulligan.errors import MulliganError
from mulligan.testing.workload import fingerprint

OUTCOMES = {0: "right", 10: "refused", 11: "incomplete", 12: "wrong", 13: "crashed"}
PAGE = 4_096
DAMAGE = (60, 61, 62, 63)
COMMANDS = (["log", "--json", "-s", "run"], ["status"], ["state", "set", "-s", "run", "new", "1"])


def everything(directory: Path) -> dict[str, Any]:
    """Return all that can be read from a store."""
    shown: dict[str, Any] = {}
    with mulligan.open(directory, create=False) as store:
        for session in store.sessions():
            marks = session.checkpoints()
            shown[session.name] = [
                [event.hash.hex() for event in session.events()],
                [(mark.id, mark.label, mark.seq) for mark in marks],
                [fingerprint(session.state.at(mark).get()) for mark in marks],
                [session.point(mark.id).seq for mark in marks],
                [session.point(mark.label).seq for mark in marks if mark.label],
                fingerprint(session.state.get("")),
            ]
        return shown


def damaged(data: bytes, older: bytes, case: list[Any]) -> bytes:
    """Return the bytes after the damage."""
    changed = bytearray(data)
    match case:
        case ["cut", length]:
            return data[:length]
        case ["flip", offset, bit]:
            changed[offset] ^= 1 << bit
        case ["zero", page, count]:
            changed[page * PAGE : (page + count) * PAGE] = bytes(count * PAGE)
        case ["zero bytes", offset, count]:
            changed[offset : offset + count] = bytes(count)
        case ["noise", offset, count, seed]:
            changed[offset : offset + count] = random.Random(seed).randbytes(count)
        case ["stale", page]:
            changed[page * PAGE : (page + 1) * PAGE] = older[page * PAGE : (page + 1) * PAGE]
        case ["copied", source, target]:
            changed[target * PAGE : (target + 1) * PAGE] = data[source * PAGE : (source + 1) * PAGE]
        case _:
            raise ValueError(case)
    return bytes(changed[: len(data)])


def outcome(directory: Path, sound: dict[str, Any], *, with_commands: bool) -> str:
    """Return how reading everything ends, in a process that may die of it."""
    pid = os.fork()
    if pid == 0:
        os._exit(judged(directory, sound, with_commands=with_commands))
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return OUTCOMES[os.WEXITSTATUS(status)]


def judged(directory: Path, sound: dict[str, Any], *, with_commands: bool) -> int:
    """Read everything and return the exit code that says how it went."""
    signal.alarm(120)
    try:
        if with_commands and not verify_agrees(directory, sound):
            return 12
        if everything(directory) == sound:
            return 0 if not with_commands or all(ended(directory, c) == 0 for c in COMMANDS) else 12
        with mulligan.open(directory, create=False, salvage=True) as store:
            return 12 if store.verify().ok else 11
    except MulliganError:
        codes = [ended(directory, command) for command in COMMANDS] if with_commands else []
        return 10 if all(code in (0, *DAMAGE) for code in codes) else 13
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 13


def verify_agrees(directory: Path, sound: dict[str, Any]) -> bool:
    """Whether ``verify`` goes through to its end, and calls nothing sound that is not."""
    code = ended(directory, ["verify", "--json"])
    if code not in (0, 60, 11, 12):
        raise RuntimeError(f"verify ended with {code}")
    return code != 0 or everything(directory) == sound


def ended(directory: Path, command: list[str]) -> int:
    """Run a command in this process and return its exit code."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run(["--store", str(directory), *command])


def main(store: Path, work: Path, older: Path | None = None) -> None:
    """Work through the cases."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sound = everything(store)
    journal = work / ".mulligan" / "journal"
    data = (store / ".mulligan/journal/data.mdb").read_bytes()
    before = older.read_bytes() if older else b""
    for case in json.load(sys.stdin):
        if older is not None or not work.exists():  # reading alone leaves the packs as they are
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(store, work)
        (journal / "lock.mdb").unlink(missing_ok=True)
        (journal / "data.mdb").write_bytes(damaged(data, before, case))
        found = outcome(work, sound, with_commands=older is not None)
        print(json.dumps([case, found]), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
