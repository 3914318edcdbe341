"""mulligan mcp."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from mulligan.cli.context import CliContext, Command, example

EXAMPLE = example(
    "mulligan mcp --directory ~/project",
    "claude mcp add mulligan -- mulligan mcp",
    "codex mcp add mulligan -- mulligan mcp",
)


@click.command("mcp", cls=Command, epilog=EXAMPLE)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Work for this directory; by default for the current one.",
)
@click.pass_obj
def command(call: CliContext, directory: Path | None) -> None:
    """Serve agents over MCP on standard input and output, until the input ends.

    An agent gets tools to take checkpoints, look at the history, plan and apply restores, and to
    fork. The project needs a store; `mulligan init` makes one.
    """
    from importlib.metadata import version

    from mulligan.cli.find_store import state_home
    from mulligan.coding.agent_process import agent_above
    from mulligan.mcp.hooks import SESSION, ClaudeHook, conversation
    from mulligan.mcp.messages import Lines, Output
    from mulligan.mcp.project import Settings
    from mulligan.mcp.server import Server
    from mulligan.resident.serving import ServedAgent

    here = (directory or Path.cwd()).resolve()
    variables = dict(os.environ)
    if call.store:
        variables["MULLIGAN_STORE"] = call.store
    settings = Settings(
        here,
        state_home(),
        call.store,
        call.session,
        conversation(variables.get(SESSION)),
        _log,
    )
    output = Output(_take_stdout())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    if os.isatty(0):
        _log("waits for an agent's messages on standard input; an agent's program starts it.")
    # The command that starts the server may be run by a shell.
    agent = agent_above() or os.getppid()
    hook = ClaudeHook(variables, agent, ServedAgent(state_home(), agent))
    Server(settings, output, version("mulligan"), hook).run(Lines(0))


def _take_stdout() -> int:
    """Return a descriptor of the real standard output; anything else that prints goes to stderr.

    A stray line on it, from a library or a child process, would end the client's connection.
    """
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def _log(said: str) -> None:
    sys.stderr.write(f"mulligan mcp: {said}\n")
    sys.stderr.flush()


def _stop(number: int, frame: Any) -> None:
    """Stop reading; requests in progress are completed."""
    raise SystemExit(128 + number)
