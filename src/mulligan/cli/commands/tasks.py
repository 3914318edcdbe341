"""mulligan tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Group, agent_option, example
from mulligan.cli.render.text import Cell, clean, echo_columns, print_json
from mulligan.views.tasks import task_view, tasks_view

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mulligan import Task

SIGNS = {
    "pending": ("·", None),
    "in_progress": ("▶", "cyan"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("-", "yellow"),
}


def _complete(context: click.Context, param: click.Parameter, start: str) -> list[CompletionItem]:
    from mulligan.cli.completion import tasks

    return tasks(context, start)


@click.group(
    "tasks",
    cls=Group,
    invoke_without_command=True,
    epilog=example("mulligan tasks", "mulligan tasks add 'Write the parser' --after design"),
)
@click.pass_context
def command(context: click.Context) -> None:
    """List the tasks of a session, or change them from scripts.

    A task is pending, in_progress, completed, failed or skipped. `claim` assigns the first ready
    task to one agent; after a crash, the same agent gets it again.
    """
    if context.invoked_subcommand is None:
        _list(context.obj)


@command.command("list", short_help="List the tasks.", epilog=example("mulligan tasks list --json"))
@click.pass_obj
def list_tasks(call: CliContext) -> None:
    """List the tasks, each under its parent."""
    _list(call)


@command.command(
    "add",
    short_help="Add a task.",
    epilog=example("mulligan tasks add 'Write the parser' --after design"),
)
@click.argument("title")
@click.option("--id", "name", metavar="ID", help="Its id; by default, made from the title.")
@click.option("--parent", metavar="ID", help="The parent task.")
@click.option("--after", metavar="ID", multiple=True, help="A task that has to be done first.")
@agent_option
@click.pass_obj
def add(
    call: CliContext,
    title: str,
    name: str | None,
    parent: str | None,
    after: Sequence[str],
    agent: str | None,
) -> None:
    """Add a task; an existing task with this id stays unchanged."""
    tasks = call.open_for_agent(agent).tasks
    _print(call, tasks.add(title, id=name, parent=parent, after=after))


@command.command(
    "claim",
    short_help="Claim a task to work on.",
    epilog=example("mulligan tasks claim --agent coder"),
)
@click.argument("id", required=False, shell_complete=_complete)
@agent_option
@click.pass_obj
def claim(call: CliContext, id: str | None, agent: str | None) -> None:
    """Claim the first ready task, or the named one, and print its id.

    Prints nothing when there is none.
    """
    task = call.open_for_agent(agent).tasks.claim(id)
    if task is not None:
        _print(call, task)
    elif call.json:
        print_json(None)
    elif not call.bare:
        click.echo("No task is ready.", err=True)


def _ending(name: str, text: str, line: str) -> Callable[..., click.Command]:
    return command.command(name, short_help=text, epilog=example(line))


@_ending("complete", "Mark a task as completed.", "mulligan tasks complete write-the-parser")
@click.argument("id", shell_complete=_complete)
@click.option("--result", metavar="TEXT", help="The result.")
@agent_option
@click.pass_obj
def complete(call: CliContext, id: str, result: str | None, agent: str | None) -> None:
    """Mark a task as completed."""
    tasks = call.open_for_agent(agent).tasks
    tasks.complete(id, result)
    _print(call, tasks.get(id))


@_ending("fail", "Mark a task as failed.", "mulligan tasks fail deploy 'no network'")
@click.argument("id", shell_complete=_complete)
@click.argument("error")
@agent_option
@click.pass_obj
def fail(call: CliContext, id: str, error: str, agent: str | None) -> None:
    """Mark a task as failed, with the reason."""
    tasks = call.open_for_agent(agent).tasks
    tasks.fail(id, error)
    _print(call, tasks.get(id))


def _add_change(name: str, text: str) -> None:
    """Add a command that changes the status of a task and prints the task."""

    @_ending(name, text, f"mulligan tasks {name} deploy")
    @click.argument("id", shell_complete=_complete)
    @agent_option
    @click.pass_obj
    def change(call: CliContext, id: str, agent: str | None) -> None:
        tasks = call.open_for_agent(agent).tasks
        getattr(tasks, name)(id)
        _print(call, tasks.get(id))

    change.help = text


_add_change("skip", "Skip a task; tasks after it need not wait.")
_add_change("release", "Release a claimed task, whichever agent holds it.")
_add_change("retry", "Make a failed or skipped task pending again.")


def _list(call: CliContext) -> None:
    session = call.open_to_look()
    if call.json:
        print_json(tasks_view(session))
        return
    tasks = list(session.tasks)
    if call.quiet:
        for task in tasks:
            click.echo(task.id)
    elif not tasks:
        click.echo(f"Session {session.name!r} has no tasks.", err=True)
    else:
        echo_columns(_rows(tasks))


def _print(call: CliContext, task: Task) -> None:
    if call.json:
        print_json(task_view(task))
    elif call.bare:
        click.echo(task.id)
    else:
        echo_columns(_rows([task]))


def _rows(tasks: Sequence[Task]) -> list[list[Cell]]:
    depth: dict[str | None, int] = {None: -1}
    rows = []
    for task in tasks:
        depth[task.id] = depth.get(task.parent, -1) + 1
        rows.append(_row(task, depth[task.id]))
    return rows


def _row(task: Task, depth: int) -> list[Cell]:
    sign, colour = SIGNS.get(task.status, ("?", None))
    words = [task.status.replace("_", " ")]
    if task.progress is not None and task.status == "in_progress":
        words.append(f"{task.progress:.0%}")
    if task.owner and task.status == "in_progress":
        words.append(f"by {task.owner}")
    if task.attempts > 1:
        words.append(f"attempt {task.attempts}")
    said = task.error if task.status == "failed" else task.note
    return [
        Cell("  " * depth + sign + " " + clean(task.title), colour),
        Cell(clean(task.id), dim=True),
        Cell(clean(" ".join(words)), colour),
        Cell(clean(said or (f"after {', '.join(task.after)}" if task.after else "")), dim=True),
    ]
