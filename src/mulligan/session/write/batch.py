"""Batches: which writes go into an open one, which wait for its end, which are refused.

A batch belongs to the thread and, under asyncio, to the task that opened it. Other writes through
the same handle must never become part of it: they would be lost if the batch fails, although their
calls returned. So another thread waits until the batch ends, with a time limit, because the batch
may be waiting for that thread. Two kinds of callers cannot wait and get ``BatchOpen``: another task
of the same thread, which would block the event loop that the batch needs, and work started inside
the batch (``asyncio.gather``, ``asyncio.to_thread``), for which the batch may be waiting.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from mulligan.document.fold import Change, fold
from mulligan.errors import BatchOpen

if TYPE_CHECKING:
    from mulligan.document.document import Document
    from mulligan.model import Checkpoint
    from mulligan.session.write.checkpoint_request import CheckpointRequest
    from mulligan.session.write.decisions import Changes, Decision, T

_INSIDE: ContextVar[tuple[object, ...]] = ContextVar("mulligan_batches", default=())
"""The tokens of the batches that were open when this task or thread started, or that it opened.

Tasks and ``to_thread`` copy it. A token is only an identity, so copies of it may outlive the batch.
"""


PATIENCE = 60.0
"""Seconds that another thread waits; whether the batch waits for that thread is not known."""


class OpenBatch:
    """The writes that one task of one thread collects, and the document after them.

    ``request`` is the checkpoint to take at the end. After the commit, ``seq`` is that of the
    newest event, and ``checkpoint`` the one that was taken.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.decisions: list[Decision[object]] = []
        self.request: CheckpointRequest | None = None
        self.has_ended = False
        self.seq: int | None = None
        self.checkpoint: Checkpoint | None = None
        self._thread = threading.get_ident()
        self._task = _current_task()
        self._token = object()

    def collect(self, decision: Decision[T]) -> T:
        """Run a decision on the document so far, and keep it for the end of the batch.

        If the decision raises, nothing of it is kept.
        """
        result = self.attempt(decision)
        self.decisions.append(decision)
        return result

    def attempt(self, decision: Decision[T]) -> T:
        """Run a decision, or a part of one; if it raises, nothing of it is kept."""
        before = self.document
        try:
            return decision(self)
        except BaseException:
            self.document = before  # it may have added changes before it raised
            raise

    def add(self, change: Change) -> None:
        """Apply a change of the running decision; its event is made at the end of the batch."""
        self.document = fold(self.document, *change, 0)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Drop what is written inside if it raises; otherwise it stays part of this batch."""
        before = self.document, len(self.decisions), self.request
        try:
            yield
        except BaseException:
            self.document, count, self.request = before
            del self.decisions[count:]
            raise

    def decide(self, work: Changes) -> None:
        """Run all decisions again, on the document that the transaction follows."""
        for decision in self.decisions:
            decision(work)

    def enter(self) -> None:
        """Record that what runs from here on is inside the batch."""
        _INSIDE.set((*_INSIDE.get(), self._token))

    def leave(self) -> None:
        """Record that it no longer is; harmless if the batch was never entered."""
        _INSIDE.set(tuple(token for token in _INSIDE.get() if token is not self._token))

    def is_ours(self) -> bool:
        """Whether the caller is the task and thread that opened the batch.

        Frameworks without asyncio tasks give each of their tasks its own context.
        """
        # All three are compared: threads and tasks are reused, and work started inside gets a copy
        # of the context.
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
        # Waiting here would block the event loop, and with it the task that has to end the batch.
        if self._thread == threading.get_ident():
            raise BatchOpen(
                "Another task of this thread has a batch open on this handle.",
                hint="Nothing was written. Do not await inside a batch, or give each task a "
                "handle of its own: store.session(NAME).",
            )


def waited_in_vain() -> BatchOpen:
    """Return the error for a thread that has waited too long for another thread's batch."""
    return BatchOpen(
        f"Another thread's batch on this handle did not end within {PATIENCE:g} seconds.",
        hint="Nothing was written. Do not wait for other threads inside a batch, or give each a "
        "handle of its own: store.session(NAME).",
    )


def _current_task() -> object:
    """Return the running asyncio task; None outside a task."""
    asyncio = sys.modules.get("asyncio")  # if it was never imported, there are no tasks
    if asyncio is None:
        return None
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
