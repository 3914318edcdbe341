"""Shell completion of points, labels, sessions and tasks.

Completion runs while a person types. So it only reads, prints nothing else, and offers nothing if
it cannot find a store.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from mulligan.cli.context import CliContext
from mulligan.errors import MulliganError

if TYPE_CHECKING:
    from mulligan import Session, Store

    Question = Callable[[CliContext, Store], list[CompletionItem]]

NAMED = {
    "@latest": "the latest checkpoint",
    "@good": "the latest that was marked good",
    "@bad": "the latest that was marked bad",
}
RECENT_CHECKPOINTS = 20
SHORT_ID = 12


def points(context: click.Context, start: str) -> list[CompletionItem]:
    """Return the points with a given prefix: names, labels, and ids of recent checkpoints."""
    found = _ask(context, _points)
    return [item for item in found if str(item.value).startswith(start)]


def labels(context: click.Context, start: str) -> list[CompletionItem]:
    """Return the labels with a given prefix."""
    found = _ask(context, lambda call, store: _labels(call.open_session(store=store)))
    return [item for item in found if str(item.value).startswith(start)]


def sessions(context: click.Context, start: str) -> list[CompletionItem]:
    """Return the sessions with a given prefix."""
    found = _ask(context, lambda _, store: _whole(s.name for s in store.sessions()))
    return [item for item in found if str(item.value).startswith(start)]


def tasks(context: click.Context, start: str) -> list[CompletionItem]:
    """Return the tasks with a given prefix."""
    found = _ask(context, _tasks)
    return [item for item in found if str(item.value).startswith(start)]


def _tasks(call: CliContext, store: Store) -> list[CompletionItem]:
    known = call.open_session(store=store).tasks
    named = ((task, item) for task in known for item in _whole([task.id]))
    return [
        CompletionItem(item.value, help=f"{task.title} ({task.status})") for task, item in named
    ]


def _points(call: CliContext, store: Store) -> list[CompletionItem]:
    session = call.open_session(store=store)
    recent = session.checkpoints(limit=RECENT_CHECKPOINTS, reverse=True)
    named = [CompletionItem(name, help=about) for name, about in NAMED.items()]
    ids = [CompletionItem(one.id[:SHORT_ID], help=one.note or one.kind) for one in recent]
    return [*named, *_labels(session), *ids]


def _labels(session: Session) -> list[CompletionItem]:
    return _whole(session.checkpoints.labels(), "label")


def _whole(names: Iterable[str], about: str | None = None) -> list[CompletionItem]:
    """Return names as candidates, without those with spaces: shells insert them unquoted."""
    return [CompletionItem(name, help=about) for name in names if not any(map(str.isspace, name))]


def _ask(context: click.Context, ask: Question) -> list[CompletionItem]:
    call = context.find_object(CliContext) or CliContext()
    # Also for the choice of the session, which would print a notice.
    call.quiet = True
    try:
        # Notices about finding the store would land in the middle of the line being typed.
        with redirect_stderr(io.StringIO()), context.scope():
            return ask(call, call.open_store(read_only=True))
    except (MulliganError, OSError):
        return []
