"""Entry point of the process: Ctrl-C during the imports ends it without a traceback."""

from __future__ import annotations

INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit.

    Importing the command line takes most of the first 100 ms. At a Ctrl-C in that time, nothing is
    open and there is nothing to report, so the exit code is enough. Commands report their own.
    """
    try:
        from mulligan.cli.main import main as run_and_exit

        run_and_exit()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
