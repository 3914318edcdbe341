"""mulligan mail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mulligan.cli.context import CliContext, Group, agent_option, example
from mulligan.cli.render.text import Cell, ago, clean, echo_columns, print_json, short
from mulligan.views.mail import acknowledged_view, mail_view, message_view, sent_view, unprocessed

if TYPE_CHECKING:
    from mulligan import Message, Priority

PRIORITIES = ("low", "normal", "high", "urgent")


@click.group(
    "mail",
    cls=Group,
    invoke_without_command=True,
    epilog=example("mulligan mail", "mulligan mail send coder 'Use the new schema'"),
)
@click.pass_context
def command(context: click.Context) -> None:
    """List the messages that agents have not processed, or send and receive from scripts."""
    if context.invoked_subcommand is None:
        _list(context.obj)


@command.command(
    "list", short_help="List unprocessed messages.", epilog=example("mulligan mail list --json")
)
@click.pass_obj
def list_messages(call: CliContext) -> None:
    """List the messages that agents have not processed, in the order they get them."""
    _list(call)


@command.command(
    "send",
    short_help="Send a message to an agent.",
    epilog=example("mulligan mail send coder 'Use the new schema' --priority high"),
)
@click.argument("to")
@click.argument("subject")
@click.argument("body", required=False)
@click.option("--priority", type=click.Choice(PRIORITIES), default="normal", show_default=True)
@click.option("--ack", is_flag=True, help="Redeliver it until it is acknowledged.")
@click.option("--id", "name", metavar="ID", help="Its id; sending the same id again has no effect.")
@agent_option
@click.pass_obj
def send(
    call: CliContext,
    to: str,
    subject: str,
    body: str | None,
    priority: Priority,
    ack: bool,
    name: str | None,
    agent: str | None,
) -> None:
    """Send a message to an agent and print its id; durable when this returns."""
    mailbox = call.open_for_agent(agent).mailbox
    sent = mailbox.send(to, subject, body, priority=priority, requires_ack=ack, id=name)
    if call.json:
        print_json(sent_view(sent, to))
    else:
        click.echo(sent)


@command.command(
    "receive",
    short_help="Print the next message.",
    epilog=example("mulligan mail receive --agent coder --wait 10"),
)
@click.option("--wait", type=click.FloatRange(min=0), default=0, help="Seconds to wait for one.")
@agent_option
@click.pass_obj
def receive(call: CliContext, wait: float, agent: str | None) -> None:
    """Print an agent's next message, which then counts as processed unless it needs an ack.

    A message that needs an acknowledgement is delivered again until `mail ack`.
    """
    message = call.open_for_agent(agent).mailbox.receive(wait)
    if call.json:
        print_json(None if message is None else message_view(message))
    elif message is not None:
        click.echo(clean(message.subject))
        if message.body is not None:
            click.echo(message.body if isinstance(message.body, str) else short(message.body, 500))


@command.command(
    "ack",
    short_help="Acknowledge a message.",
    epilog=example("mulligan mail ack planner-3 --agent coder"),
)
@click.argument("id")
@agent_option
@click.pass_obj
def ack(call: CliContext, id: str, agent: str | None) -> None:
    """Acknowledge a message: it has been processed and is not delivered again."""
    call.open_for_agent(agent).mailbox.ack(id)
    if call.json:
        print_json(acknowledged_view(id))


def _list(call: CliContext) -> None:
    session = call.open_to_look()
    if call.json:
        print_json(mail_view(session))
        return
    messages = unprocessed(session)
    if call.quiet:
        for message in messages:
            click.echo(message.id)
    elif not messages:
        click.echo(f"Session {session.name!r} has no messages.", err=True)
    else:
        echo_columns([_row(message) for message in messages])


def _row(message: Message) -> list[Cell]:
    marked = "red" if message.priority in ("high", "urgent") else None
    return [
        Cell(clean(f"{message.sender} → {message.to}"), "cyan"),
        Cell(ago(message.sent), dim=True),
        Cell(message.priority, marked, dim=marked is None),
        Cell(clean(message.subject), bold=True),
        Cell(
            clean(message.id) + (" (to be acknowledged)" if message.requires_ack else ""), dim=True
        ),
    ]
