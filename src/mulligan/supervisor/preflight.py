"""Whether what a workflow names exists: its workspace, its directories, its programs.

Checked before anything is started, so that a typing mistake is not found hours later. An agent that
waits for others may use what they create: for it, only programs on the PATH are checked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from mulligan.config.lines import line_of
from mulligan.config.text import read_text
from mulligan.errors import InvalidWorkflow
from mulligan.supervisor.workflow import AgentSpec, Workflow


def preflight(workflow: Workflow, file: Path, variables: Mapping[str, str]) -> None:
    """Refuse a workflow that cannot be run here; raises ``InvalidWorkflow`` with line and key."""
    for place, problem in _problems(workflow, variables):
        line = line_of(read_text(file), place)
        raise InvalidWorkflow(
            f"{file}:{line}: {'.'.join(place)}: {problem}.", hint="Nothing was started."
        )


def _problems(
    workflow: Workflow, variables: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what is missing: the key that names it, and the problem."""
    if workflow.workspace is not None and not Path(workflow.workspace).is_dir():
        yield ("workspace",), f"there is no directory {workflow.workspace}"
    for name, spec in workflow.agents.items():
        place = ("agents", name)
        if not spec.after and not (directory := Path(spec.directory or os.curdir)).is_dir():
            yield (*place, "directory"), f"there is no directory {directory}"
        if problem := missing_program(spec, variables):
            yield (*place, "command"), problem
        for key, problem in missing_later(spec, variables):
            yield (*place, key), problem


def missing_program(spec: AgentSpec, variables: Mapping[str, str]) -> str | None:
    """Return why the program of an agent cannot be run; None if it can be, or may be later."""
    return _missing(spec.command[0], spec, _path(spec, variables))


def missing_later(spec: AgentSpec, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the keys of an agent's other commands that are not on the PATH, and the problem.

    They are needed later: a file that they name may be made until then.
    """
    path = _path(spec, variables)
    for key, command in (("again", spec.again), ("health", spec.health), ("drill", spec.drill)):
        looked_at = command[0] if command else os.sep
        if os.sep not in looked_at and (problem := _missing(looked_at, spec, path)):
            yield key, problem


def _path(spec: AgentSpec, variables: Mapping[str, str]) -> str:
    return spec.env.get("PATH", variables.get("PATH", os.defpath))


def _missing(program: str, spec: AgentSpec, path: str) -> str | None:
    """Return what is wrong with a program; None if it can be run, or may be later."""
    if os.sep not in program:
        found = shutil.which(program, path=path)
        return None if found else f"there is no program {program!r} on the PATH"
    file = Path(spec.directory or os.curdir) / program
    if spec.after or (file.is_file() and os.access(file, os.X_OK)):
        return None
    return f"{file} cannot be run" if file.exists() else f"there is no program {file}"
