"""mulligan status."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.pending import pending_lines
from mulligan.cli.render.streams import DEFAULT_COLUMNS, terminal_columns
from mulligan.cli.render.terminal import CLEAR_SCREEN
from mulligan.cli.render.text import (
    GAP,
    SHORT_ID,
    Cell,
    ago,
    clean,
    echo_broken,
    echo_columns,
    local,
    place,
    plural,
    print_json,
    size,
)
from mulligan.recovery.detect import gave_up, reason, stopped_supervisor
from mulligan.session.parts.tasks import health
from mulligan.store import engine_of
from mulligan.upkeep.drill.record import last_drill
from mulligan.upkeep.recorded import first_problem
from mulligan.upkeep.verify.record import newest_verify
from mulligan.views.drift import drift_status
from mulligan.views.effects import acts_view
from mulligan.views.sessions import (
    agent_views,
    latest_checkpoint,
    project_directory,
    session_status,
    status_view,
    store_summary,
)
from mulligan.views.tasks import task_counts
from mulligan.views.upkeep import upkeep_status

if TYPE_CHECKING:
    from mulligan import Session, Store
    from mulligan.recovery.detect import GaveUp
    from mulligan.upkeep.verify.record import VerifyResult
    from mulligan.views.upkeep import UpkeepStatus


HEADERS = (
    "  session",
    "seq",
    "active",
    "checkpoint",
    "taken",
    "files",
    "status",
    "drill",
    "forked from",
    "directory",
)
LEAST_IMPORTANT = ("seq", "files", "taken", "forked from", "drill")
"""The columns that a narrow terminal drops after empty ones, in this order."""

RARE = ("forked from", "directory")
"""The columns that only a store with forks has."""

MIN_LAST_WIDTH = 16
REFRESH_SECONDS = 2.0
MAX_RECENT = 8
"""How many sessions are listed that need no attention: those with the latest activity."""

MAX_DAMAGED = 5
"""How many checkpoints that lost something are listed."""

AGENT_SESSION = "agent_session"
"""What only the state of a coding agent's session has."""

COLOURS = {"interrupted": "red", "failed": "red", "running": "green", "paused": "yellow"}


@click.command("status", cls=Command, epilog=example("mulligan status", "mulligan status --watch"))
@click.option("--all", "every", is_flag=True, help="List older and finished ones, too.")
@click.option("--watch", is_flag=True, help=f"Show it again every {REFRESH_SECONDS:g} seconds.")
@click.option("--prometheus", is_flag=True, help="Print metrics in the text format of Prometheus.")
@click.pass_obj
def command(call: CliContext, every: bool, watch: bool, prometheus: bool) -> None:
    """Show the store, its sessions with their latest activity, and their agents.

    The * marks the session that commands without -s use here: the one of this directory, else
    main, or the only session in use while main is empty.

    A session is interrupted when the process that ran it is gone; `mulligan resume` recovers it.
    Its health is degraded when more than 20 % of the finished tasks have failed or a task is
    quarantined, and unhealthy above 50 %.
    """
    if prometheus and (watch or call.json):
        raise click.UsageError("--prometheus goes with neither --watch nor --json.")
    # For reading only: status must answer while a stopped process holds the write lock.
    store = call.open_store(read_only=True)
    sessions = [s for s in store.sessions() if call.session in (None, s.name)]
    if call.session and not sessions:
        call.known_session(store, call.session)
    if prometheus:
        from mulligan.views import metrics  # few calls need it

        click.echo(metrics.prometheus(metrics.store_metrics(store, sessions)), nl=False)
        return
    _show(call, store, sessions, every=every)
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop watching
        while watch:
            time.sleep(REFRESH_SECONDS)
            sessions = [s for s in store.sessions() if call.session in (None, s.name)]
            if not call.json and sys.stdout.isatty():
                click.echo(CLEAR_SCREEN, nl=False)
            _show(call, store, sessions, every=every)


def _show(call: CliContext, store: Store, sessions: list[Session], *, every: bool) -> None:
    if call.json:
        print_json(status_view(store, sessions, call.current_session(store)))
    elif call.quiet:
        for session in sessions:
            click.echo(session.name)
    else:
        _print(call, store, sessions, every=every)


