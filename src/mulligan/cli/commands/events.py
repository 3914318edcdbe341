"""mulligan events."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import CliContext, Command, example
from mulligan.cli.render.text import GAP, Cell, clean, local, plural, print_json, short, shorten
from mulligan.views.events import event_view, fold_view, of_kinds, select_events, with_folds

if TYPE_CHECKING:
    from mulligan import Event, Point, Session
    from mulligan.model import Fold

EXAMPLE = example("mulligan events --follow", "mulligan events --since @latest --kind state")


@click.command("events", cls=Command, epilog=EXAMPLE)
@click.option("--since", metavar="POINT", help="Only events after this point.")
@click.option("--until", metavar="POINT", help="Only events up to this point.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new events, until Ctrl-C.")
@click.option("-n", "count", type=click.IntRange(min=1), help="Show only the last N events.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Show only this kind: state.set, or state for all state.* kinds. Can be repeated.",
)
@click.pass_obj
def command(
    call: CliContext,
    since: str | None,
    until: str | None,
    follow: bool,
    count: int | None,
    kinds: tuple[str, ...],
) -> None:
    """List the events of a session, oldest first; with --json, one object per line."""
    session = call.open_to_look()
    # Fixed before printing: --follow continues exactly after it, with no gap and no repetition.
    last = session.head if until is None else session.internal.place(until)
    events = select_events(session, since, last, count=count, kinds=kinds)
    # A selection has gaps anyway.
    is_all = count is None and not kinds
    found = with_folds(session, since, last, events) if is_all else events
    _print(session, found, call.json)
    if follow and until is None:
        _follow(session, last, kinds, call.json)


def _follow(session: Session, since: Point, kinds: tuple[str, ...], as_json: bool) -> None:
    """Print events as they are written, until Ctrl-C, which is not a failure here."""
    try:
        _print(session, of_kinds(session.events(since, follow=True), kinds), as_json)
    except KeyboardInterrupt:
        # The terminal has written ^C where the next prompt would go.
        click.echo(err=True, nl=sys.stderr.isatty())


def _print(session: Session, events: Iterable[Event | Fold], as_json: bool) -> None:
    from mulligan.model import Fold

    for found in events:
        if isinstance(found, Fold):
            view, line = fold_view(session, found), _fold_line(found)
        else:
            view, line = event_view(found), _line(found)
        if as_json:
            print_json(view, indent=None)
        else:
            click.echo(line)


def _fold_line(fold: Fold) -> str:
    cells = [
        Cell(f"#{fold.first}".ljust(6), "yellow"),
        Cell(local(fold.started), dim=True),
        Cell(f"{plural(fold.last - fold.first + 1, 'event')} up to #{fold.last} folded away"),
    ]
    return GAP.join(cell.styled() for cell in cells)


def _line(event: Event) -> str:
    cells = [
        Cell(f"#{event.seq}".ljust(6), "yellow"),
        Cell(local(event.time), dim=True),
        Cell(clean(event.actor).ljust(len("supervisor"))),
        Cell(event.kind.ljust(20), "green"),
        Cell(_summary(event.kind, event.payload)),
    ]
    return GAP.join(cell.styled() for cell in cells).rstrip()


def _summary(kind: str, payload: Any) -> str:
    """Summarize an event in a few words."""
    if kind == "state.set":
        return f"{_path(payload)} = {short(payload['value'])}"
    if kind == "state.append":
        values = payload["values"]
        shown = short(values[0]) if len(values) == 1 else plural(len(values), "value")
        return f"{_path(payload)} += {shown}"
    if kind == "state.delete":
        return _path(payload)
    if kind == "checkpoint.created":
        words = (payload["kind"], payload["label"], payload["note"])
        return clean("  ".join(word for word in words if word))
    if kind in ("restore.begun", "restore.applied"):
        return clean(f"{payload['mode']} to {payload['session']} #{payload['seq']}")
    if "changes" in payload or "control" in payload:
        return _event_summary(payload)
    return short(payload)


def _event_summary(payload: dict[str, Any]) -> str:
    """Summarize an event that carries changes: its facts, then the values it set."""
    told = {key: v for key, v in payload.items() if key not in ("changes", "control")}
    facts = [v if isinstance(v, str) else f"{key}={short(v, 24)}" for key, v in told.items()]
    changes = [*payload.get("changes", ()), *payload.get("control", ())]
    said = [f"{path[-1]}={short(value[0], 24) if value else 'gone'}" for path, *value in changes]
    # An event may say what it sets: agent.started names the process, and so does the record.
    values = [one for one in said if one not in facts]
    return shorten(clean("  ".join([" ".join(facts), *values])), 100)


def _path(payload: dict[str, Any]) -> str:
    from mulligan.document.values import format_path

    return clean(format_path(tuple(payload["path"]))) or "(root)"
