"""mulligan effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from mulligan.cli.context import CliContext, Group, example
from mulligan.cli.render.effects import effect_row
from mulligan.cli.render.text import echo_columns, print_json
from mulligan.cli.values import json_value, user_name
from mulligan.views.effects import effect_view, effects_view

if TYPE_CHECKING:
    from mulligan import Effect

_PENDING = click.option("--pending", is_flag=True, help="Only those that wait for approval.")
_IN_DOUBT = click.option("--in-doubt", is_flag=True, help="Only those that may have happened.")


@click.group(
    "effects",
    cls=Group,
    invoke_without_command=True,
    epilog=example("mulligan effects", "mulligan effects settle 3f2a done"),
)
@_PENDING
@_IN_DOUBT
@click.pass_context
def command(context: click.Context, pending: bool, in_doubt: bool) -> None:
    """List the effects of a session on the outside world, or settle one.

    An effect is in doubt when its process died while it acted: it may have happened, and is not
    done again until it is settled. One that is left behind happened after the point that the
    session went back to.
    """
    if context.invoked_subcommand is None:
        _list(context.obj, pending=pending, in_doubt=in_doubt)


@command.command(
    "list", short_help="List the effects.", epilog=example("mulligan effects list --pending")
)
@_PENDING
@_IN_DOUBT
@click.pass_obj
def list_effects(call: CliContext, pending: bool, in_doubt: bool) -> None:
    """List the effects, oldest first."""
    _list(call, pending=pending, in_doubt=in_doubt)


@command.command(
    "settle",
    short_help="Say whether an effect happened.",
    epilog=example("mulligan effects settle 3f2a done --result '{\"id\": 7}'"),
)
@click.argument("id")
@click.argument("outcome", type=click.Choice(["done", "failed"]))
@click.option("--result", metavar="JSON", help="Its result, for its agent.")
@click.option("--note", metavar="TEXT", help="How you know.")
@click.pass_obj
def settle(
    call: CliContext,
    id: str,
    outcome: Literal["done", "failed"],
    result: str | None,
    note: str | None,
) -> None:
    """Say whether the effect ID, which is in doubt, happened.

    ID is its id or the beginning of one. An effect that failed may be done again; of one that is
    done, the agent gets the result.
    """
    value = None if result is None else json_value(result, "--result")
    effects = call.open_session().effects
    _print(call, effects.settle(id, outcome, result=value, note=note, by=user_name()))


def _print(call: CliContext, effect: Effect) -> None:
    if call.json:
        print_json(effect_view(effect))
    elif call.bare:
        click.echo(effect.id)
    else:
        echo_columns([effect_row(effect)])


def _list(call: CliContext, *, pending: bool, in_doubt: bool) -> None:
    session = call.open_to_look()
    found = session.effects.list(pending=pending, in_doubt=in_doubt)
    if call.json:
        print_json(effects_view(session, found))
    elif call.quiet:
        for effect in found:
            click.echo(effect.id)
    elif not found:
        what = " that wait or are in doubt" if pending and in_doubt else ""
        what = what or (" that wait for approval" if pending else " in doubt" if in_doubt else "")
        click.echo(f"Session {session.name!r} has no effects{what}.", err=True)
    else:
        echo_columns([effect_row(effect) for effect in found])
