"""mulligan rewind."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.confirm import confirm, warn_of_open_files
from mulligan.cli.context import (
    CliContext,
    Command,
    accept_option,
    dry_run_option,
    example,
    force_option,
    yes_option,
)
from mulligan.cli.conversations import agent_folder, continue_command, typed_in
from mulligan.cli.render.effects import refuse_left_behind
from mulligan.cli.render.pending import interruptible, warn_of_pending
from mulligan.cli.render.restored import exit_if_incomplete, print_problems
from mulligan.cli.render.text import print_json

if TYPE_CHECKING:
    from mulligan import Session, Store
    from mulligan.coding.rewind.run import RewindPlan, RewindResult, What
    from mulligan.coding.rewind.target import Conversation
    from mulligan.coding.transcripts.transcript_format import AgentFolder

EXAMPLE = example(
    "mulligan rewind",
    "mulligan rewind --to 3 --dry-run",
    "mulligan rewind --to 3",
    "mulligan rewind --to 3 --fork ../other-way",
    "mulligan rewind --undo",
)


@click.command("rewind", cls=Command, epilog=EXAMPLE)
@click.argument("named", required=False, metavar="[SESSION]")
@click.option(
    "--to", metavar="PROMPT|POINT", help="Before the prompt of this number, or to a checkpoint."
)
@click.option("--files", is_flag=True, help="Only the files.")
@click.option("--chat", is_flag=True, help="Only the conversation.")
@click.option("--both", is_flag=True, help="Files and conversation; the default.")
@click.option(
    "--fork",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Continue in this new directory, beside the present.",
)
@click.option("--undo", is_flag=True, help="Undo the last rewind.")
@dry_run_option
@accept_option
@yes_option
@force_option
@click.pass_obj
def command(
    call: CliContext,
    named: str | None,
    to: str | None,
    files: bool,
    chat: bool,
    both: bool,
    fork: Path | None,
    undo: bool,
    dry_run: bool,
    accept: bool,
    yes: bool,
) -> None:
    """Take a coding agent back to an earlier prompt: files, conversation or both.

    SESSION is a session's name, the agent's id of it, or the beginning of that; the default is the
    newest one here. Without --to, its prompts are listed, each with the files that changed until
    the next one. `--to 3` goes back to the moment before prompt 3 was sent, and
    `--to CHECKPOINT` to any other point (`mulligan log`).

    The conversation comes back under a new id: the command prints how to resume it. The present
    one stays, and is continued by its own id. A safety checkpoint keeps the present files;
    `--undo` brings them back. With --fork, the present files stay, too: both branches continue
    side by side.

    Effects after the point (`mulligan effects`) are treated as by `mulligan restore`: when files
    and conversation go back in place, those with an undo command are undone first, and the others
    need --accept-left-behind. With --files, --chat or --fork, they stay.
    """
    named, what = named or call.session, _what(files=files, chat=chat, both=both)
    if undo:
        if to is not None or what is not None or fork is not None or dry_run:
            raise click.UsageError("--undo takes no other options.")
        _undo(call, named)
    elif to is None:
        if what is not None or fork is not None or dry_run:
            raise click.UsageError("Missing option '--to'; `mulligan rewind` lists the prompts.")
        _list(call, named)
    else:
        if fork is not None and what in ("files", "chat"):
            raise click.UsageError("--fork takes files and conversation.")
        with call.working():
            found = _open(call, named)
            folder, plan = _planned(call, found, to, what or "both", fork)
        _rewind(call, found, plan, folder, dry_run=dry_run, accept=accept, yes=yes)


def _what(*, files: bool, chat: bool, both: bool) -> What | None:
    """Return what to take back, if an option says it."""
    if files + chat + both > 1:
        raise click.UsageError("Choose one of --files, --chat and --both.")
    return "files" if files else "chat" if chat else "both" if both else None


def _list(call: CliContext, named: str | None) -> None:
    from mulligan.cli.render.rewind import print_prompts
    from mulligan.coding.rewind.find_session import find_agent_session
    from mulligan.coding.rewind.target import Conversation
    from mulligan.views.rewind import prompts_view

    store = call.open_store(read_only=True)
    found = Conversation(find_agent_session(store, named, call.project), store)
    prompts = found.prompts_with_files()
    _warn_of_pending(store, found.session)
    if call.json:
        print_json(prompts_view(found, prompts))
    else:
        print_prompts(call, found, prompts)


def _warn_of_pending(store: Store, session: Session) -> None:
    """Warn of files that are half restored, also by the rewind that made the session."""
    from mulligan.coding.rewind.run import rewound_from
    from mulligan.errors import UnknownSession

    warn_of_pending(session)
    origin = rewound_from(session)
    if origin is not None:
        with suppress(UnknownSession):  # it may have been deleted since
            warn_of_pending(store.session(origin.left, create=False))


def _rewind(
    call: CliContext,
    found: Conversation,
    plan: RewindPlan,
    folder: AgentFolder | None,
    *,
    dry_run: bool,
    accept: bool,
    yes: bool,
) -> None:
    from mulligan.cli.render.rewind import (
        is_agent_in_the_way,
        print_plan,
        print_rewound,
        warn_of_agent,
        warn_of_calls,
    )
    from mulligan.coding.rewind.own_restore import is_interrupted
    from mulligan.coding.rewind.run import rewind
    from mulligan.views.rewind import planned_rewind_view, rewind_view

    session = found.session
    warn_of_pending(session)
    warn_of_agent(plan)
    warn_of_calls(plan)
    if not call.json and not call.quiet:
        if plan.files is not None:
            warn_of_open_files(plan.files.open_files)
        print_plan(plan, call.directory, None if dry_run else 20)
    _tell_source(call, session, plan)
    typed = _command(plan, folder)
    if dry_run:
        _print_dry_run(call, planned_rewind_view(plan))
        return
    if plan.undoes_effects and not accept:
        refuse_left_behind(plan.effects)
    is_used = is_agent_in_the_way(plan) or (plan.files is not None and bool(plan.files.open_files))
    confirm(call, "Rewind?", yes=yes, default=not is_used)
    with interruptible(session):
        if not is_interrupted(session, plan.point):  # the rewind goes on with its own
            call.recover(session)
        with call.working():
            done = rewind(session, plan, folder, accept_left_behind=accept)
    _remember(call, done)
    if call.json:
        print_json(rewind_view(plan, typed, done))
    else:
        print_rewound(call, done, typed, continue_command(found))
    problems = done.restored.problems if done.restored else ()
    print_problems(call, problems)
    exit_if_incomplete(problems)


def _tell_source(call: CliContext, session: Session, plan: RewindPlan) -> None:
    """Say that the files are those of an earlier moment, if none were captured at the point."""
    from mulligan.cli.render.files import tell_source

    if plan.what == "chat" or call.quiet:
        return
    held = session.internal.files_at(plan.point)
    if held is not None:
        tell_source(session, plan.point, held)


def _undo(call: CliContext, named: str | None) -> None:
    from mulligan.cli.render.rewind import print_undone
    from mulligan.coding.agent_session import agent_session
    from mulligan.coding.rewind.find_session import find_rewound
    from mulligan.coding.rewind.run import rewound_from, undo_rewind
    from mulligan.coding.rewind.target import Conversation
    from mulligan.errors import CannotRewind
    from mulligan.views.rewind import undone_view

    store = call.open_store()
    made = find_rewound(store, named)
    known = rewound_from(made)
    if known is None:
        raise CannotRewind(f"The session {made.name!r} was not made by a rewind.")
    call.session = known.left
    # Not recovered: an interrupted rewind is undone from where it stopped.
    session = call.open_session(files=True, recover=False, store=store)
    with call.working(), interruptible(session):
        done = undo_rewind(session, made)
    typed = continue_command(None if agent_session(session) is None else Conversation(session))
    if call.json:
        print_json(undone_view(made.name, known, typed, done))
    else:
        print_undone(call, session, made, typed, done)
    problems = done.problems if done else ()
    print_problems(call, problems)
    exit_if_incomplete(problems)


def _open(call: CliContext, named: str | None) -> Conversation:
    """Open the session with its files; an interrupted restore is left until the plan is agreed."""
    from mulligan.coding.rewind.find_session import find_agent_session
    from mulligan.coding.rewind.target import Conversation

    store = call.open_store()
    call.session = find_agent_session(store, named, call.project).name
    return Conversation(call.open_session(files=True, recover=False, store=store), store)


def _planned(
    call: CliContext, found: Conversation, to: str, what: What, fork: Path | None
) -> tuple[AgentFolder | None, RewindPlan]:
    from uuid import uuid4

    from mulligan.coding.rewind.run import RewindOptions, plan_rewind

    folder = agent_folder(found.agent)
    # Without `..` in it, for the messages; links stay as they are named.
    to_directory = None if fork is None else Path(os.path.abspath(fork))
    options = RewindOptions(what, call.directory, folder, to_directory)
    return folder, plan_rewind(found, to, options, lambda: str(uuid4()))


def _command(plan: RewindPlan, folder: AgentFolder | None) -> str | None:
    """Return what to type to continue; None if the conversation was not taken back."""
    if plan.entries is None or folder is None:
        return None
    typed = folder.resume_command(plan.id, plan.transcript, is_new=not plan.entries)
    return typed_in(plan.start, typed)


def _print_dry_run(call: CliContext, view: dict[str, object]) -> None:
    from mulligan.cli.render.preview import DRY_RUN

    if call.json:
        print_json(view)
    elif not call.quiet:
        click.echo(DRY_RUN)


def _remember(call: CliContext, done: RewindResult) -> None:
    """Let the store be found from the directory of a fork, even without its pointer."""
    if done.plan.fork is None or done.session is None:
        return
    from mulligan.cli.find_store import state_home
    from mulligan.cli.render.files import warn_of_shared_git
    from mulligan.locate.registry import remember_fork

    remember_fork(state_home(), Path(call.store_path), done.plan.fork.resolve(), done.session)
    warn_of_shared_git(done.plan.fork)
