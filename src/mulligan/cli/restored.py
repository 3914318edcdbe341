"""What a restore, an undo or a redo did, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import Call
from mulligan.cli.render import SHORT_ID, Cell, clean, place, point_fields, print_json

if TYPE_CHECKING:
    from mulligan import Point, Restored

_OPPOSITE = {"restore": "undo", "undo": "redo", "redo": "undo"}
_DONE = {"restore": "Restored", "undo": "Undone", "redo": "Redone"}


def print_restored(call: Call, done: Restored, **more: Any) -> None:
    """Print what was done, where the present of before is kept, and how to take it back."""
    if call.json:
        print_json({**restored_fields(done), **more})
    elif call.quiet:
        click.echo(done.safety.id)
    else:
        safety = Cell(done.safety.id[:SHORT_ID], "yellow").styled()
        parts = ", ".join(only_fields(done.only) or ["the state"])
        click.echo(clean(f"{_DONE[done.mode]}: {parts} as it was at {place(done.point)}."))
        click.echo(f"What was there before is kept in the safety checkpoint {safety};")
        click.echo(f"{_OPPOSITE[done.mode]} with `mulligan {_OPPOSITE[done.mode]}`.")


def restored_fields(done: Restored) -> dict[str, Any]:
    """Return what was done as the JSON contract has it."""
    return {
        "applied": True,
        "mode": done.mode,
        "to": point_fields(done.point),
        "only": only_fields(done.only),
        "safety": done.safety.id,
        "seq": done.seq,
    }


def unapplied_fields(point: Point, only: Any) -> dict[str, Any]:
    """Return a restore that was only looked at, in the same fields."""
    return {
        "applied": False,
        "mode": "restore",
        "to": point_fields(point),
        "only": only_fields(only),
        "safety": None,
        "seq": None,
    }


def only_fields(only: Any) -> list[str] | None:
    """Return the parts as texts."""
    from mulligan.state.values import format_path, parse_path

    return None if only is None else [format_path(parse_path(path)) for path in only]