def _print(call: CliContext, store: Store, sessions: list[Session], *, every: bool) -> None:
    about, current = store_summary(store), call.current_session(store)
    click.echo(f"{Cell(about['store'], bold=True).styled()}")
    parts = f"format {about['format']}, {size(about['size_bytes'])}"
    echo_broken(f"{parts}, {plural(len(sessions), 'session')}", dim=True)
    _print_upkeep(upkeep_status(engine_of(store)))
    _print_verify(newest_verify(store, sessions))
    if not call.has_pointer:
        click.echo("This directory cannot be written; its store is found by its path.")
    for session in sessions:
        if session.name == current and (
            files := session.files.directory or project_directory(store)
        ):
            echo_broken(clean(f"current session: {current}, files in {files}"))
    finished = [] if every else _finished_conversations(sessions, current)
    others = [session for session in sessions if session not in finished]
    listed = others if every else _listed(others, current)
    if listed:
        rows = _fitted([_row(session, current) for session in listed], terminal_columns())
        echo_columns(rows, below=not sys.stdout.isatty(), width=DEFAULT_COLUMNS)
    if finished:
        newest = ago(max(session.updated for session in finished))
        count = plural(len(finished), "finished conversation")
        click.echo(f"  and {count}, the last {newest}: `mulligan status --all`")
    if more := len(others) - len(listed):
        click.echo(f"  and {plural(more, 'older session')}: `mulligan status --all`")
    for session in listed:
        if every or session.name == current or not _is_finished(session):
            _print_team(session)
        _print_drift(session)
        _print_failed_drill(session)
        _print_damaged(session)
        _print_acts(session)
        for line in pending_lines(session):
            echo_broken(line, "red")


def _finished_conversations(sessions: list[Session], current: str | None) -> list[Session]:
    """Return the sessions of coding agents that have ended, and need no attention."""
    return [
        session
        for session in sessions
        if session.name != current
        and session.state.get(AGENT_SESSION) is not None
        and _is_finished(session)
        and not _needs_attention(session)
    ]


def _listed(sessions: list[Session], current: str | None) -> list[Session]:
    """Return the sessions that someone has to look at, and those with the latest activity."""
    if len(sessions) <= MAX_RECENT:
        return sessions
    newest = sorted(sessions, key=lambda session: session.updated, reverse=True)[:MAX_RECENT]
    recent = {session.name for session in newest} | {current}
    return [session for session in sessions if session.name in recent or _needs_attention(session)]


def _needs_attention(session: Session) -> bool:
    if session_status(session) in COLOURS:
        return True
    acts, drill = acts_view(session), last_drill(session)
    return bool(
        acts["pending"]
        or acts["in_doubt"]
        or (drill is not None and not drill.ok)
        or session.internal.losses()
        or any(found["isolated"] for found in drift_status(session))
        or pending_lines(session)
    )


def _is_finished(session: Session) -> bool:
    """Whether all agents of a session are done, without tasks: its row says everything."""
    agents = agent_views(session)
    return not task_counts(session) and all(agent["state"] == "done" for agent in agents)


def _fitted(rows: list[list[Cell]], width: int) -> list[list[Cell]]:
    """Return rows with their headers, without the columns that there is no room for."""
    table = [[Cell(header, dim=True) for header in HEADERS], *rows]
    kept = list(range(len(HEADERS)))
    widths = [max(len(row[i].text) for row in table) for i in kept]
    empty = [i for i in kept if not any(row[i].text for row in rows)]

    def needed(last: int) -> int:
        return sum(widths[k] + len(GAP) for k in kept[:-1]) + min(widths[kept[-1]], last)

    for i in (*reversed(empty), *map(HEADERS.index, LEAST_IMPORTANT)):
        is_rare = i in empty and HEADERS[i] in RARE
        # A terminal cuts the last column, but it should show something. In a pipe it is below,
        # without its header, which only a directory can do without.
        is_below = HEADERS[kept[-1]] == "directory" and not sys.stdout.isatty()
        least = 0 if is_below and i not in empty else MIN_LAST_WIDTH
        if i in kept and (is_rare or needed(least) > width):
            kept.remove(i)
    if needed(widths[kept[-1]]) > width and not sys.stdout.isatty():
        table[0][kept[-1]] = Cell("")
    return [[row[i] for i in kept] for row in table]


