"""The helper's process: ``python -m mulligan.resident STATE``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from mulligan.clock import SystemClock
from mulligan.coding import hook_log
from mulligan.coding.hooks import HookRunner
from mulligan.errors import MulliganError
from mulligan.resident.messages import CREATE, HookRequest
from mulligan.resident.place import helper_directory
from mulligan.resident.server import Helper, Settings
from mulligan.resident.version import Program, version


def main(state: Path, idle: float | None = None) -> int:
    """Serve hooks until the helper is not needed any more."""
    program = Program()

    def note(said: str) -> None:
        hook_log.note(state, SystemClock().now(), "helper", said)

    settings = Settings(
        directory=helper_directory(state),
        version=version(),
        make_runner=_runner,
        clock=SystemClock(),
        changed=program.changed,
        note=note,
    )
    helper = Helper(settings)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        if helper.open():
            helper.serve()
    except (MulliganError, OSError) as error:
        note(str(error))
        return 1
    finally:
        helper.close()
    return 0


def _runner(request: HookRequest) -> HookRunner:
    return HookRunner(request.variables, stays=True, create=CREATE in request.options)


def _stop(number: int, frame: Any) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
