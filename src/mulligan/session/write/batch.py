"""Batches: which writes go into an open one, which wait for its end, which are refused.

A batch belongs to the thread and, under asyncio, to the task that opened it. What anything else
writes through the same handle must never become part of it: it would be gone when the batch fails,
although its call returned. So another thread waits until the batch is over, within bounds: the
batch may be waiting for that thread. Another task of the same thread cannot wait, for it would
stop the event loop that the batch needs to go on, and neither can what was started inside the
batch (``asyncio.gather``, ``asyncio.to_thread``), for the batch may be waiting for it: both get
``BatchOpen``.
"""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar

from mulligan.document.document import Document
from mulligan.document.fold import Change, fold
from mulligan.errors import BatchOpen
from mulligan.session.write.decisions import Decision, T

_INSIDE: ContextVar[tuple[object, ...]] = ContextVar("mulligan_batches", default=())
"""The tokens of the batches that were open where this flow of control began, or that it opened.

Tasks and ``to_thread`` copy it. A token is no more than an identity: copies of it may live long.
"""


PATIENCE = 60.0
"""How many seconds another thread waits: whether a batch waits for that thread cannot be seen."""


class Batch:
    """The writes that one task of one thread collects, and the document after them."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.decisions: list[Decision[object]] = []
        self._thread = threading.get_ident()
        self._task = _current_task()
        self._token = object()

    def collect(self, decision: Decision[T]) -> T:
        """Run a decision on the document so far, and keep it for the end of the batch.

        Raises what the decision does, and then has nothing of it.
        """
        before = self.document
        try:
            result = decision(self)
        except BaseException:
            self.document = before  # it may have added changes before it raised
            raise
        self.decisions.append(decision)
        return result

    def add(self, change: Change) -> None:
        """Apply a change of the decision that runs; its event is made at the end of the batch."""
        self.document = fold(self.document, *change, 0)

    def enter(self) -> None:
        """Note that what runs from here on is inside."""
        _INSIDE.set((*_INSIDE.get(), self._token))

    def leave(self) -> None:
        """Note that it no longer is; harmless where the batch was never entered."""
        _INSIDE.set(tuple(token for token in _INSIDE.get() if token is not self._token))

    def is_ours(self) -> bool:
        """Whether the caller is the task and thread that opened the batch.

        Frameworks without asyncio's tasks give each of theirs its own context.
        """
        same = self._thread == threading.get_ident() and self._task is _current_task()
        return same and self._token in _INSIDE.get()

    def refuse_if_endless(self) -> None:
        """Raise ``BatchOpen`` where the batch cannot end while the caller waits for it."""
        if self._token in _INSIDE.get():
            raise BatchOpen(
                "This was started inside a batch, which belongs to the task that opened it.",
                hint="Nothing was written. Return the values to that task and write them there, "
                "or write through a handle of its own: store.session(NAME).",
            )
        if self._thread == threading.get_ident():
            raise BatchOpen(
                "Another task of this thread has a batch open on this handle.",
                hint="Nothing was written. Do not await inside a batch, or give each task a "
                "handle of its own: store.session(NAME).",
            )


def waited_in_vain() -> BatchOpen:
    """Return the error for a thread that has waited for a batch of another one long enough."""
    return BatchOpen(
        f"Another thread's batch on this handle did not end within {PATIENCE:g} seconds.",
        hint="Nothing was written. Do not wait for other threads inside a batch, or give each a "
        "handle of its own: store.session(NAME).",
    )


def _current_task() -> object:
    """Return the asyncio task that runs; None outside of one."""
    asyncio = sys.modules.get("asyncio")  # not imported for this: then there are no tasks
    if asyncio is None:
        return None
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
