"""The command line, killed at a failpoint: ``python -m mulligan.testing.dying POINT NTH ARGS…``.

It is the real command line; only the failpoint hook of the store is replaced. So a test can kill
``mulligan resume`` with SIGKILL in the middle of a recovery, at a chosen step.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from functools import partial

import mulligan
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store


def main(arguments: Sequence[str]) -> None:
    """Run a command that dies when it reaches the failpoint for the nth time."""
    point, nth, *command = arguments
    failpoint = kill_at(Failpoint(point), int(nth))
    mulligan.open = partial(open_store, failpoint=failpoint)
    sys.argv = ["mulligan", *command]
    runpy.run_module("mulligan", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