def _print_upkeep(status: UpkeepStatus) -> None:
    """Print the quota, the last prune, and whether checkpoints hold files."""
    said = []
    if status.quota is not None:
        said.append(f"quota {size(status.quota)}")
    if status.last is not None:
        said.append(
            f"pruned {ago(status.last)}, {plural(status.removed or 0, 'checkpoint')} removed"
        )
    if status.next is not None:
        said.append(f"next prune after {local(status.next)}")
    if said:
        echo_broken(", ".join(said), dim=True)
    if status.error is not None:
        echo_broken(f"The last prune failed: {clean(status.error)}", "red")
    if (held := status.held_by) is not None:
        is_stopped = ", and is stopped" if held.is_stopped else ""
        who = f"process {held.pid} ({clean(held.command)[:200]})"
        said_by = f"No space is released: {who} is {held.doing}{is_stopped}."
        echo_broken(said_by, "red")
    if status.warning is not None:
        echo_broken(f"{status.warning[0].upper()}{status.warning[1:]}.", "yellow")
    for purge in status.unfinished:
        said_of = f"Purge {purge.number} ({purge}) is not finished: bytes of it may be left."
        echo_broken(clean(said_of), "red")
        click.echo("`mulligan purge --finish` finishes it.")
    if status.state_only is not None:
        why = f"Checkpoints hold no files now: {status.state_only}."
        echo_broken(why, "red")
        click.echo("`mulligan prune --dry-run` shows what is kept and why.")


def _print_verify(last: VerifyResult | None) -> None:
    """Print when bytes of the store were last checked, and what that found."""
    if last is None:
        echo_broken("not verified yet", dim=True)
    elif last.ok:
        part = "all bytes" if last.full else f"{size(last.read_bytes)} of {size(last.stored_bytes)}"
        echo_broken(f"verified {ago(last.at)}: {part}, no problems", dim=True)
    else:
        said = f"The check of the store at {local(last.at)} found damage: {first_problem(last)}."
        echo_broken(clean(said), "red")
        echo_broken(
            "`mulligan verify --full` lists all of it, `mulligan verify --repair` repairs it."
        )


def _row(session: Session, current: str | None) -> list[Cell]:
    taken, parent = latest_checkpoint(session), session.parent
    status = session_status(session)
    return [
        Cell(f"{'*' if session.name == current else ' '} {clean(session.name)}", bold=True),
        Cell(f"#{session.head.seq}"),
        Cell(ago(session.updated)),
        Cell(taken.id[:SHORT_ID] if taken else "none", "yellow" if taken else None),
        Cell(ago(taken.time) if taken else ""),
        Cell(f"{taken.coverage.files:,}" if taken and taken.workspace and taken.coverage else ""),
        Cell(status or "", COLOURS.get(status or "")),
        _drill_cell(session) if taken else Cell(""),
        Cell(clean(place(parent)) if parent else "", "cyan"),
        Cell(clean(str(session.files.directory or "")), dim=True),
    ]


def _drill_cell(session: Session) -> Cell:
    """Return how the last drill of a session went; one that never had any is not known good."""
    last = last_drill(session)
    if last is None:
        return Cell("never", "yellow")
    return Cell(f"passed {ago(last.at)}") if last.ok else Cell("FAILED", "red")


def _print_failed_drill(session: Session) -> None:
    """Print what the last drill found, if it failed."""
    last = last_drill(session)
    if last is not None and not last.ok:
        said = f"The drill of {session.name} at {local(last.at)} failed: {first_problem(last)}."
        echo_broken(clean(said), "red")
        name = clean(session.name)
        echo_broken(
            f"`mulligan verify --full` lists all damage; `mulligan drill -s {name}` tries again."
        )


