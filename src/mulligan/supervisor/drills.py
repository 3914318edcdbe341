"""Drills of a team: what they run, taken from the workflow that the session has recorded."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from mulligan.errors import DamageError, InvalidWorkflow
from mulligan.model import Point, Problem
from mulligan.recovery.plan import WORKFLOW, team_of
from mulligan.session import Session
from mulligan.supervisor.workflow import AgentSpec, DrillSettings, Workflow, from_plain
from mulligan.timeline.points import PointLike
from mulligan.upkeep.drill.commands import DrillCommand
from mulligan.upkeep.drill.record import CommandKind, DrillResult
from mulligan.upkeep.drill.run import Encode, Progress, run_drill


class TeamDrill(msgspec.Struct, frozen=True):
    """What a drill of a session runs, and what prevents its team from being started."""

    commands: tuple[DrillCommand, ...] = ()
    timeout: float = DrillSettings().timeout
    problems: tuple[Problem, ...] = ()


def drill_session(
    session: Session,
    point: PointLike = "@latest",
    *,
    variables: Mapping[str, str],
    timeout: float | None = None,
    scratch: str | os.PathLike[str] | None = None,
    output: int = subprocess.DEVNULL,
    encode: Encode | None = None,
    progress: Progress = lambda _: None,
) -> DrillResult:
    """Run a drill with the commands of the session's team; see ``run_drill``.

    Each agent's ``drill`` command is run, then its ``health`` command. ``timeout`` replaces that
    of the workflow.
    """
    place = session.point(point)
    team = team_drill(session, place)
    return run_drill(
        session,
        place,
        commands=team.commands,
        variables=variables,
        timeout=team.timeout if timeout is None else timeout,
        scratch=scratch,
        output=output,
        encode=encode if team.commands else None,
        known=team.problems,
        progress=progress,
    )


def team_drill(session: Session, point: Point) -> TeamDrill:
    """Return what a drill of a point runs: the commands of the team that would be started."""
    try:
        plain = session.state.at(point).get(WORKFLOW) or session.state.get(WORKFLOW)
    except DamageError:
        return TeamDrill()  # the drill itself finds out and reports it
    if plain is None:
        return TeamDrill()
    try:
        workflow = from_plain(plain)
    except InvalidWorkflow as error:
        return TeamDrill(problems=(Problem("team", WORKFLOW, str(error)),))
    return TeamDrill(tuple(_commands(workflow)), workflow.drill.timeout)


def _commands(workflow: Workflow) -> Iterator[DrillCommand]:
    """Yield all dry starts, then all health commands, in the order of a recovery."""
    kinds: tuple[CommandKind, ...] = ("drill", "health")
    for kind in kinds:
        for name, spec in workflow.agents.items():
            command = spec.drill if kind == "drill" else spec.health
            if command:
                directory = _directory(spec, workflow.workspace)
                yield DrillCommand(name, kind, command, directory, spec.env)


def _directory(spec: AgentSpec, workspace: str | None) -> str:
    """Return where below the top of the workspace an agent runs; outside of it, the top."""
    if spec.directory is None or workspace is None:
        return ""
    directory, top = Path(spec.directory), Path(workspace)
    return str(directory.relative_to(top)) if directory.is_relative_to(top) else ""


def team_workspace(session: Session) -> Path | None:
    """Return the workspace of the session's team, if it has one and it exists."""
    place = (team_of(session) or {}).get("workspace")
    return Path(place) if isinstance(place, str) and Path(place).is_dir() else None
