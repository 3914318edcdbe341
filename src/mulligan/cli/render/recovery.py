"""What was interrupted, and how it is recovered, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from mulligan.cli.context import CliContext
from mulligan.cli.render.effects import effect_plan_lines, open_effect_lines
from mulligan.cli.render.text import (
    SHORT_ID,
    Cell,
    ago,
    clean,
    place,
    plural,
    print_json,
    shorten,
)
from mulligan.views.recovery import agents_to_start, resume_view

if TYPE_CHECKING:
    from mulligan.recovery.detect import LostAgent
    from mulligan.recovery.plan import ResumePlan
    from mulligan.recovery.resume import Resumed

MAX_SHOWN = 20


def print_nothing(call: CliContext, running: str | None = None) -> None:
    """Report that there is nothing to do, and which process already does it."""
    if call.json:
        print_json(resume_view())
    elif not call.quiet:
        why = clean(running) if running else "Nothing is interrupted or paused"
        click.echo(f"{why}; there is nothing to resume.")


def gave_up_words(why: str, tried: list[str]) -> str:
    """Return after which attempts the recovery of a session was given up, and why."""
    times = f"{plural(len(tried), 'attempt')} ({', '.join(tried)})" if tried else "no attempt"
    return f"gave up after {times}, for {why}; no process of it is left running"


def found_lines(plan: ResumePlan) -> list[str]:
    """Return what was interrupted, line by line."""
    return _found_lines(plan, _DONE)


def plan_lines(plan: ResumePlan) -> list[str]:
    """Return what recovery does, line by line."""
    return _plan_lines(plan, _DONE)


def print_dry(plan: ResumePlan) -> None:
    """Print what was found, and what a recovery would do."""
    for line in [*_found_lines(plan, _WOULD), *_plan_lines(plan, _WOULD)]:
        click.echo(line)
    click.echo("Nothing was done: this was a dry run.")


def print_prepared(call: CliContext, resumed: Resumed, typed: str | None) -> None:
    """Print what was done for agents without a supervisor, and what is left to do.

    ``typed`` continues the conversation of a coding agent.
    """
    if call.json:
        print_json(resume_view(resumed.plan, resumed))
    elif call.quiet:
        click.echo(resumed.checkpoint.id)
    else:
        kept = Cell(resumed.checkpoint.id[:SHORT_ID], "yellow").styled()
        click.echo(f"Everything is ready; what the crash left is in the checkpoint {kept}.")
        for agent in agents_to_start(resumed.plan):
            click.echo(clean(f"Start {agent.name} again{_how(agent, typed)}."))
        if typed is None:
            click.echo("`mulligan run -- CMD` starts it again by itself next time.")


class _Words(msgspec.Struct, frozen=True):
    """The wording for an actual recovery, and for a dry run."""

    resumed: str
    finished: str
    stopped: str
    clean: str
    nothing: str
    go: str
    goes: str
    empty: str
    absent: str
    released: str
    next: str


_DONE = _Words(
    resumed="is resumed",
    finished="is finished first",
    stopped="It is not recovered again: every rung was tried.",
    clean="Starting clean: only the list of tasks is kept.",
    nothing="Nothing acknowledged is lost; files stay as they are.",
    go="go",
    goes="goes",
    empty="Emptied",
    absent="Nothing to empty in",
    released="Released, because their agents do not return",
    next="Work continues at",
)
_WOULD = _Words(
    resumed="would be resumed",
    finished="would be finished first",
    stopped="It would not be recovered again: every rung was tried.",
    clean="It would start clean: only the list of tasks would be kept.",
    nothing="Nothing acknowledged would be lost; files would stay as they are.",
    go="would go",
    goes="would go",
    empty="Would be emptied",
    absent="There would be nothing to empty in",
    released="Would be released, because their agents do not return",
    next="Work would continue at",
)


def _plan_lines(plan: ResumePlan, words: _Words) -> list[str]:
    lines = [clean(_where(plan, words))]
    for one in plan.consumed:
        said = f"{one.by} has {one.how} already: {one.what} {one.id} (#{one.seq})"
        lines.append(Cell(clean(f"Warning: {said}"), "yellow").styled())
    if plan.effects is not None:
        lines += effect_plan_lines(plan.effects)
    if plan.reset:
        lines.append(clean(f"{words.empty}: {', '.join(plan.reset)}."))
    if plan.absent:
        names = ", ".join(plan.absent)
        lines.append(clean(f"{words.absent} {names}: nothing is stored there yet."))
    if plan.release:
        lines.append(clean(f"{words.released}: {_some(plan.release)}."))
    if plan.next_task is not None:
        lines.append(clean(f"{words.next} the task {plan.next_task!r}."))
    return lines


def _found_lines(plan: ResumePlan, words: _Words) -> list[str]:
    from mulligan.cli.render.text import columns

    found = plan.interruption
    if found is None:
        return [Cell(clean(f"{plan.session} {words.resumed}."), bold=True).styled()]
    since = f"{plan.session} was interrupted, last active {ago(found.last_event)}: {found.why}."
    lines = [Cell(clean(since), bold=True).styled()]
    lines += columns([_agent_row(agent) for agent in found.agents[:MAX_SHOWN]])
    for doubt in found.in_doubt[:MAX_SHOWN]:
        who = f" of {doubt.agent}" if doubt.agent else ""
        said = f"In doubt: call {doubt.call}{who} to {doubt.tool or 'a tool'} never returned"
        lines.append(Cell(clean(f"{said}; it may have happened."), "yellow").styled())
        if doubt.files:
            lines.append(clean(f"  since then changed: {_some(doubt.files)}"))
        if doubt.process is not None:
            lines.append(f"  process {doubt.process}, which it started, still runs")
    lines += open_effect_lines(found.effects, MAX_SHOWN)
    for operation in found.operations[:MAX_SHOWN]:
        before = f"the checkpoint before it is {operation.checkpoint[:SHORT_ID]}"
        lines.append(clean(f"Under way: {operation.name} of {operation.agent}; {before}."))
    if found.restore is not None:
        restore = f"A restore of files to {place(found.restore)}"
        lines.append(clean(f"{restore} {words.finished}."))
    return lines


def _where(plan: ResumePlan, words: _Words) -> str:
    if plan.rung == "stop":
        return words.stopped
    if plan.is_clean:
        return words.clean
    if plan.point is None:
        return words.nothing
    what = f"What is {plan.only}'s {words.goes}" if plan.only else f"State and files {words.go}"
    again = ", as the earlier attempt did" if plan.continues else ""
    files = f" ({plural(len(plan.files.files), 'path')} to change)" if plan.files else ""
    return f"{what} back to {place(plan.point)}{again}{files}."


def _agent_row(agent: LostAgent) -> list[Cell]:
    process = f"process {agent.process_id}" if agent.process_id else ""
    lives = f"{process} still runs" if agent.is_alive else process
    return [
        Cell(f"  {clean(agent.name)}", bold=True),
        Cell(clean(agent.state or "")),
        Cell(clean(_some(agent.tasks))),
        Cell(lives.strip(), "yellow" if agent.is_alive else None, dim=not agent.is_alive),
        Cell(shorten(clean(agent.prompt or ""), 40), dim=True),
    ]


def _how(agent: LostAgent, typed: str | None) -> str:
    """Return how to start an agent, as far as known."""
    import shlex

    where = f" in {agent.directory}" if agent.directory else ""
    if typed is not None:
        return f": `{typed}`"  # with its directory, if that is another one
    command = f": {shlex.join(agent.command)}" if agent.command else " as you started it before"
    return f"{where}{command}"


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
