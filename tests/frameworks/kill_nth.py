"""Runs a program whose process is killed when its store has committed so many transactions.

``python kill_nth.py N PROGRAM ARGUMENT…``; a program that commits fewer comes to its end.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import mulligan
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store


def main(nth: int, program: str, *arguments: str) -> None:
    hook = kill_at(Failpoint.JOURNAL_COMMITTED, nth)

    def opened(path: Any) -> mulligan.Store:
        return open_store(path, failpoint=hook)

    mulligan.open = opened  # type: ignore[assignment]
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
