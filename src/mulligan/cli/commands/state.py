"""mulligan state get|set|append|delete."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, Group, create_option, example
from mulligan.cli.render.terminal import print_exactly
from mulligan.cli.render.text import print_json
from mulligan.views.state import written_view

if TYPE_CHECKING:
    from mulligan import Session

_NUMBER = re.compile(r"-\.?\d[\d.eE+-]*")
_STARTS_LIKE_JSON = ("{", "[", '"')


class ValueCommand(Command):
    """A command whose VALUE may be a negative number, which is not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let a negative number through."""
        ctx.ignore_unknown_options = any(_NUMBER.fullmatch(arg) for arg in args)
        return super().parse_args(ctx, args)


@click.group("state", cls=Group, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Read and write the state from scripts.

    A PATH is KEY/KEY/INDEX; ~1 stands for / in a key. A VALUE is JSON. A word that is not JSON
    is a string, and - reads the value from standard input.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _named(context: click.Context, argument: click.Parameter, path: str) -> str:
    """Refuse the empty path: it names the whole state, which is rarely intended."""
    if not path:
        raise click.BadParameter("it is empty, and the whole state cannot be changed at once.")
    return path


expect_options = [
    click.option("--expect", metavar="JSON", help="Only if the current value equals this one."),
    click.option("--expect-missing", is_flag=True, help="Only if there is no value yet."),
]


@command.command(
    "get",
    short_help="Print the value at PATH as JSON.",
    epilog=example("mulligan state get tasks/0/status --raw"),
)
@click.argument("path", default="")
@click.option("--at", "point", metavar="POINT", help="Read the state at this point.")
@click.option("--raw", is_flag=True, help="Print strings without quotes and bytes unchanged.")
@click.pass_obj
def get(call: CliContext, path: str, point: str | None, raw: bool) -> None:
    """Print the value at PATH as JSON; without PATH, the whole state."""
    from mulligan import MISSING
    from mulligan.errors import PathNotFound

    session = call.open_to_look()
    if point is None:
        value = session.state.get(path, MISSING)
    else:
        value = session.state.at(point).get(path, MISSING)
    if value is MISSING:
        raise PathNotFound(f"There is nothing at {path!r}{f' at {point}' if point else ''}.")
    if raw and isinstance(value, str | bytes | datetime):
        print_exactly(value.isoformat() if isinstance(value, datetime) else value)
    else:
        print_json(value)


@command.command(
    "set", cls=ValueCommand, epilog=example("mulligan state set memory/goal 'ship it'")
)
@click.argument("path", callback=_named)
@click.argument("value")
@click.option("--text", is_flag=True, help="Take VALUE as a string, even if it looks like JSON.")
@expect_options[0]
@expect_options[1]
@create_option
@click.pass_obj
def set_(
    call: CliContext,
    path: str,
    value: str,
    text: bool,
    expect: str | None,
    expect_missing: bool,
    create: bool,
) -> None:
    """Set the value at PATH; missing parent dictionaries are created.

    Inside `mulligan run`, it is written as the agent that runs there.
    """
    wanted, expected = _value(value, text), _expected(expect, expect_missing)
    session = call.open_for_agent(create=create)
    session.state.set(path, wanted, **expected)
    _print_done(call, session, path)


@command.command(
    "append", cls=ValueCommand, epilog=example("mulligan state append memory/notes 'it works'")
)
@click.argument("path", callback=_named)
@click.argument("value")
@click.option("--text", is_flag=True, help="Take VALUE as a string, even if it looks like JSON.")
@create_option
@click.pass_obj
def append(call: CliContext, path: str, value: str, text: bool, create: bool) -> None:
    """Append VALUE to the list at PATH, which is created if missing.

    Inside `mulligan run`, it is written as the agent that runs there.
    """
    wanted = _value(value, text)
    session = call.open_for_agent(create=create)
    session.state.append(path, wanted)
    _print_done(call, session, path)


@command.command("delete", epilog=example("mulligan state delete memory/notes/0"))
@click.argument("path", callback=_named)
@expect_options[0]
@click.pass_obj
def delete(call: CliContext, path: str, expect: str | None) -> None:
    """Delete the value at PATH."""
    session = call.open_for_agent()
    session.state.delete(path, **_expected(expect, missing=False))
    _print_done(call, session, path)


def _print_done(call: CliContext, session: Session, path: str) -> None:
    if call.json:
        print_json(written_view(session, path))


def _value(given: str, text: bool) -> Any:
    source = sys.stdin.read() if given == "-" else given
    return source if text else _parsed(source, "VALUE")


def _expected(given: str | None, missing: bool) -> dict[str, Any]:
    from mulligan import MISSING

    if given is not None and missing:
        raise click.UsageError("--expect and --expect-missing exclude each other.")
    if missing:
        return {"expected": MISSING}
    return {} if given is None else {"expected": _parsed(given, "--expect")}


def _parsed(text: str, name: str) -> Any:
    """Return the value of JSON text; words that do not look like JSON are strings."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise click.BadParameter("the JSON nests too deep.", param_hint=name) from error
    except ValueError as error:
        if text.lstrip().startswith(_STARTS_LIKE_JSON):
            problem = f"it starts like JSON and is none ({error}); --text takes it as it is."
            raise click.BadParameter(problem, param_hint=name) from error
    return text.removesuffix("\n")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
