"""Where the process starts: Ctrl-C ends it quietly while the command line is still imported."""

from __future__ import annotations

INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit.

    Importing the command line takes most of the first 100 ms. A Ctrl-C in that time finds nothing
    opened and nothing to report, so the exit code says it all. Commands report theirs themselves.
    """
    try:
        from mulligan.cli.main import main as run_and_exit

        run_and_exit()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
