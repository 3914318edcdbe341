"""mulligan resume."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import ACTOR, CliContext, Command, example, files_options
from mulligan.cli.render.recovery import (
    print_dry,
    print_found,
    print_nothing,
    print_plan,
    print_prepared,
)
from mulligan.cli.render.text import SHORT_ID, clean, print_json
from mulligan.views.recovery import resume_view
from mulligan.views.teams import run_view

if TYPE_CHECKING:
    from pathlib import Path

    from mulligan import Session, Store
    from mulligan.recovery.detect import Interruption
    from mulligan.recovery.plan import ResumePlan
    from mulligan.recovery.resume import Resumed

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
@click.option("--only", metavar="AGENT", help="Bring back only what is this agent's from there.")
@click.option("--reset", multiple=True, metavar="PART", help="Empty this component: memory.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--watch", is_flag=True, help="Stay, and bring back whatever is interrupted.")
@click.option("--unattended", "rung", hidden=True, help="Take this rung of the ladder.")
@files_options
@click.pass_obj
def command(
    call: CliContext,
    name: str | None,
    to: str | None,
    rollback: bool,
    only: str | None,
    reset: tuple[str, ...],
    dry_run: bool,
    watch: bool,
    rung: str | None,
) -> None:
    """Bring back a session that was interrupted, or go on with one that was paused.

    Without SESSION it is the one that was interrupted. By default nothing that was acknowledged is
    lost: the work goes on at the first task that is not done, and files stay as they are. What the
    crash left is kept in a recovery checkpoint before anything is touched. Agents that
    `mulligan run` or `mulligan up` had started are started again; processes of before are ended.
    """
    how = {"to": to, "rollback": rollback, "only": only, "reset": reset}
    _check(how, watch=watch, dry_run=dry_run)
    chosen = _name(call, name)
    store = call.open_store(for_agents=not dry_run, read_only=dry_run)
    if watch:
        from mulligan.cli.watch import watch_store

        watch_store(call, store)
        return
    session = _chosen(call, store, chosen, is_asked=to is not None or rollback)
    if session is None or (rung is not None and not _is_due(session)):
        print_nothing(call, _running(store, chosen))
    elif dry_run:
        _show_plan(call, store, session, how)
    else:
        _resume(call, store, session, how, rung)


def _name(call: CliContext, name: str | None) -> str | None:
    """Return the session that was named, in whichever place; one from the environment gives way."""
    context = click.get_current_context()
    sources = [c.get_parameter_source("session") for c in (context, context.find_root())]
    is_typed = click.core.ParameterSource.COMMANDLINE in sources
    if name is not None and is_typed and call.session not in (None, name):
        raise click.UsageError(f"Which one, {call.session!r} (-s) or {name!r}? Name one session.")
    return name or call.session


def _check(how: dict[str, Any], *, watch: bool, dry_run: bool) -> None:
    if how["to"] is not None and how["rollback"]:
        raise click.UsageError("--from and --rollback exclude each other.")
    if how["only"] is not None and how["to"] is None and not how["rollback"]:
        raise click.UsageError("--only needs --from POINT, or --rollback: where from?")
    if watch and (dry_run or any(how.values())):
        raise click.UsageError("--watch decides by itself; it takes no other choices.")


def _chosen(call: CliContext, store: Store, name: str | None, *, is_asked: bool) -> Session | None:
    """Return the session to resume: the named one, or the one there can be no doubt about."""
    from mulligan.errors import UnknownSession
    from mulligan.recovery.detect import is_paused, reason

    if name is not None:
        session = call.known_session(store, name)
        return session if is_asked or _can_go_on(session) else None
    sessions = store.sessions()
    found = [s for s in sessions if reason(s) is not None] or [s for s in sessions if is_paused(s)]
    if len(found) > 1:
        lines = "".join(f"\n  {s.name}: {reason(s) or 'it is paused'}" for s in found)
        raise UnknownSession(
            f"There are several sessions to resume:{lines}", hint="Name one: mulligan resume NAME."
        )
    return call.known_session(store, found[0].name) if found else None


def _running(store: Store, name: str | None) -> str | None:
    """Return who runs the session that was named, if somebody does."""
    from mulligan.session.names import SUPERVISOR

    session = None if name is None else store.session(name, create=False, actor=ACTOR)
    held = session is not None and session.internal.is_held(SUPERVISOR)
    lease = session.internal.lease_of(SUPERVISOR) if session and held else None
    return None if lease is None else f"{name} is running: process {lease.holder.process}"


def _can_go_on(session: Session) -> bool:
    from mulligan.recovery.detect import is_paused, reason
    from mulligan.session.names import SUPERVISOR

    failed = session.internal.control("status") == "failed" and not session.internal.is_held(
        SUPERVISOR
    )
    return failed or is_paused(session) or reason(session) is not None


def _is_due(session: Session) -> bool:
    """Whether a session is to be brought back still: a person may have been quicker."""
    from mulligan.recovery.detect import reason
    from mulligan.recovery.watch import failed_to_come_back

    return reason(session) is not None or failed_to_come_back(session) is not None


def _show_plan(call: CliContext, store: Store, session: Session, how: dict[str, Any]) -> None:
    from mulligan.recovery.detect import interruption
    from mulligan.recovery.plan import plan_resume

    root, is_accepted = _workspace(call, store, session)
    if root is not None and session.pending is None:
        name = session.name
        session = store.session(name, False, actor=ACTOR, workspace=root, force=is_accepted)
        click.get_current_context().call_on_close(session.close)
    plan = plan_resume(session, found=interruption(session), **how)
    if call.json:
        print_json(resume_view(plan))
    else:
        print_dry(plan)


def _resume(
    call: CliContext, store: Store, session: Session, how: dict[str, Any], rung: str | None
) -> None:
    from mulligan.errors import RecoveryStopped
    from mulligan.recovery.detect import interruption

    found = interruption(session)
    try:
        resumed = prepare(call, store, session, how, found, rung=rung)
    except RecoveryStopped as stopped:
        if rung is None:
            raise
        click.get_current_context().exit(stopped.exit_code)  # the watcher says so
    if resumed.plan.workflow is None:
        print_prepared(call, resumed)
        return
    if not call.json and not call.quiet:
        kept = resumed.checkpoint.id[:SHORT_ID]
        click.echo(f"What was there before is kept in the checkpoint {kept}.", err=True)
    _run_team(call, store, session, resumed)


def prepare(
    call: CliContext,
    store: Store,
    session: Session,
    how: dict[str, Any],
    found: Interruption | None,
    *,
    rung: str | None = None,
    same_team: bool = True,
) -> Resumed:
    """Do everything but start the processes, as the only one who does.

    ``rung`` is the one of the ladder that was chosen, if nobody is there to say ``how``.
    ``same_team`` says that the processes of before will be started again.
    """
    from mulligan.recovery.ladder import STOP
    from mulligan.recovery.plan import plan_resume, plan_rung
    from mulligan.recovery.resume import open_session, resume

    if threading.current_thread() is threading.main_thread():
        # Whoever holds the lease is sent requests; this one would be ended by them.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    root, is_accepted = _workspace(call, store, session)
    handle = open_session(store, session.name, root, force=is_accepted)

    def planned() -> ResumePlan:
        if rung is not None:
            return plan_rung(handle, rung, found=found)
        return plan_resume(handle, found=found, **how)

    try:
        plan = planned()  # what is wrong with it is said before anything is ended
        if plan.workflow is not None and same_team and plan.rung != STOP:
            _check_team(plan.workflow)
        speaks = not call.json and not call.quiet
        if speaks:
            print_found(plan)
        _end_orphans(call, store, handle)
        plan = planned()
        if speaks:
            print_plan(plan)
        with call.working():
            return resume(store, handle, plan)
    finally:
        handle.close()


def _check_team(plain: dict[str, Any]) -> None:
    """Refuse a team that cannot be started, before anything is brought back for it."""
    from mulligan.supervisor.team import check_variables
    from mulligan.supervisor.workflow import from_plain

    check_variables(from_plain(plain), os.environ)


def _end_orphans(call: CliContext, store: Store, session: Session) -> None:
    """End what an earlier supervisor left running, before it can change any more."""
    from mulligan.supervisor.orphans import end_orphans

    if session.state.get("orchestrator/workflow") is None:
        return
    for orphan in end_orphans(store, session.name, session.lease):
        if not call.quiet:
            said = f"{orphan.agent}: ended process {orphan.pid} of an earlier supervisor"
            click.echo(clean(said), err=True)


def _workspace(call: CliContext, store: Store, session: Session) -> tuple[Path | None, bool]:
    """Return where the files are, and whether somebody has accepted that directory already.

    It is where the team worked, or else where the command line finds them.
    """
    from pathlib import Path

    workflow = session.state.get("orchestrator/workflow")
    if not isinstance(workflow, dict):
        return call.files_of(store, session), call.force
    place = None if call.no_files else workflow.get("workspace")
    return (Path(place) if place else None), True


def _run_team(call: CliContext, store: Store, session: Session, resumed: Resumed) -> None:
    """Start the agents again, and stay until they are done."""
    import msgspec

    from mulligan.cli.teams import exit_code, print_end, supervise_team
    from mulligan.recovery.resume import try_out
    from mulligan.supervisor.workflow import from_plain

    workflow = from_plain(resumed.plan.workflow)
    if call.no_files:
        workflow = msgspec.structs.replace(workflow, workspace=None)
    status = try_out(
        session,
        resumed.at,
        lambda: supervise_team(call, store, session, workflow, resumed=True),
    )
    if call.json:
        run = run_view(session, workflow.agents, status, session.internal.control("reason"))
        print_json(resume_view(resumed.plan, resumed, run))
    else:
        print_end(call, session, workflow, status)
    if status == "failed" and not call.quiet:
        again = f"mulligan resume {clean(session.name)} --rollback"
        click.echo(f"It failed again; `{again}` goes to the last good checkpoint.", err=True)
    click.get_current_context().exit(exit_code(session, None, status))
