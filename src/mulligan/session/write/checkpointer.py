"""Taking checkpoints: the workspace first, then one event that names everything."""

from __future__ import annotations

from typing import Any

import msgspec

from mulligan import codec
from mulligan.document.document import settle, settle_root
from mulligan.engine import Engine
from mulligan.model import Digest, Environment, Event, LeftOut
from mulligan.objects.protocol import Bundle
from mulligan.session.environment import EnvironmentReader
from mulligan.session.write.writer import Decision, Work, Writer
from mulligan.timeline.checkpoints import checkpoint_change, environment_value, left_out_value
from mulligan.workspace.capture.capture import Captured
from mulligan.workspace.workspace import Workspace


class CheckpointRequest(msgspec.Struct, frozen=True):
    """A checkpoint to be taken."""

    kind: str
    note: str | None = None
    label: str | None = None
    safety: bool = False


class _Shared(msgspec.Struct, frozen=True):
    """What checkpoints share while it does not change, each with what stands for it in them."""

    environment: tuple[Environment, Digest] | None = None
    left_out: tuple[list[LeftOut], Any] | None = None


class Checkpointer:
    """Adds checkpoints to transactions."""

    def __init__(
        self, engine: Engine, environment: EnvironmentReader, workspace: Workspace | None
    ) -> None:
        self._clock = engine.clock
        self._environment_reader = environment
        self._workspace = workspace
        self._latest = self._stored = _Shared()

    def capture(self, bundle: Bundle) -> Captured | None:
        """Capture the workspace, if there is one, ahead of the transaction."""
        return None if self._workspace is None else self._workspace.capture(bundle)

    def commit(
        self, writer: Writer, plan: Decision, bundle: Bundle, captured: Captured | None = None
    ) -> list[Event]:
        """Write a plan together with what was captured; forget the capture when that fails."""
        try:
            events = writer.commit(plan, bundle)
        except BaseException:
            self._latest = self._stored
            if self._workspace is not None:
                self._workspace.reset()
            raise
        self._stored = self._latest
        if self._workspace is not None and captured is not None:
            self._workspace.accept(captured)
        return events

    def add(
        self, work: Work, request: CheckpointRequest, captured: Captured | None, started: float
    ) -> None:
        """Add a checkpoint of the document so far and of the captured workspace."""
        environment = self._environment(work)
        left_out = self._left_out(work, captured) if captured else None
        keyframe = work.keyframe_if_due(work.seq + 1)
        size = work.bundle.flush().size
        change = checkpoint_change(
            kind=request.kind,
            label=request.label,
            note=request.note,
            parent=work.base.checkpoint and work.base.checkpoint[1],
            keyframe=keyframe,
            environment=environment,
            ms=round((self._clock.monotonic() - started) * 1000, 3),
            size=size,
            safety=request.safety,
            tree=captured.tree if captured else None,
            coverage=captured.coverage if captured else None,
            left_out=left_out,
        )
        work.labels[work.add(change)] = request.label

    def _environment(self, work: Work) -> Digest:
        """Return the object of the environment; it is only put again when it changed."""
        now = self._environment_reader.capture()
        if self._stored.environment is None or self._stored.environment[0] != now:
            digest = settle_root(environment_value(now), work.put)
            self._latest = msgspec.structs.replace(self._latest, environment=(now, digest))
            return digest
        return self._stored.environment[1]

    def _left_out(self, work: Work, captured: Captured) -> Any:
        """Return the list of what is left out as a value, a long one as references to its parts.

        Checkpoints share these objects until the list changes. A capture has the very list of the
        one before if nothing changed in it, so that the cost of a step does not grow with it.
        """
        now = captured.coverage.left_out
        if self._stored.left_out is not None and self._stored.left_out[0] is now:
            return self._stored.left_out[1]
        value = codec.decode(settle(left_out_value(now), work.put))
        self._latest = msgspec.structs.replace(self._latest, left_out=(now, value))
        return value
