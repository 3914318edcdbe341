"""mulligan status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.context import Call, Command, example
from mulligan.cli.render import (
    SHORT_ID,
    Cell,
    ago,
    checkpoint_fields,
    clean,
    echo_columns,
    place,
    plural,
    print_json,
    size,
)

if TYPE_CHECKING:
    from mulligan import Checkpoint, Session, Store


HEADERS = ("session", "seq", "active", "checkpoint", "taken", "files", "forked from")


@click.command("status", cls=Command, epilog=example("mulligan status"))
@click.pass_obj
def command(call: Call) -> None:
    """Show the store, and its sessions with their latest activity and checkpoint."""
    store = call.open_store()
    sessions = [s for s in store.sessions() if call.session in (None, s.name)]
    if call.session and not sessions:
        call.open_session()
    if call.json:
        print_json({**_fields(store), "sessions": [_session_fields(s) for s in sessions]})
    elif call.quiet:
        for session in sessions:
            click.echo(session.name)
    else:
        _print(store, sessions)


def _print(store: Store, sessions: list[Session]) -> None:
    about = _fields(store)
    click.echo(f"{Cell(about['store'], bold=True).styled()}")
    parts = f"format {about['format']}, {size(about['size_bytes'])}"
    click.echo(Cell(f"{parts}, {plural(len(sessions), 'session')}", dim=True).styled())
    if sessions:
        echo_columns([[Cell(h, dim=True) for h in HEADERS], *map(_row, sessions)])


def _row(session: Session) -> list[Cell]:
    taken, parent = _latest(session), session.parent
    return [
        Cell(clean(session.name), bold=True),
        Cell(f"#{session.head.seq}"),
        Cell(ago(session.updated)),
        Cell(taken.id[:SHORT_ID] if taken else "none", "yellow" if taken else None),
        Cell(ago(taken.time) if taken else ""),
        Cell(f"{taken.coverage.files:,}" if taken and taken.coverage else ""),
        Cell(clean(place(parent)) if parent else "", "cyan"),
    ]


def _fields(store: Store) -> dict[str, Any]:
    from mulligan.layout import read_format

    directory = Path(store.path or ".")
    return {
        "store": str(directory),
        "format": read_format(directory).format,
        "size_bytes": _size_on_disk(directory),
    }


def _session_fields(session: Session) -> dict[str, Any]:
    taken, parent = _latest(session), session.parent
    return {
        "name": session.name,
        "seq": session.head.seq,
        "created": session.created,
        "updated": session.updated,
        "parent": parent and {"session": parent.session, "seq": parent.seq},
        "checkpoint": taken and checkpoint_fields(taken, _verdict(session, taken)),
    }


def _latest(session: Session) -> Checkpoint | None:
    from mulligan.errors import UnknownPoint

    try:
        return session.find_checkpoint("@latest")
    except UnknownPoint:
        return None


def _verdict(session: Session, checkpoint: Checkpoint) -> str | None:
    mark = session.marks().get(checkpoint.id)
    return mark.verdict if mark else None


def _size_on_disk(directory: Path) -> int:
    """Return the bytes that files occupy; the journal's file is mostly a hole."""
    files = (Path(root, name) for root, _, names in os.walk(directory) for name in names)
    return sum(file.lstat().st_blocks * 512 for file in files)
