"""mulligan resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import (
    ACTOR,
    CliContext,
    Command,
    accept_option,
    example,
    files_options,
)
from mulligan.cli.render.recovery import (
    print_dry,
    print_nothing,
    print_prepared,
)
from mulligan.cli.render.text import print_json
from mulligan.views.recovery import resume_view
from mulligan.views.teams import run_view

if TYPE_CHECKING:
    from pathlib import Path

    from mulligan import Session, Store
    from mulligan.recovery.resume import Resumed
    from mulligan.supervisor.run import ResumeChoice, RunOutcome

EXAMPLE = example(
    "mulligan resume",
    "mulligan resume nightly --rollback --dry-run",
    "mulligan resume nightly --from tests-green --only coder",
    "mulligan resume --watch",
)


@click.command("resume", cls=Command, epilog=EXAMPLE)
@click.argument("name", metavar="[SESSION]", required=False)
@click.option("--from", "to", metavar="POINT", help="Go back to this point first.")
@click.option("--rollback", is_flag=True, help="Go back to the last good checkpoint first.")
@click.option("--only", metavar="AGENT", help="Restore only this agent's parts.")
@click.option("--reset", multiple=True, metavar="PART", help="Empty this component, e.g. memory.")
@accept_option
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--watch", is_flag=True, help="Keep running, and resume every interrupted session.")
@click.option("--unattended", "rung", hidden=True, help="Take this rung of the recovery ladder.")
@files_options
@click.pass_obj
def command(
    call: CliContext,
    name: str | None,
    to: str | None,
    rollback: bool,
    only: str | None,
    reset: tuple[str, ...],
    accept: bool,
    dry_run: bool,
    watch: bool,
    rung: str | None,
) -> None:
    """Recover an interrupted session, or continue a paused one.

    Without SESSION, the interrupted one is resumed. By default nothing acknowledged is lost: work
    continues at the first unfinished task, and files stay as they are. A recovery checkpoint keeps
    what the crash left before anything is changed. Orphan processes are ended, and the agents of
    `mulligan run` or `mulligan up` are started again.
    """
    from mulligan.recovery.watch import is_due
    from mulligan.supervisor.run import ResumeChoice

    choice = ResumeChoice(
        to=to, rollback=rollback, only=only, reset=reset, rung=rung, accept_left_behind=accept
    )
    _check(choice, watch=watch, dry_run=dry_run)
    chosen = _name(call, name)
    # A dry run opens for reading only: it waits for no lock and ends no process.
    store = call.open_store(for_agents=not dry_run, read_only=dry_run)
    if watch:
        from mulligan.cli.watch import watch_store

        watch_store(call, store)
        return
    session = _chosen(call, store, chosen, is_asked=to is not None or rollback)
    # With --unattended, look again: between the watcher's decision and now, a user may have
    # resumed it.
    if session is None or (rung is not None and not is_due(session)):
        print_nothing(call, _running(store, chosen))
    elif dry_run:
        _show_plan(call, store, session, choice)
    else:
        _resume(call, store, session, choice)


def _name(call: CliContext, name: str | None) -> str | None:
    """Return the named session; an argument or option overrides the environment."""
    context = click.get_current_context()
    # MULLIGAN_SESSION is set inside of agents and must not conflict with an explicit name.
    sources = [c.get_parameter_source("session") for c in (context, context.find_root())]
    is_typed = click.core.ParameterSource.COMMANDLINE in sources
    if name is not None and is_typed and call.session not in (None, name):
        raise click.UsageError(f"Which one, {call.session!r} (-s) or {name!r}? Name one session.")
    return name or call.session


def _check(choice: ResumeChoice, *, watch: bool, dry_run: bool) -> None:
    if choice.to is not None and choice.rollback:
        raise click.UsageError("--from and --rollback exclude each other.")
    if choice.only is not None and choice.to is None and not choice.rollback:
        raise click.UsageError("--only needs --from POINT or --rollback.")
    if watch and (dry_run or choice.to or choice.rollback or choice.only or choice.reset):
        raise click.UsageError("--watch takes no other options.")


def _chosen(call: CliContext, store: Store, name: str | None, *, is_asked: bool) -> Session | None:
    """Return the session to resume: the named one, or the only candidate."""
    from mulligan.errors import UnknownSession
    from mulligan.recovery.detect import can_be_resumed, reason, resumable

    if name is not None:
        session = call.known_session(store, name)
        return session if is_asked or can_be_resumed(session) else None
    found = resumable(store)
    if len(found) > 1:
        lines = "".join(f"\n  {s.name}: {reason(s) or 'it is paused'}" for s in found)
        raise UnknownSession(
            f"There are several sessions to resume:{lines}", hint="Name one: mulligan resume NAME."
        )
    return call.known_session(store, found[0].name) if found else None


def _running(store: Store, name: str | None) -> str | None:
    """Return which process runs the named session, if one does."""
    from mulligan.session.names import SUPERVISOR

    session = None if name is None else store.session(name, create=False, actor=ACTOR)
    held = session is not None and session.internal.is_held(SUPERVISOR)
    lease = session.internal.lease_of(SUPERVISOR) if session and held else None
    return None if lease is None else f"{name} is running: process {lease.holder.process}"


def _show_plan(call: CliContext, store: Store, session: Session, choice: ResumeChoice) -> None:
    from mulligan.cli.teams import run_options
    from mulligan.supervisor.run import preview_resume

    with run_options(call) as options:
        plan = preview_resume(
            store, session.name, choice, options, _workspace(call, store, session)
        )
    if call.json:
        print_json(resume_view(plan))
    else:
        print_dry(plan)


def _resume(call: CliContext, store: Store, session: Session, choice: ResumeChoice) -> None:
    from mulligan.cli.following import followed_directory, following
    from mulligan.cli.teams import run_options
    from mulligan.errors import RecoveryStopped
    from mulligan.recovery.plan import team_of
    from mulligan.supervisor.run import resume_session

    followed = None if call.no_files else followed_directory(team_of(session))
    try:
        with run_options(call) as options, following(store, followed):
            outcome = resume_session(
                store, session.name, choice, options, _workspace(call, store, session)
            )
    except RecoveryStopped as stopped:
        if choice.rung is None:
            raise
        click.get_current_context().exit(stopped.exit_code)  # the watcher reports it
    if outcome.run is None:
        print_prepared(call, outcome.resumed, _typed(session))
    else:
        _print_run(call, session, outcome.resumed, outcome.run)


def _workspace(call: CliContext, store: Store, session: Session) -> Path | None:
    """Return the directory of the files if no team has recorded one."""
    from mulligan.recovery.plan import team_of

    return call.files_of(store, session) if team_of(session) is None else None


def _print_run(call: CliContext, session: Session, resumed: Resumed, run: RunOutcome) -> None:
    from mulligan.cli.teams import exit_code, print_end

    if call.json:
        print_json(resume_view(resumed.plan, resumed, run_view(session, run)))
    else:
        print_end(call, session, run)
    click.get_current_context().exit(exit_code(run))


def _typed(session: Session) -> str | None:
    """Return what to type to continue the conversation of a coding agent; None for others."""
    from mulligan.coding.agent_session import agent_session

    if agent_session(session) is None:
        return None
    from mulligan.cli.conversations import continue_command
    from mulligan.coding.rewind.target import Conversation

    return continue_command(Conversation(session))
