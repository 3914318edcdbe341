"""Operations: a checkpoint before something risky, and a way back when it fails."""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mulligan.errors import InvalidTask
from mulligan.model import Checkpoint, Restored
from mulligan.session.agents import AGENTS
from mulligan.session.files import WORKSPACE
from mulligan.state.events import happened

if TYPE_CHECKING:
    from mulligan.session.session import Session

OPERATIONS = "operations"

ROLLBACKS = ("both", "state", "workspace", "none")


class Operation(ContextDecorator):
    """A ``with`` block, or a decorated function, that is rolled back when it raises.

    ``checkpoint`` is the one taken before; ``restored`` what a rollback did. The record of the
    operation stays on the timeline while it is under way, so that its checkpoint is kept.
    """

    def __init__(self, session: Session, name: str, rollback: str) -> None:
        if rollback not in ROLLBACKS:
            raise InvalidTask(f"A rollback is one of {', '.join(ROLLBACKS)}, not {rollback!r}.")
        self._session = session
        self.name = name
        self.rollback = rollback
        self.checkpoint: Checkpoint | None = None
        self.restored: Restored | None = None

    def _recreate_cm(self) -> Self:
        """Give every call of a decorated function an operation of its own."""
        return type(self)(self._session, self.name, self.rollback)

    def __enter__(self) -> Self:
        self.checkpoint = self._session.checkpoint("pre_operation", note=self.name)
        record = {"name": self.name, "agent": self._session.actor}
        self._say("operation.begun", [self._place, record])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._say("operation.succeeded", [self._place])
            return
        reason = f"{type(error).__name__}: {error}"
        self._session.checkpoint("recovery", note=f"{self.name} failed: {reason}"[:500])
        self._roll_back()
        self._say("operation.failed", [self._place], error=reason[:500])

    @property
    def _place(self) -> list[str | int]:
        assert self.checkpoint is not None  # noqa: S101 -- set on entering
        return [OPERATIONS, self.checkpoint.id]

    def _say(self, kind: str, change: list[Any], **facts: Any) -> None:
        facts = {"name": self.name, "checkpoint": self._place[1], **facts}
        self._session.tell(lambda _: [happened(kind, control=[change], **facts)])

    def _roll_back(self) -> None:
        assert self.checkpoint is not None  # noqa: S101 -- set on entering
        if self.rollback == "none":
            return
        only = [] if self.rollback == "workspace" else self._components(self.checkpoint)
        if self.rollback != "state" and self.checkpoint.workspace is not None:
            only.append(WORKSPACE)
        if only:
            self.restored = self._session.restore(self.checkpoint, only=only)

    def _components(self, checkpoint: Checkpoint) -> list[str]:
        """Return the parts of the state, now and before, but for the records of processes."""
        now, then = self._session.state.get(), self._session.state_at(checkpoint)
        return sorted((now.keys() | then.keys()) - {AGENTS})
