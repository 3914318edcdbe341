"""Rewinds of a coding agent as text: its prompts, what would be done, and what was done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mulligan.cli.render.effects import print_effect_plan
from mulligan.cli.render.files import (
    TO_DO,
    change_lines,
    counted,
    outline,
    warn_of_conflicts,
)
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    clean,
    echo_columns,
    local,
    place,
    plural,
    shorten,
)
from mulligan.coding.hook_input import ToolUse
from mulligan.coding.tool_policy import about

if TYPE_CHECKING:
    from mulligan import Session
    from mulligan.cli.context import CliContext
    from mulligan.coding.rewind.run import RewindPlan, RewindResult
    from mulligan.coding.rewind.target import Conversation, RewindPrompt
    from mulligan.model import EffectPlan, FileChange, Restored, ToolCall

WIDEST_TEXT = 100
UNKNOWN = "unknown"


def print_prompts(call: CliContext, found: Conversation, prompts: Sequence[RewindPrompt]) -> None:
    """Print the prompts of a conversation, oldest first."""
    if call.quiet:
        for prompt in prompts:
            click.echo(str(prompt.number))
        return
    title = Cell(clean(found.session.name), bold=True).styled()
    click.echo(f"{title}  {plural(len(prompts), 'prompt')}")
    echo_columns([_row(prompt) for prompt in prompts])
    if any(prompt.files is None for prompt in prompts):
        click.echo(
            "No checkpoint has the files that are unknown: retention has removed it since, or no "
            "hook took one; `mulligan doctor` checks them."
        )
    if prompts:
        last = prompts[-1].number
        click.echo(f"`mulligan rewind --to {last}` goes back to before prompt {last}.")


def print_plan(plan: RewindPlan, directory: Path | None, limit: int | None) -> None:
    """Print what a rewind would do."""
    back_to = [Cell("back to", bold=True), Cell(_where(plan))]
    echo_columns([back_to])
    if plan.entries is not None:
        click.echo(f"{Cell('conversation', bold=True).styled()}  {_conversation(plan)}")
    if plan.fork is not None:
        said = f"files of {place(plan.point)} into {plan.fork}"
        click.echo(f"{Cell('fork', bold=True).styled()}  {clean(said)}")
    if plan.undoes_effects:
        print_effect_plan(plan.effects)
    elif plan.effects:
        click.echo(f"{Cell('outside', bold=True).styled()}  {clean(_stay(plan.effects))}")
    if plan.files is not None:
        changes = outline(plan.files.files)
        title = Cell(f"files in {clean(str(directory))}", bold=True).styled()
        click.echo(f"{title}  {counted(changes.listed, TO_DO) or 'nothing to do'}")
        for line in change_lines(changes.listed, limit):
            click.echo(line)
        warn_of_conflicts(plan.files.conflicts if plan.files else ())


def print_rewound(
    call: CliContext, done: RewindResult, command: str | None, other: str | None
) -> None:
    """Print what a rewind did, and how to continue."""
    plan = done.plan
    if call.quiet:
        click.echo(plan.id if done.session else done.restored.safety.id if done.restored else "")
        return
    if done.restored is not None:
        click.echo(f"The files are back. {_kept(done.restored)}")
    if command is None:
        undo = f"mulligan undo -s {plan.session}"
        click.echo(clean(f"The conversation goes on as it was. Undo with `{undo}`."))
        return
    click.echo("Continue with:")
    click.echo(f"\n  {Cell(clean(command), 'green', bold=True).styled()}\n")
    if other is not None:
        click.echo(clean(f"The other branch stays: `{other}`"))
    click.echo("Undo with `mulligan rewind --undo`.")


def print_undone(
    call: CliContext, session: Session, made: Session, command: str | None, done: Restored | None
) -> None:
    """Print that a rewind of a session was undone, what stays, and how to continue.

    ``made`` is the session that the rewind had made.
    """
    from mulligan.coding.rewind.run import was_continued

    if call.quiet:
        click.echo(done.safety.id if done else "")
        return
    fork = made.files.directory
    if fork is not None and fork != session.files.directory:
        _print_undone_fork(session.name, made.name, fork)
    else:
        back = f"The files are as before the rewind. {_kept(done)}"
        click.echo(back if done else "Undone. No file had to be taken back.")
        if was_continued(made):
            click.echo(clean(f"What was said since is in the session {made.name}."))
    if command is not None:
        click.echo(f"Continue with:\n\n  {Cell(clean(command), 'green', bold=True).styled()}")


def _print_undone_fork(name: str, made: str, fork: Path) -> None:
    click.echo(clean(f"Undone: {name} goes on, on files that the fork never touched."))
    if fork.is_dir():
        click.echo(clean(f"The directory {fork} and the session {made} stay."))
        delete = f"delete the directory, then the session with `mulligan delete {made}`."
        click.echo(clean(f"If they are not needed, {delete}"))
    else:
        click.echo(clean(f"The session {made} stays; `mulligan delete {made}` deletes it."))


def is_agent_in_the_way(plan: RewindPlan) -> bool:
    """Whether a process of the agent goes on with the present conversation, on the same files."""
    return plan.is_live and plan.fork is None


def warn_of_agent(plan: RewindPlan) -> None:
    """Warn of a process of the agent that goes on with the present conversation."""
    if is_agent_in_the_way(plan):
        said = f"Warning: {plan.agent.agent} is at work in {plan.session}. It goes on with its "
        said += "own conversation, on the same files; end it first."
        click.echo(Cell(clean(said), "yellow").styled(), err=True)


def warn_of_calls(plan: RewindPlan) -> None:
    """Warn of commands that may go on changing the files after their agent was killed."""
    if plan.is_live or plan.files is None:
        return
    for one in plan.in_doubt:
        said = (
            f"Warning: whether {_call(one)} has ended is not known. It may still run, and change "
        )
        said += f"these files: look with `ps`. `mulligan tools settle {one.id} done|failed`, with "
        said += f"`-s {plan.session}`, ends this warning."
        click.echo(Cell(clean(said), "yellow").styled(), err=True)


def _call(call: ToolCall) -> str:
    what = about(ToolUse(call.name, call.args))
    return f"{call.name} `{shorten(_first_words(what), 60)}`" if what else call.name


def _row(prompt: RewindPrompt) -> list[Cell]:
    return [
        Cell(str(prompt.number), "yellow"),
        Cell(_time(prompt.prompt.time), dim=True),
        Cell(_changes(prompt.files)),
        Cell(_first_words(prompt.prompt.text)),
    ]


def _changes(files: Sequence[FileChange] | None) -> str:
    """Return how many files were added, changed and removed: +1 ~2 -1."""
    if files is None:
        return UNKNOWN
    listed = outline(files).listed
    signs = {"+": ("added",), "~": ("changed", "attributes", "renamed"), "-": ("removed",)}
    counts = {sign: sum(one.change in kinds for one in listed) for sign, kinds in signs.items()}
    return " ".join(f"{sign}{count}" for sign, count in counts.items() if count)


def _where(plan: RewindPlan) -> str:
    prompt = plan.target.prompt
    if prompt is None or not plan.target.is_before_prompt:
        return clean(place(plan.point))
    words = shorten(_first_words(prompt.prompt.text), 60)
    return f"before prompt {prompt.number} ({_time(prompt.prompt.time)}): {words}"


def _conversation(plan: RewindPlan) -> str:
    if not plan.entries:
        return "none: nothing had been said"
    count = plan.target.kept
    stay = f"{plural(count, 'prompt')} {'stays' if count == 1 else 'stay'}"
    closed = f", {plural(plan.closed, 'interrupted call')} closed" if plan.closed else ""
    return f"{stay}{closed}, new id {plan.id}"


def _stay(plan: EffectPlan) -> str:
    found = (*plan.compensated, *plan.left_behind, *plan.repeatable)
    names = ", ".join(dict.fromkeys(effect.name for effect in found[:5]))
    stay = "stays" if len(found) == 1 else "stay"
    return f"{plural(len(found), 'effect')} after it {stay} in the world: {names}"


def _kept(done: Restored | None) -> str:
    if done is None:
        return ""
    safety = Cell(done.safety.id[:SHORT_ID], "yellow").styled()
    return f"What was there is in the safety checkpoint {safety}."


def _time(text: str) -> str:
    try:
        return local(datetime.fromisoformat(text))
    except ValueError:
        return UNKNOWN


def _first_words(text: str) -> str:
    return shorten(clean(" ".join(text.split())), WIDEST_TEXT)
