"""Start and end of the process: what a command does not need is neither imported nor torn down."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # ``typing`` is slow to import; see ``main``

if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit.

    Importing the command line takes most of the first 100 ms. At a Ctrl-C in that time, nothing is
    open and there is nothing to report, so the exit code is enough. Commands report their own.
    """
    try:
        import gc

        # Imports make many objects and no garbage; `main` turns the collector on for the command.
        gc.disable()
        from mulligan.cli import overview

        if overview.is_wanted(sys.argv[1:]):
            overview.show()
            leave(0)
        from mulligan.cli import deferred, fast_import

        deferred.defer()
        fast_import.install()
        from mulligan.cli.main import main as run_and_exit  # imports click, which is slow

        run_and_exit()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def leave(code: int) -> NoReturn:
    """End the process as ``sys.exit`` does, but leave its memory to the system.

    The interpreter would free every module and object one by one, which takes longer than many a
    command. Exit handlers run and the streams are flushed. A thread that the interpreter would
    wait for gets the ordinary exit.
    """
    import atexit
    import os
    from threading import enumerate as threads
    from threading import main_thread

    # `os._exit` waits for no thread; one that must complete its work is not a daemon.
    if any(thread is not main_thread() and not thread.daemon for thread in threads()):
        sys.exit(code)
    # First the handlers: they mark the journal as closed cleanly, and may print.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
