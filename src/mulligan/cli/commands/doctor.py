"""mulligan doctor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.hook_settings import complete_agent
from mulligan.cli.render.text import clean, print_json

if TYPE_CHECKING:
    from mulligan.coding.doctor import Check

EXAMPLE = example("mulligan doctor", "mulligan doctor codex")
OF_ALL_AGENTS = ("store", "log")
"""The checks that are the same for all agents of a project; each result is shown once."""


@click.command("doctor", cls=Command, epilog=EXAMPLE)
@click.argument("agent", metavar="[AGENT]", required=False, shell_complete=complete_agent)
@click.pass_obj
def command(call: CliContext, agent: str | None) -> None:
    """Check that the hooks of a coding agent are installed and work.

    Without AGENT, it checks every agent that has hooks here.

    It runs a hook as the agent would, measures it, checks the structure of the store, and shows
    what failed hooks have logged. It prints one line for each check; the exit code is 105 if
    something is wrong.
    """
    from mulligan.errors import HooksUnhealthy
    from mulligan.views.coding import checks_view

    checks: list[Check] = []
    for check in chain(_helper_checks(), _agent_checks(agent)):
        if check.name in OF_ALL_AGENTS and check in checks:
            continue
        checks.append(check)
        if not call.json and (not call.quiet or not check.ok):
            _show(check)
    if call.json:
        print_json(checks_view(checks))
    failed = [check for check in checks if not check.ok]
    if failed:
        # The sentences are printed already; an error on stderr would only repeat them.
        raise click.exceptions.Exit(HooksUnhealthy.exit_code)


def _agent_checks(named: str | None) -> Iterator[Check]:
    """Yield what is found of the agent that is named, or of all that have hooks here."""
    import mulligan
    from mulligan.coding.doctor import examine, installed_agents

    place, variables = Path.cwd(), dict(os.environ)
    agents: Sequence[str | None] = [named] if named else installed_agents(place, variables)
    for agent in agents or [None]:
        yield from examine(agent, place, variables, lambda path: mulligan.open(path, False))


def _helper_checks() -> Iterator[Check]:
    """Yield that the resident helper is stopped, before a hook is run that would wait for it."""
    from mulligan.cli.find_store import state_home
    from mulligan.coding.doctor import Check
    from mulligan.resident.health import stopped_helper

    if (pid := stopped_helper(state_home())) is not None:
        said = f"The helper of hooks, process {pid}, is stopped: every hook waits for it."
        yield Check(
            "helper", False, said, f"`kill -CONT {pid}` continues it; `kill -9 {pid}` is safe."
        )


def _show(check: Check) -> None:
    click.echo(clean(f"{'✓' if check.ok else '✗'} {check.said}"))
    if check.hint and not check.ok:
        click.echo(clean(f"  {check.hint}"))
