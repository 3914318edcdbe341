"""Taking checkpoints: the workspace first, then one event that names everything.

Everything that does not depend on the document (files, environment, what is left out) is captured
and made durable before the transaction; the decision inside only adds the event.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import msgspec

from mulligan import codec
from mulligan.document.document import settle, settle_root
from mulligan.engine import Engine
from mulligan.model import Digest, Environment, LeftOut, ObjectKind
from mulligan.objects.protocol import Bundle
from mulligan.session.environment import EnvironmentReader
from mulligan.session.write.writer import Work
from mulligan.timeline.checkpoints import checkpoint_change, environment_value, left_out_value
from mulligan.workspace.capture.capture import Captured
from mulligan.workspace.workspace import Workspace


class CheckpointRequest(msgspec.Struct, frozen=True):
    """A checkpoint to be taken."""

    kind: str
    note: str | None = None
    label: str | None = None
    safety: bool = False


class CheckpointParts(msgspec.Struct, frozen=True):
    """What a checkpoint holds besides the document; its objects are durable.

    ``environment`` and ``left_out`` are what stands for them in the event, ``size`` is how many
    bytes of new objects were written, ``started`` is when the checkpoint was asked for.
    """

    captured: Captured | None
    environment: Digest
    left_out: Any
    size: int
    started: float


class _Shared(msgspec.Struct, frozen=True):
    """What checkpoints share while it does not change, each with what stands for it in them."""

    environment: tuple[Environment, Digest]
    left_out: tuple[list[LeftOut], Any] | None


class Checkpointer:
    """Adds checkpoints to transactions."""

    def __init__(
        self, engine: Engine, environment: EnvironmentReader, workspace: Workspace | None
    ) -> None:
        self._clock = engine.clock
        self._environment_reader = environment
        self._workspace = workspace
        self._stored: _Shared | None = None

    @contextmanager
    def capture(
        self, bundle: Bundle, started: float, *, files: bool = True
    ) -> Iterator[CheckpointParts]:
        """Capture files and environment, for a block that commits a checkpoint of them.

        Without ``files``, or without a workspace, there are none. What was captured only counts
        when the block ends normally; see ``Workspace.capture``.
        """
        workspace = self._workspace if files else None
        with nullcontext() if workspace is None else workspace.capture(bundle) as captured:
            shared = _Shared(self._environment(bundle), self._left_out(bundle, captured))
            # The fsync comes before the decision, not inside it: a decision may run twice, the
            # second time while it holds the write lock.
            size = bundle.flush().size
            left_out = shared.left_out[1] if captured and shared.left_out else None
            yield CheckpointParts(captured, shared.environment[1], left_out, size, started)
        # Only now: had the commit failed, later checkpoints would refer to objects that no store
        # has.
        self._stored = shared

    def add(self, work: Work, request: CheckpointRequest, parts: CheckpointParts) -> int:
        """Add a checkpoint of the document so far and of what was captured; return its seq."""
        captured = parts.captured
        keyframe = work.keyframe_if_due(work.seq + 1)
        change = checkpoint_change(
            kind=request.kind,
            label=request.label,
            note=request.note,
            parent=work.base.checkpoint and work.base.checkpoint[1],
            keyframe=keyframe,
            environment=parts.environment,
            ms=round((self._clock.monotonic() - parts.started) * 1000, 3),
            size=parts.size,
            safety=request.safety,
            tree=captured.tree if captured else None,
            coverage=captured.coverage if captured else None,
            left_out=parts.left_out,
        )
        seq = work.add(change)
        work.labels[seq] = request.label
        return seq

    def _environment(self, bundle: Bundle) -> tuple[Environment, Digest]:
        """Return the environment and its object; it is only put again when it changed."""
        now = self._environment_reader.capture()
        if self._stored is not None and self._stored.environment[0] == now:
            return self._stored.environment
        return now, settle_root(environment_value(now), partial(bundle.put, ObjectKind.VALUE))

    def _left_out(
        self, bundle: Bundle, captured: Captured | None
    ) -> tuple[list[LeftOut], Any] | None:
        """Return the list of what is left out, and its value with references to its parts.

        Checkpoints share these objects until the list changes. A capture has the very list of the
        one before if nothing changed in it, so that the cost of a step does not grow with it.
        """
        stored = self._stored.left_out if self._stored is not None else None
        if captured is None or (stored is not None and stored[0] is captured.coverage.left_out):
            return stored
        now = captured.coverage.left_out
        put = partial(bundle.put, ObjectKind.VALUE)
        return now, codec.decode(settle(left_out_value(now), put))
