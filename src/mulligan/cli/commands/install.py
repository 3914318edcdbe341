"""mulligan install."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli import hook_settings
from mulligan.cli.context import ACTOR, CliContext, Command, dry_run_option, example, force_option
from mulligan.cli.find_store import danger_inside
from mulligan.cli.hook_settings import complete_agent, scope_options

if TYPE_CHECKING:
    from mulligan.coding.settings.install import Installation

EXAMPLE = example("mulligan install claude", "mulligan install claude --user --dry-run")


@click.command("install", cls=Command, epilog=EXAMPLE)
@click.argument("agent", shell_complete=complete_agent)
@scope_options
@dry_run_option
@click.option("-v", "--verbose", is_flag=True, help="Show a plugin in full.")
@force_option
@click.option("--no-helper", is_flag=True, help="Run every hook as a process of its own; slower.")
@click.pass_obj
def command(
    call: CliContext, agent: str, scope: str, dry_run: bool, verbose: bool, no_helper: bool
) -> None:
    """Add Mulligan's hooks to a coding agent: claude, codex, gemini or opencode.

    From then on, every prompt and every batch of tool calls has a checkpoint of files and
    conversation. The settings are merged: hooks and keys of others stay as they are, and a copy of
    the file is kept. A file with comments is refused. It is safe to run this again.

    Hooks are sent to a helper, which the first one starts and which ends after ten minutes without
    any. If there is no helper, a hook does its work itself.

    For a project, the hooks are in the agent's settings there (.claude/settings.local.json for
    Claude Code), and the project gets a store if it has none. With --user, they are in the user's
    settings, and each project gets a store when the agent first runs there.
    """
    from mulligan.coding.settings.install import install

    target = hook_settings.target(agent, scope)
    client = None if no_helper else hook_settings.helper_client(dry_run=dry_run)
    done = install(target, hook_settings.own_command(), client=client, dry_run=True)
    store = None
    if not dry_run:
        # The store first: hooks without one would only write notes.
        store = _store(call, target.project) if scope == "project" else None
        done = install(target, hook_settings.own_command(), client=client)
    said = _said(done, dry_run=dry_run)
    if scope == "project" and (part := _part(target.project)):
        said = f"{said}\n{part}"
    if store is not None and (danger := danger_inside(store)):
        said = f"{said}\nThe store is {store}. {danger}"
    hook_settings.show(call, done, store, said, verbose=verbose)


def _store(call: CliContext, project: Path) -> Path:
    """Make the store of a project, and read its files once, so that the first hook is quick."""
    import mulligan
    from mulligan.make_store import make_store

    made = make_store(project, os.environ, actor=ACTOR, force=call.force)
    with mulligan.open(made.store, create=False) as store:
        session = store.session(
            made.sessions[0], create=False, actor=ACTOR, workspace=project, force=call.force
        )
        with session:
            session.internal.store_files()
    return made.store


def _part(project: Path) -> str | None:
    """Return that only a part of a repository is recorded; None if it is all, or none."""
    from mulligan.locate.git import work_tree

    top = work_tree(project)
    if top is None or top == project:
        return None
    return (
        f"Files of the repository outside of {project} are not recorded, nor is {top / '.git'}; "
        f"`mulligan install` in {top} records all of it."
    )


def _said(done: Installation, *, dry_run: bool) -> str:
    if dry_run:
        return f"Nothing was changed; this would be written to {done.file}."
    if not done.is_changed:
        return f"The hooks of {done.agent} are installed already: {done.file}"
    from mulligan.coding.settings.install import settings_module

    advice = getattr(settings_module(done.agent), "ADVICE", "")
    lines = (
        f"Installed the hooks of {done.agent} in {done.file}",
        "Sessions that start from now on are recorded.",
        advice,
        "`mulligan doctor` checks that they work.",
    )
    return "\n".join(line for line in lines if line)
