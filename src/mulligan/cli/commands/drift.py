"""mulligan drift."""

from __future__ import annotations

from pathlib import Path

import click

from mulligan.cli.context import CliContext, Group, example
from mulligan.cli.render.text import clean, print_json

SHOW = "show"


WITH_VALUE = ("-s", "--session", "--store")
"""The shared options that take a value."""


class DriftGroup(Group):
    """A group whose first word may also be a session."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``drift SESSION`` for ``drift show SESSION``."""
        word = _first_word(args)
        asks_help = word is None and any(arg in ("-h", "--help") for arg in args)
        if word not in self.commands and not asks_help:
            args = [SHOW, *args]
        return super().parse_args(ctx, args)


def _first_word(args: list[str]) -> str | None:
    """Return the first argument that is neither an option nor the value of one."""
    before = ""
    for arg in args:
        if not arg.startswith("-") and before not in WITH_VALUE:
            return arg
        before = arg
    return None


@click.group(
    "drift",
    cls=DriftGroup,
    epilog=example(
        "mulligan drift", "mulligan drift main --explain", "mulligan drift replay runs.jsonl"
    ),
)
def command() -> None:
    """Show whether the agents of a session loop, stall or otherwise go wrong.

    `mulligan drift SESSION` is `mulligan drift show SESSION`. Each signal has a score from 0 to 1;
    from 0.5 on it is an alarm. `mulligan help signals` explains the signals and the responses.
    """


@command.command(
    SHOW,
    short_help="Show the drift of a session.",
    epilog=example("mulligan drift show --explain", "mulligan drift show main --at '10m ago'"),
)
@click.argument("name", metavar="[SESSION]", required=False)
@click.option("--explain", is_flag=True, help="Show all alarms with their events, and responses.")
@click.option("--at", "point", metavar="POINT", help="Judge the events up to this point only.")
@click.pass_obj
def show(call: CliContext, name: str | None, explain: bool, point: str | None) -> None:
    """Show the drift of a session: a sparkline for each signal, and the last alarm.

    The events are judged again by the present settings; nothing is written.
    """
    from mulligan.cli.render.drift import print_agent
    from mulligan.errors import UnknownPoint
    from mulligan.session.runtime.drift_report import drift_report
    from mulligan.session.runtime.drift_watch import settings_of
    from mulligan.views.drift import drift_view

    # An argument overrides MULLIGAN_SESSION, which is set inside of agents.
    call.session = name or call.session
    session = call.open_to_look()
    until = None if point is None else session.point(point)
    if until is not None and until.session != session.name:
        raise UnknownPoint(
            f"#{until.seq} of {until.session!r} is not on the timeline of {session.name!r}.",
            hint=f"Name the session: mulligan drift {until.session} --at '#{until.seq}'.",
        )
    found = drift_report(session, settings_of(session), until)
    if call.json:
        print_json(drift_view(session, (until or session.head).seq, found))
        return
    if call.quiet:
        for agent in found:
            if any(one.alarm.acts for one in agent.alarms):
                click.echo(clean(agent.agent))
        return
    for agent in found:
        print_agent(agent, explain=explain)
    if not found:
        click.echo("No agent has done anything yet that can be judged.")


@command.command(
    "replay",
    short_help="Judge recorded runs.",
    epilog=example("mulligan drift replay runs.jsonl.gz", "mulligan drift replay r.jsonl --json"),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--explain", is_flag=True, help="Show sparklines and all alarms of each run.")
@click.pass_obj
def replay_file(call: CliContext, file: Path, explain: bool) -> None:
    """Judge recorded runs, step by step; with --json, one object per line.

    FILE has one JSON object per line, {"id", "steps": [{"action", "args", "result", "error"}]},
    and may be compressed by gzip. No store is needed.
    """
    from mulligan.cli.render.drift import print_replay
    from mulligan.drift.replay import replay
    from mulligan.drift.settings import DriftSettings
    from mulligan.drift.trace import read_traces
    from mulligan.views.drift import replay_view

    settings = DriftSettings()
    for run in read_traces(file):
        found = replay(run, settings)
        if call.json:
            print_json(replay_view(found), indent=None)
        elif not call.quiet:
            print_replay(found, explain=explain)
        elif found.fired_at is not None:
            click.echo(clean(found.id))


@command.command(
    "release",
    short_help="Release an isolated agent.",
    epilog=example("mulligan drift release coder"),
)
@click.argument("agent")
@click.pass_obj
def release_agent(call: CliContext, agent: str) -> None:
    """Release an isolated agent; `mulligan resume` then starts it again.

    Its alarms start at the first rung of the ladder again.
    """
    from mulligan.errors import PathNotFound
    from mulligan.session.runtime.drift_watch import isolated, release
    from mulligan.views.drift import release_view

    session = call.open_session()
    if agent not in isolated(session):
        names = ", ".join(isolated(session)) or "none"
        raise PathNotFound(
            f"The agent {agent!r} of session {session.name!r} is not isolated; isolated: {names}.",
            hint="Nothing was changed. `mulligan drift` shows the agents.",
        )
    release(session, agent, "released by a person")
    if call.json:
        print_json(release_view(session, agent))
    elif not call.quiet:
        click.echo(clean(f"{agent} may go on; `mulligan resume {session.name}` starts it again."))
