"""mulligan status."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.pending import pending_lines
from mulligan.cli.render.terminal import CLEAR_SCREEN
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    ago,
    clean,
    echo_columns,
    local,
    place,
    plural,
    print_json,
    size,
)
from mulligan.recovery.detect import reason
from mulligan.recovery.plan import gave_up
from mulligan.session.parts.tasks import health
from mulligan.views.sessions import (
    agent_views,
    latest_checkpoint,
    session_status,
    status_view,
    store_summary,
)
from mulligan.views.tasks import task_counts

if TYPE_CHECKING:
    from pathlib import Path

    from mulligan import Session, Store
    from mulligan.recovery.plan import GaveUp


HEADERS = (
    "  session",
    "seq",
    "active",
    "checkpoint",
    "taken",
    "files",
    "status",
    "forked from",
    "directory",
)
REFRESH_SECONDS = 2.0
COLOURS = {"interrupted": "red", "failed": "red", "running": "green", "paused": "yellow"}


@click.command("status", cls=Command, epilog=example("mulligan status", "mulligan status --watch"))
@click.option("--watch", is_flag=True, help=f"Show it again every {REFRESH_SECONDS:g} seconds.")
@click.pass_obj
def command(call: CliContext, watch: bool) -> None:
    """Show the store, its sessions with their latest activity, and their agents.

    The * marks the session that commands without -s use here: the one of this directory, else
    main, or the only session in use while main is empty.

    A session is interrupted when the process that ran it is gone; `mulligan resume` recovers it.
    Its health is degraded when more than 20 % of the finished tasks have failed or a task is
    quarantined, and unhealthy above 50 %.
    """
    store = call.open_store(read_only=True)
    sessions = [s for s in store.sessions() if call.session in (None, s.name)]
    if call.session and not sessions:
        call.known_session(store, call.session)
    _show(call, store, sessions)
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop watching
        while watch:
            time.sleep(REFRESH_SECONDS)
            sessions = [s for s in store.sessions() if call.session in (None, s.name)]
            if not call.json and sys.stdout.isatty():
                click.echo(CLEAR_SCREEN, nl=False)
            _show(call, store, sessions)


def _show(call: CliContext, store: Store, sessions: list[Session]) -> None:
    if call.json:
        print_json(status_view(store, sessions))
    elif call.quiet:
        for session in sessions:
            click.echo(session.name)
    else:
        _print(call, store, sessions)


def _print(call: CliContext, store: Store, sessions: list[Session]) -> None:
    about, current = store_summary(store), call.current_session(store)
    click.echo(f"{Cell(about['store'], bold=True).styled()}")
    parts = f"format {about['format']}, {size(about['size_bytes'])}"
    click.echo(Cell(f"{parts}, {plural(len(sessions), 'session')}", dim=True).styled())
    for session in sessions:
        if session.name == current and (place_of_files := _directory(call, session)):
            said = f"current session: {current}, files in {place_of_files}"
            click.echo(clean(said))
    if sessions:
        rows = [_row(call, session, current) for session in sessions]
        echo_columns([[Cell(header, dim=True) for header in HEADERS], *rows])
    for session in sessions:
        _print_team(session)
        for line in pending_lines(session):
            click.echo(Cell(line, "red").styled())


def _directory(call: CliContext, session: Session) -> Path | None:
    """Return the directory of a session's files: its own, or that of the project."""
    return session.directory or call.project


def _row(call: CliContext, session: Session, current: str | None) -> list[Cell]:
    taken, parent = latest_checkpoint(session), session.parent
    status = session_status(session)
    return [
        Cell(f"{'*' if session.name == current else ' '} {clean(session.name)}", bold=True),
        Cell(f"#{session.head.seq}"),
        Cell(ago(session.updated)),
        Cell(taken.id[:SHORT_ID] if taken else "none", "yellow" if taken else None),
        Cell(ago(taken.time) if taken else ""),
        Cell(f"{taken.coverage.files:,}" if taken and taken.coverage else ""),
        Cell(status or "", COLOURS.get(status or "")),
        Cell(clean(place(parent)) if parent else "", "cyan"),
        Cell(clean(str(session.directory or "")), dim=True),
    ]


def _print_team(session: Session) -> None:
    """Print the agents and tasks of a session, if it has any, and what to do about it."""
    from mulligan.supervisor.requests import stopped_supervisor

    agents, tasks = agent_views(session), task_counts(session)
    if not agents and not tasks:
        return
    click.echo()
    said = [f"{count} {status.replace('_', ' ')}" for status, count in tasks.items() if count]
    words = f"tasks: {', '.join(said)}; {health(session.tasks)}" if said else "no tasks"
    click.echo(f"{Cell(clean(session.name), bold=True).styled()}  {words}")
    echo_columns([_agent_row(agent) for agent in agents])
    if (why := reason(session)) is not None:
        click.echo(Cell(f"Interrupted: {clean(why)}.", "red").styled())
        click.echo(f"`mulligan resume {clean(session.name)}` brings it back.")
    if (pid := stopped_supervisor(session)) is not None:
        words = f"The supervisor, process {pid}, is stopped: the agents are not supervised."
        click.echo(Cell(words, "red").styled())
        click.echo(f"`kill -CONT {pid}` lets it go on.")
    if (end := gave_up(session)) is not None:
        _print_gave_up(session, end)


def _print_gave_up(session: Session, end: GaveUp) -> None:
    """Print that the watcher gave up, when, and what to do next."""
    from mulligan.cli.render.recovery import gave_up_words

    said = f"At {local(end.at)} the watcher {gave_up_words(end.why, end.tried)}."
    click.echo(Cell(clean(said), "red").styled())
    name = clean(session.name)
    click.echo(f"Nothing is lost: `mulligan log -s {name}` shows where to go on from, then")
    click.echo(f"`mulligan resume {name} --from POINT`, or without --from at its newest state.")


def _agent_row(agent: dict[str, Any]) -> list[Cell]:
    process = f"process {agent['process_id']}" if agent["is_alive"] else ""
    restarts = plural(agent["restarts"], "restart") if agent["restarts"] else ""
    doing = agent["working_on"] or agent["last_action"] or ""
    return [
        Cell(f"  {clean(agent['name'])}", bold=True),
        Cell(agent["state"] or "", COLOURS.get(agent["state"] or "")),
        Cell(process, dim=True),
        Cell(restarts, "yellow"),
        Cell(clean(str(doing))),
    ]