def _print_damaged(session: Session) -> None:
    """Print the checkpoints that lost something to damage."""
    losses = session.internal.losses()
    for seq, loss in list(losses.items())[-MAX_DAMAGED:]:
        said = f"Checkpoint #{seq} of {session.name} lost {'; '.join(loss.parts)}."
        echo_broken(clean(said), "red")
    if losses:
        more = len(losses) - MAX_DAMAGED
        rest = f"{more} older ones lost something, too; " if more > 0 else ""
        echo_broken(f"{rest}`mulligan restore '#SEQ' --partial` restores what is left of one.")


def _print_drift(session: Session) -> None:
    """Print what was last done about the drift of each agent, and what a person has to do."""
    for found in drift_status(session):
        name, why = clean(found["agent"]), clean(str(found["why"]))
        if found["isolated"]:
            echo_broken(f"{name} is isolated: {why}.", "red")
            echo_broken(
                f"`mulligan drift --explain` shows it; `mulligan drift release {name}` and "
                "`mulligan resume` let it go on."
            )
        else:
            words = f"{name} drifted {ago(found['timestamp'])} ({found['rung']}): {why}."
            echo_broken(words, "yellow")


def _print_acts(session: Session) -> None:
    """Print how many effects and calls of tools wait for someone to look at them."""
    found, name = acts_view(session), clean(session.name)
    if found["pending"]:
        waits = "waits" if found["pending"] == 1 else "wait"
        echo_broken(
            f"{name}: {plural(found['pending'], 'effect')} {waits} for approval: "
            f"`mulligan effects -s {name} --pending`"
        )
    for count, what, command in (
        (found["in_doubt"], "effect", "effects"),
        (found["calls_in_doubt"], "tool call", "tools"),
    ):
        if count:
            words = f"{name}: {plural(count, what)} in doubt, which may have happened"
            echo_broken(words, "yellow")
            echo_broken(f"`mulligan {command} -s {name} --in-doubt` shows what to check.")
    if found["left_behind"]:
        left = plural(found["left_behind"], "effect")
        echo_broken(f"{name}: {left} beyond its timeline: `mulligan effects -s {name}`")


def _print_team(session: Session) -> None:
    """Print the agents and tasks of a session, if it has any, and what to do about it."""
    agents, tasks = agent_views(session), task_counts(session)
    if not agents and not tasks:
        return
    click.echo()
    said = [f"{count} {status.replace('_', ' ')}" for status, count in tasks.items() if count]
    words = f"tasks: {', '.join(said)}; {health(session.tasks)}" if said else "no tasks"
    click.echo(f"{Cell(clean(session.name), bold=True).styled()}  {words}")
    echo_columns([_agent_row(agent) for agent in agents], below=True, width=DEFAULT_COLUMNS)
    if (why := reason(session)) is not None:
        echo_broken(f"Interrupted: {clean(why)}.", "red")
        click.echo(f"`mulligan resume {clean(session.name)}` recovers it.")
    if (pid := stopped_supervisor(session)) is not None:
        words = f"The supervisor, process {pid}, is stopped: the agents are not supervised."
        echo_broken(words, "red")
        click.echo(f"`kill -CONT {pid}` continues it.")
    if (end := gave_up(session)) is not None:
        _print_gave_up(session, end)


def _print_gave_up(session: Session, end: GaveUp) -> None:
    """Print that the watcher gave up, when, and what to do next."""
    from mulligan.cli.render.recovery import gave_up_words

    said = f"At {local(end.at)} the watcher {gave_up_words(end.why, end.tried)}."
    echo_broken(clean(said), "red")
    name = clean(session.name)
    echo_broken(
        f"Nothing is lost: `mulligan log -s {name}` shows the checkpoints; then "
        f"`mulligan resume {name} --from POINT`, or without --from to keep its newest state."
    )


def _agent_row(agent: dict[str, Any]) -> list[Cell]:
    pid = agent["process_id"] if agent["is_alive"] else None
    process = "" if pid is None else f"process {pid}"
    restarts = plural(agent["restarts"], "restart") if agent["restarts"] else ""
    doing = agent["working_on"] or agent["last_action"] or ""
    return [
        Cell(f"  {clean(agent['name'])}", bold=True),
        Cell(agent["state"] or "", COLOURS.get(agent["state"] or "")),
        Cell(process, dim=True),
        Cell(restarts, "yellow"),
        Cell(clean(str(doing))),
    ]
