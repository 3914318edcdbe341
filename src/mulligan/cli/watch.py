"""Staying beside a store, and bringing back whatever is interrupted in it."""

from __future__ import annotations

import subprocess
import sys
import time
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
    """Look after a store until Ctrl-C; the sessions that were brought back go on without us."""
    from mulligan.recovery.watch import POLL_SECONDS, RecoveryWatch

    watcher = RecoveryWatch(store, lambda name, rung: start_resume(call, name, rung))
    if not call.json and not call.quiet:
        click.echo(f"Watching {clean(call.store_path)}; Ctrl-C ends it.", err=True)
    try:
        while True:
            for notice in watcher.look():
                _tell(call, notice)
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        if not call.json and not call.quiet:
            said = "The sessions that were brought back go on; `mulligan pause` stops them."
            click.echo(said, err=True)


def start_resume(call: CliContext, name: str, rung: str) -> subprocess.Popen[bytes]:
    """Start a process that brings a session back and then supervises it, whatever becomes of us.

    It takes the rung that it is told, and no other: that is the one we speak of.
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
        stdin=subprocess.DEVNULL,
        # Standard output is for our own lines then, and for nothing else.
        stdout=sys.stderr.fileno() if call.json else None,
        start_new_session=True,
    )


def _tell(call: CliContext, notice: Notice) -> None:
    if call.json:
        print_json(notice_view(notice), indent=None)
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
