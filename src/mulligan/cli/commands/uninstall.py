"""mulligan uninstall."""

from __future__ import annotations

import click

from mulligan.cli import hook_settings
from mulligan.cli.context import CliContext, Command, dry_run_option, example
from mulligan.cli.hook_settings import complete_agent, scope_options

EXAMPLE = example("mulligan uninstall claude", "mulligan uninstall claude --user")


@click.command("uninstall", cls=Command, epilog=EXAMPLE)
@click.argument("agent", shell_complete=complete_agent)
@scope_options
@dry_run_option
@click.pass_obj
def command(call: CliContext, agent: str, scope: str, dry_run: bool) -> None:
    """Remove Mulligan's hooks from the settings of a coding agent.

    Everything else in the file stays as it is; a file that `install` made and that has nothing else
    in it is removed. The store and everything recorded in it stay, too.
    """
    from mulligan.coding.settings.install import uninstall

    done = uninstall(hook_settings.target(agent, scope), dry_run=dry_run)
    if dry_run:
        said = f"Nothing was changed; this would be written to {done.file}."
    elif done.is_changed:
        said = f"Removed the hooks of {agent} from {done.file}."
    else:
        said = f"There are no hooks of Mulligan in {done.file}.{_elsewhere(agent, scope)}"
    hook_settings.show(call, done, None, said, verbose=False)


def _elsewhere(agent: str, scope: str) -> str:
    """Return how hooks in the other settings are removed, of the user or of the project."""
    from mulligan.coding.settings.install import read_settings, settings_module
    from mulligan.errors import InvalidSettings

    is_user = scope != "user"
    other = hook_settings.target(agent, "user" if is_user else "project")
    try:
        found = settings_module(agent).installed(read_settings(agent, other.file).settings)
    except InvalidSettings:
        return ""
    option = " --user" if is_user else ""
    return f" `mulligan uninstall {agent}{option}` removes those in {other.file}." if found else ""
