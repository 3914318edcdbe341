"""Opens damaged copies of a store, each in a process of its own, and says how that ended.

Run as ``examine.py STORE WORK < cases``: a JSON list of ``["cut", length]`` and
``["flip", offset, bit]`` for data.mdb. Prints ``[case, outcome]`` for each: ``right``, ``refused``
(an error of ours), ``incomplete`` (other values than in the sound store, and verify says what is
broken), ``wrong`` (verify does not), ``crashed`` (any other exception), or the name of the signal
that killed the process.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import mulligan
from mulligan.errors import MulliganError
from mulligan.testing.workload import fingerprint

OUTCOMES = {0: "right", 10: "refused", 11: "incomplete", 12: "wrong", 13: "crashed"}


def everything(directory: Path) -> dict[str, Any]:
    """Return all that can be read from a store."""
    shown: dict[str, Any] = {}
    with mulligan.open(directory, create=False) as store:
        for session in store.sessions():
            marks = session.checkpoints()
            shown[session.name] = [
                [event.hash.hex() for event in session.events()],
                [(mark.id, mark.label, mark.seq) for mark in marks],
                [fingerprint(session.state_at(mark)) for mark in marks],
                [session.point(mark.id).seq for mark in marks],
                [session.point(mark.label).seq for mark in marks if mark.label],
                fingerprint(session.state.get("")),
            ]
        return shown


def damaged(data: bytes, case: list[Any]) -> bytes:
    """Return the bytes after the damage."""
    if case[0] == "cut":
        return data[: case[1]]
    changed = bytearray(data)
    changed[case[1]] ^= 1 << case[2]
    return bytes(changed)


def outcome(directory: Path, sound: dict[str, Any]) -> str:
    """Return how reading everything ends, in a process that may die of it."""
    pid = os.fork()
    if pid == 0:
        os._exit(judged(directory, sound))
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return OUTCOMES[os.WEXITSTATUS(status)]


def judged(directory: Path, sound: dict[str, Any]) -> int:
    """Read everything and return the exit code that says how it went."""
    signal.alarm(20)
    try:
        if everything(directory) == sound:
            return 0
        with mulligan.open(directory, create=False) as store:
            return 12 if store.verify().ok else 11
    except MulliganError:
        return 10
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 13


def main(store: Path, work: Path) -> None:
    """Work through the cases."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sound = everything(store)
    shutil.copytree(store, work)
    journal = work / ".mulligan" / "journal"
    data = (journal / "data.mdb").read_bytes()
    for case in json.load(sys.stdin):
        (journal / "lock.mdb").unlink(missing_ok=True)
        (journal / "data.mdb").write_bytes(damaged(data, case))
        print(json.dumps([case, outcome(work, sound)]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
