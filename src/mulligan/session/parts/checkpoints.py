"""The checkpoints of a timeline: listed, found, walked through, marked, labelled and pinned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mulligan.errors import InvalidMark
from mulligan.session import arguments
from mulligan.session.names import check_key, check_name
from mulligan.session.write.decisions import adding
from mulligan.timeline.marks import Mark, mark_change, read_marks

if TYPE_CHECKING:  # imported where they are used: a command that only looks needs few of them
    from mulligan.model import Checkpoint, CheckpointKind, Point, Verdict
    from mulligan.session.history import History
    from mulligan.session.state_view import StateView
    from mulligan.session.write.writer import Writer
    from mulligan.timeline.pinned import PinnedBy
    from mulligan.timeline.points import PointLike


class Checkpoints:
    """The checkpoints on a session's timeline, from ``session.checkpoints``.

    Call it for a list of them. ``session.checkpoint(...)`` takes a new one.
    """

    def __init__(self, writer: Writer, history: History) -> None:
        self._writer = writer
        self._history = history

    def __call__(
        self,
        newest: int | None = None,
        *,
        since: PointLike | None = None,
        until: PointLike | None = None,
        kind: CheckpointKind | str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Checkpoint]:
        """Return the checkpoints on this timeline, oldest first, those before a fork included.

        ``since`` and ``until`` are points: those after the one up to and including the other are
        returned. ``kind`` selects those of one kind. With ``reverse``, the newest come first;
        ``limit`` ends the list, and what lies beyond is not read. ``newest`` is how many of the
        last ones to return, still oldest first.
        """
        if newest:
            return self._history.checkpoints(since, until, kind, newest, reverse=True)[::-1]
        most = None if limit is None else arguments.count(limit, "limit=")
        return self._history.checkpoints(since, until, kind, most, reverse=reverse)

    def walk(
        self,
        newest_first: bool = True,
        limit: int | None = None,
        *,
        since: PointLike | None = None,
        until: PointLike | None = None,
        kind: str | None = None,
    ) -> Iterator[tuple[Checkpoint, StateView]]:
        """Yield the checkpoints after ``since`` up to ``until``, each with the state at it.

        A long walk costs about one replay of the events, and is read as far as it is used. Writes
        and upkeep go on meanwhile: checkpoints that are newer than its start are left out, as are
        those that were removed before it came to them.
        """
        return self._history.walk(
            since,
            until,
            kind=kind,
            limit=None if limit is None else arguments.count(limit, "limit="),
            newest_first=newest_first,
        )

    def at(self, point: PointLike) -> Checkpoint:
        """Return the checkpoint at or before a point."""
        return self._history.find_checkpoint(point)

    def find(self, key: str) -> Checkpoint | None:
        """Return the checkpoint on this timeline that was given a key; None if none has it.

        Checkpoints before a fork are on the timeline of the fork. A removed one has no key any
        more.
        """
        return self._history.find(check_key(key))

    def mark(self, point: PointLike, verdict: Verdict, note: str | None = None) -> Checkpoint:
        """Give the checkpoint at or before a point the verdict ``good`` or ``bad``; return it.

        ``@good`` and ``@bad`` name the latest ones; a rollback prefers the last good one.
        """
        arguments.optional_text(note, "A note", InvalidMark)
        # Found before the write: a point like @latest must name the same checkpoint in every run of
        # the decision below.
        checkpoint = self._history.markable(point)
        mark = Mark(verdict, self._writer.actor, note)
        self._writer.write(adding(lambda _: [mark_change(checkpoint.id, mark)]))
        return checkpoint

    def marks(self) -> dict[str, Mark]:
        """Return the verdicts on checkpoints of this timeline, by their ids."""
        return read_marks(self._writer.document())

    def labels(self) -> dict[str, Point]:
        """Return the labels of this timeline with the checkpoints that they name, newest first.

        A label names the newest checkpoint that got it.
        """
        return self._history.labels()

    def drop_label(self, label: str) -> Checkpoint:
        """Remove a label, and return the checkpoint it named.

        The checkpoint stays and can be named by its id; a later one can get the label.
        """
        from mulligan.timeline.labels import drop_change

        checkpoint = self._history.labelled(check_name(label, "label"))
        change = drop_change(label, checkpoint.seq, checkpoint.id)
        self._writer.write(adding(lambda _: [change]))
        return checkpoint

    def pin(self, point: PointLike, note: str | None = None) -> Checkpoint:
        """Keep the checkpoint at or before a point, whatever the retention policy says."""
        from mulligan.timeline.pinned import PinnedBy, pin_change  # here and below: seldom needed

        arguments.optional_text(note, "A note", InvalidMark)
        checkpoint = self._history.own_checkpoint(point, "Pin")
        change = pin_change(checkpoint.id, PinnedBy(self._writer.actor, note))
        self._writer.write(adding(lambda _: [change]))
        return checkpoint

    def unpin(self, point: PointLike) -> Checkpoint:
        """Leave a pinned checkpoint to the retention policy again; no error if it was not."""
        from mulligan.timeline.pinned import read_pinned, unpin_change

        checkpoint = self._history.own_checkpoint(point, "Unpin")
        # Looked up in the decision: another process may unpin it at the same time.
        self._writer.write(
            adding(
                lambda document: (
                    [unpin_change(checkpoint.id)] if checkpoint.id in read_pinned(document) else []
                )
            )
        )
        return checkpoint

    def pinned(self) -> dict[str, PinnedBy]:
        """Return the checkpoints that are pinned in this session, by their ids."""
        from mulligan.timeline.pinned import read_pinned

        return read_pinned(self._writer.document())
