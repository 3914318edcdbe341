"""mulligan hook."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import Command, example

if TYPE_CHECKING:
    from pathlib import Path

    from mulligan.coding.hooks import HookRunner

BUDGET_SECONDS = 25.0
"""How long a hook works at most; the settings that `mulligan install` writes allow it 30."""

EVENT_ID = "MULLIGAN_HOOK_ID"
"""The variable with the id of an event that the helper may have recorded already."""

EXAMPLE = example("mulligan hook claude < event.json")


# Settings of an agent may name options that only another version of Mulligan has. A usage error
# exits with 2, which agents take for a refusal of the prompt or the call.
ANY_OPTION = {"ignore_unknown_options": True, "allow_extra_args": True}


@click.command("hook", cls=Command, epilog=EXAMPLE, context_settings=ANY_OPTION)
@click.argument("agent", metavar="[AGENT]", default="claude")
@click.option("--budget", type=float, default=BUDGET_SECONDS, help="Seconds it may take at most.")
@click.option("--create", is_flag=True, help="Make a store for a project that has none.")
@click.option("--unless-served", is_flag=True, help="Do nothing if an MCP server gets the event.")
@click.option("--helper", is_flag=True, help="Start the resident helper for the next hooks.")
def command(agent: str, budget: float, create: bool, unless_served: bool, helper: bool) -> None:
    """Record an event of a coding agent; its hooks call this with JSON on stdin.

    `mulligan install` sets that up. The store is that of the agent's directory. The exit code is
    always 0, so that the agent is never disturbed: what goes wrong is a line in hooks.log in the
    state directory, which `mulligan doctor` shows.
    """
    from mulligan.coding.agent_process import agent_above
    from mulligan.coding.claude import PROCESS
    from mulligan.coding.hook_input import CLAUDE, MAX_BYTES
    from mulligan.coding.hooks import HookRunner

    variables = dict(os.environ)
    if agent != CLAUDE and (process := agent_above()) is not None:
        # Not the variable of a Claude Code in which this agent may run.
        variables[PROCESS] = str(process)
    runner = HookRunner(variables, create=create)
    timer = threading.Timer(budget, _give_up, (runner, agent, budget))
    timer.daemon = True
    timer.start()
    # One byte more than is read, so that longer JSON is told from JSON of that length.
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if unless_served and _is_served(runner.log, variables):
        return
    reply = runner.handle(data, agent, variables.get(EVENT_ID))
    with suppress(OSError):  # an agent that is gone reads no reply
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.flush()
    _look_after(runner)
    runner.close()
    if helper:
        _start_helper(runner, variables)


def _is_served(state: Path, variables: dict[str, str]) -> bool:
    """Whether an MCP server handles the hooks of the agent that runs this command."""
    from mulligan.coding.agent_process import agent_above
    from mulligan.coding.claude import agent_process
    from mulligan.resident.serving import is_served

    return is_served(state, agent_process(variables) or agent_above() or os.getppid())


def _start_helper(runner: HookRunner, variables: dict[str, str]) -> None:
    """Start the helper for the next hooks, with a client of this version."""
    from mulligan.cli.hook_settings import own_command
    from mulligan.errors import MulliganError
    from mulligan.resident.install import HOOK, install_client, is_current
    from mulligan.resident.start import start_helper
    from mulligan.resident.version import version

    try:
        if not is_current(runner.log, version()):
            install_client(runner.log, version(), [*own_command(), *HOOK])
        start_helper(runner.log, variables)
    except (MulliganError, OSError) as error:
        runner.note("helper", str(error))


def _look_after(runner: HookRunner) -> None:
    """Start upkeep in the background if it is due: no other process may use these stores."""
    from mulligan.cli.upkeep import start_prune

    with suppress(OSError):  # the next hook tries again
        for path in runner.overdue():
            start_prune(str(path))


def _give_up(runner: HookRunner, agent: str, budget: float) -> None:
    """End the process as a kill would, which a store survives; the next hook continues."""
    runner.note(agent, f"A hook took longer than its {budget:g} seconds and gave up.")
    os._exit(0)
