"""Programs that a command is to run and that cannot be: with the exit codes of a shell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mulligan.supervisor.workflow import AgentSpec


class CommandNotFound(click.ClickException):
    """There is no such command."""

    exit_code = 127
    hint = "Check its name, or give its path, such as ./agent.sh."


class CommandNotExecutable(click.ClickException):
    """The command cannot be executed."""

    exit_code = 126
    hint = "`chmod +x` makes a script executable; or name its interpreter, such as `sh agent.sh`."


def check_program(spec: AgentSpec) -> None:
    """Refuse an agent whose program cannot be run, before anything is written for it."""
    from mulligan.supervisor.preflight import missing_later, missing_program

    problem = missing_program(spec, os.environ)
    if problem is not None:
        kind = CommandNotExecutable if problem.endswith("cannot be run") else CommandNotFound
        raise kind(f"{problem[0].upper()}{problem[1:]}; nothing was started.")
    for key, problem in missing_later(spec, os.environ):
        raise CommandNotFound(f"--{key}: {problem}; nothing was started.")
