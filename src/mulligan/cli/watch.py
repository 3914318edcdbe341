"""`mulligan resume --watch`: the notices of a recovery watch, and the processes it starts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext
from mulligan.cli.render.recovery import gave_up_words
from mulligan.cli.render.text import clean, print_json
from mulligan.views.recovery import notice_view

if TYPE_CHECKING:
    from mulligan import Store
    from mulligan.recovery.watch import Notice

MULLIGAN = (sys.executable, "-c", "from mulligan.cli.main import main; main()")


def watch_store(call: CliContext, store: Store) -> None:
    """Watch a store until Ctrl-C; resumed sessions continue in processes of their own."""
    from mulligan.recovery.watch import RecoveryWatch

    watcher = RecoveryWatch(store, lambda name, rung: start_resume(call, name, rung))
    if not call.json and not call.quiet:
        click.echo(f"Watching {clean(call.store_path)}; Ctrl-C ends it.", err=True)
    try:
        watcher.run(lambda notice: _tell(call, notice))
    except KeyboardInterrupt:
        if not call.json and not call.quiet:
            said = "Resumed sessions continue; `mulligan pause` stops them."
            click.echo(said, err=True)


def start_resume(call: CliContext, name: str, rung: str) -> subprocess.Popen[bytes]:
    """Start a process that resumes a session and supervises it, and that outlives this one.

    It takes exactly the given rung: the one that is announced.
    """
    choices = ["--no-files"] if call.no_files else []
    choices += ["--force"] if call.force else []
    return subprocess.Popen(
        [
            *MULLIGAN,
            "resume",
            "--unattended",
            rung,
            *choices,
            "--store",
            call.store_path,
            "--",
            name,
        ],
        # It outlives this terminal and must not compete for its input.
        stdin=subprocess.DEVNULL,
        # With --json, standard output is reserved for notices.
        stdout=sys.stderr.fileno() if call.json else None,
        # Ctrl-C in the watcher's terminal must not reach the sessions that it resumed.
        start_new_session=True,
    )


def _tell(call: CliContext, notice: Notice) -> None:
    if call.json:
        print_json(notice_view(notice), indent=None)
        # A program that reads the notices must not wait for a full buffer.
        sys.stdout.flush()
    elif not call.quiet or notice.what == "stopped":
        click.echo(clean(_line(notice)), err=True)


def _line(notice: Notice) -> str:
    if notice.what == "stopped":
        said = gave_up_words(notice.why, notice.tried)
        return f"{notice.session}: {said}. `mulligan status` says what to do next."
    if notice.what == "waiting":
        again = f"trying again ({notice.rung}) in {notice.wait:.0f} s"
        return f"{notice.session}: {notice.why}; {again}."
    rung = "" if notice.rung == "retry" else f" ({notice.rung})"
    return f"{notice.session}: {notice.why}; bringing it back{rung} as process {notice.pid}."
