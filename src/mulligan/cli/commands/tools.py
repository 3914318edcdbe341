"""mulligan tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from mulligan.cli.context import CliContext, Group, example
from mulligan.cli.render.text import Cell, ago, clean, echo_columns, print_json, short
from mulligan.cli.values import json_value, user_name
from mulligan.views.effects import call_view, calls_view

if TYPE_CHECKING:
    from mulligan import Session, ToolCall

SIGNS = {
    "called": ("▶", "cyan"),
    "returned": ("✓", "green"),
    "failed": ("✗", "red"),
    "in_doubt": ("?", "yellow"),
}
MAX_SHOWN_FILES = 8


_NAME = click.option(
    "--name", metavar="NAME", help="Only calls of this tool, or of a pattern: git*."
)
_FAILED = click.option("--failed", is_flag=True, help="Only calls that failed.")
_IN_DOUBT = click.option("--in-doubt", is_flag=True, help="Only calls that never returned.")


@click.group(
    "tools",
    cls=Group,
    invoke_without_command=True,
    epilog=example("mulligan tools --in-doubt", "mulligan tools settle toolu_01A done"),
)
@_NAME
@_FAILED
@_IN_DOUBT
@click.pass_context
def command(context: click.Context, name: str | None, failed: bool, in_doubt: bool) -> None:
    """List the calls of tools in a session, or settle one.

    A call is in doubt when its process died before it returned: it may have happened. What
    changed in the files since it began is listed with it, and whether a process that it started
    still runs.
    """
    if context.invoked_subcommand is None:
        _list(context.obj, name, failed=failed, in_doubt=in_doubt)


@command.command(
    "list", short_help="List the calls.", epilog=example("mulligan tools list --name 'git*'")
)
@_NAME
@_FAILED
@_IN_DOUBT
@click.pass_obj
def list_calls(call: CliContext, name: str | None, failed: bool, in_doubt: bool) -> None:
    """List the calls, oldest first."""
    _list(call, name, failed=failed, in_doubt=in_doubt)


@command.command(
    "settle",
    short_help="Say whether a call happened.",
    epilog=example("mulligan tools settle toolu_01A failed --note 'no mail was sent'"),
)
@click.argument("id")
@click.argument("outcome", type=click.Choice(["done", "failed"]))
@click.option("--result", metavar="JSON", help="Its result, for the record.")
@click.option("--note", metavar="TEXT", help="How you know.")
@click.pass_obj
def settle(
    call: CliContext,
    id: str,
    outcome: Literal["done", "failed"],
    result: str | None,
    note: str | None,
) -> None:
    """Say whether the call ID, which is in doubt, happened.

    ID is its id or the beginning of one. The record alone changes: a coding agent is not told.
    """
    value = None if result is None else json_value(result, "--result")
    tools = call.open_session().tools
    _print(call, tools.settle(id, outcome, result=value, note=note, by=user_name()))


def _print(call: CliContext, settled: ToolCall) -> None:
    if call.json:
        print_json(call_view(settled))
    elif call.bare:
        click.echo(settled.id)
    else:
        echo_columns([_row(settled)])


def _list(call: CliContext, name: str | None, *, failed: bool, in_doubt: bool) -> None:
    session = call.open_session(files=True, recover=False, store=call.open_store(read_only=True))
    found = session.tools.list(name=name, failed=failed, in_doubt=in_doubt)
    if call.json:
        print_json(calls_view(session, found))
    elif call.quiet:
        for one in found:
            click.echo(one.id)
    elif not found:
        such = "such " if name or failed or in_doubt else ""
        click.echo(f"Session {session.name!r} has no {such}tool calls.", err=True)
    else:
        echo_columns([_row(one) for one in found])
        _print_doubts(session, found)


def _row(call: ToolCall) -> list[Cell]:
    sign, colour = SIGNS[call.status]
    said = call.error or (short(call.args) if call.args is not None else "")
    return [
        Cell(f"{sign} {clean(call.id)}", colour),
        Cell(clean(call.name), bold=True),
        Cell(call.status.replace("_", " "), colour),
        Cell(clean(call.agent or "")),
        Cell(ago(call.at) if call.at else "", dim=True),
        Cell(clean(said), dim=True),
    ]


def _print_doubts(session: Session, calls: Sequence[ToolCall]) -> None:
    """Print what is known of calls that never returned: files, and processes that still run."""
    if all(one.status != "in_doubt" for one in calls):
        return
    from mulligan.recovery.detect import in_doubt

    for doubt in in_doubt(session):
        if doubt.files:
            more = f" and {len(doubt.files) - MAX_SHOWN_FILES} more"
            named = ", ".join(doubt.files[:MAX_SHOWN_FILES])
            named += more if len(doubt.files) > MAX_SHOWN_FILES else ""
            click.echo(clean(f"{doubt.call}: changed since it began: {named}"))
        if doubt.process is not None:
            click.echo(clean(f"{doubt.call}: process {doubt.process} still runs"))
    how = f"mulligan tools -s {clean(session.name)} settle ID done|failed"
    click.echo(f"When you know whether a call happened: `{how}`", err=True)
