"""mulligan run."""

from __future__ import annotations

from pathlib import Path

import click

from mulligan.cli.context import CliContext, Command, example, files_options
from mulligan.cli.following import following, transcript_option
from mulligan.cli.requests import Duration

EXAMPLE = example(
    "mulligan run -- python agent.py",
    "mulligan run --checkpoint-interval 5m --prompt @task.md -- ./agent.sh",
    "mulligan run --again 'claude --continue' -- claude",
    "mulligan run --watch -- codex",
)

AGENT = "agent"


@click.command(
    "run", cls=Command, epilog=EXAMPLE, context_settings={"allow_interspersed_args": False}
)
@click.option("--agent", default=AGENT, show_default=True, help="The agent's name.")
@click.option(
    "--checkpoint-interval",
    type=Duration(),
    default="5m",
    show_default=True,
    help="Time between routine checkpoints.",
)
@click.option("--watch", is_flag=True, help="Also take one when files have changed and settled.")
@transcript_option
@click.option("--prompt", metavar="TEXT|@FILE", help="Instructions for the agent.")
@click.option("--again", metavar="CMD", help="The command of every start but the first.")
@click.option(
    "--restart",
    type=click.Choice(["on_failure", "always", "never"]),
    default="on_failure",
    show_default=True,
    help="When to restart it.",
)
@files_options
@click.argument("program", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def command(
    call: CliContext,
    agent: str,
    checkpoint_interval: float,
    watch: bool,
    transcripts: tuple[str, ...],
    prompt: str | None,
    again: str | None,
    restart: str,
    program: tuple[str, ...],
) -> None:
    """Run CMD as an agent: with checkpoints, restarted when it fails or hangs.

    MULLIGAN_* variables give the command its store, session and name; a Python program gets its
    session from mulligan.attach(). Ctrl-C pauses the command at a safe point, a second Ctrl-C ends
    it; a command that reads from the terminal gets the terminal, and Ctrl-C with it. An interrupted
    session is recovered first. The exit status is that of the command, 1 when a task is
    quarantined, 75 when it was paused, 130 when Ctrl-C paused it.

    With --watch, the conversation of a coding agent without hooks (Claude Code, Codex, Gemini CLI,
    opencode) is recorded as well, in a session of its own, with a checkpoint at every prompt.
    """
    from mulligan.cli.programs import check_program
    from mulligan.cli.teams import exit_code, print_end, run_options
    from mulligan.session.names import SUPERVISOR, check_agent
    from mulligan.supervisor.run import run_team
    from mulligan.supervisor.workflow import AgentSpec, Workflow, read_prompt, split_command

    check_agent(agent)
    if transcripts and not watch:
        raise click.UsageError("--transcript needs --watch.")
    if agent == SUPERVISOR:
        raise click.UsageError(f"{SUPERVISOR!r} is the name of the supervisor itself.")
    try:
        said = read_prompt(prompt, Path.cwd())
    except ValueError as error:
        raise click.UsageError(f"--prompt: {error}.") from error
    try:
        second = None if again is None else split_command(again)
    except ValueError as error:
        raise click.UsageError(f"--again: {error}.") from error
    here = str(Path.cwd())
    spec = AgentSpec(command=program, again=second, directory=here, prompt=said, restart=restart)
    check_program(spec)
    store, session, root = call.open_for_agents()
    workflow = Workflow(
        session=session.name,
        workspace=None if root is None else str(root),
        checkpoint_interval=checkpoint_interval,
        watch=watch,
        agents={agent: spec},
    )
    followed = root if watch else None
    with run_options(call) as options, following(store, followed, transcripts):
        outcome = run_team(store, session.name, workflow, options)
    print_end(call, session, outcome)
    known = session.state.get(("agents", agent), {})
    click.get_current_context().exit(exit_code(outcome, known))
