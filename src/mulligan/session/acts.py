"""What a session does and records: steps, effects, approvals, tool calls; made at first use.

Commands that only look at a session need none of these imports.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from mulligan.session.occurrences import Scope

if TYPE_CHECKING:
    from mulligan.model import Checkpoint, Effect, EffectPlan
    from mulligan.session.history import History
    from mulligan.session.parts.approvals import Approvals
    from mulligan.session.parts.compensation import Compensation
    from mulligan.session.parts.effects import Effects
    from mulligan.session.parts.steps import Steps
    from mulligan.session.parts.tools import Tools
    from mulligan.session.write.restore_target import Target
    from mulligan.session.write.writer import Writer
    from mulligan.timeline.points import PointLike

Part = TypeVar("Part")


class Acts:
    """The parts of one handle that act and record."""

    def __init__(
        self,
        writer: Writer,
        history: History,
        has_acts: Callable[[], bool],
        changed: Callable[[int], list[str] | None],
        checkpoint: Callable[..., Checkpoint],
        refuse_beside_restore: Callable[[], None],
    ) -> None:
        """Connect to a session.

        ``has_acts`` says whether it has any effects, ``changed`` which paths changed since a seq.
        ``refuse_beside_restore`` raises if another process restores files of the workspace.
        """
        self.scope = Scope(writer.actor)
        self._writer = writer
        self._history = history
        self._has_acts = has_acts
        self._changed = changed
        self._checkpoint = checkpoint
        self._refuse_beside_restore = refuse_beside_restore
        # Reentrant: making one part may need another.
        self._lock = threading.RLock()
        self._parts: dict[str, object] = {}

    @property
    def steps(self) -> Steps:
        """Runs durable steps."""
        from mulligan.session.parts.steps import Steps

        return self._part("steps", lambda: Steps(self._writer, self.scope, lambda: self.effects))

    @property
    def effects(self) -> Effects:
        """The ledger of effects."""
        from mulligan.session.parts.effects import Effects

        def make() -> Effects:
            return Effects(self._writer, self.scope, self._before, self._answer, self._plan)

        return self._part("effects", make)

    @property
    def approvals(self) -> Approvals:
        """The questions that effects wait for."""
        from mulligan.session.parts.approvals import Approvals

        return self._part("approvals", lambda: Approvals(self._writer, lambda: self.effects))

    @property
    def tools(self) -> Tools:
        """The calls of tools."""
        from mulligan.session.parts.tools import Tools

        def make() -> Tools:
            effects = lambda: self.effects  # noqa: E731
            return Tools(self._writer, self.scope, self._before, effects, self._changed)

        return self._part("tools", make)

    @property
    def compensation(self) -> Compensation:
        """Undoes effects before a restore."""
        from mulligan.session.parts.compensation import Compensation

        return self._part("compensation", lambda: Compensation(self._writer, lambda: self.effects))

    def prepare(self, target: Target, *, accept: bool) -> Target:
        """Undo the effects after a target, where a restore of it goes back behind them.

        Raises ``LeftBehind`` for those that cannot be undone, unless they are accepted, and
        ``RestoreBusy``, with nothing undone, if files of the workspace are being restored.
        """
        import msgspec

        # The imports are for sessions with effects alone.
        if target.rewinds and self._has_acts():
            if target.tree is not None:
                # The restore would be refused after its effects were undone.
                self._refuse_beside_restore()
            self.compensation.prepare(target.document, accept=accept)
        return msgspec.structs.replace(target, accepts=accept)

    def undo_after(self, point: PointLike, *, accept: bool) -> None:
        """Undo the effects after a point that can be undone, as a restore of all of it does.

        Raises ``LeftBehind`` for those that cannot, and undoes none, unless they are accepted.
        """
        if self._has_acts():
            document = self._history.document_at(self._history.point(point))
            self.compensation.prepare(document, accept=accept)

    def _part(self, name: str, make: Callable[[], Part]) -> Part:
        # One of each for all threads: a second one would count its calls from the start again.
        with self._lock:
            if name not in self._parts:
                self._parts[name] = make()
            return cast(Part, self._parts[name])

    def _before(self, note: str) -> Checkpoint:
        return self._checkpoint("pre_operation", note=note)

    def _answer(self, effect: Effect) -> bool:
        return self.approvals.answer(effect)

    def _plan(self, point: PointLike) -> EffectPlan:
        return self.compensation.plan(self._history.document_at(self._history.point(point)))
