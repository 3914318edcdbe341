"""Operations: a checkpoint before something risky, and a way back when it fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, get_args

from mulligan.document.fold import event_change
from mulligan.errors import InvalidTask
from mulligan.model import Checkpoint, Path, Restored, Rollback
from mulligan.session.components import component, merge_unit
from mulligan.session.names import WORKSPACE
from mulligan.session.runtime.rollback import others_at_work
from mulligan.timeline.undo import outermost

if TYPE_CHECKING:
    from mulligan.document.values import PathLike
    from mulligan.session.session import Session

Function = TypeVar("Function", bound=Callable[..., Any])

OPERATIONS = "operations"
FAILED_OPERATIONS = "failed_operations"
"""Control: the checkpoints before operations that failed. Their events may be folded away."""

ROLLBACKS: tuple[Rollback, ...] = get_args(Rollback)


class Operation(ContextDecorator):
    """A ``with`` block, or a decorated function, that is rolled back when it raises.

    ``checkpoint`` is the one taken before it; ``restored`` is what a rollback did. The operation
    is recorded on the timeline while it runs, so that its checkpoint is kept.
    """

    def __init__(self, session: Session, name: str, rollback: Rollback | None) -> None:
        if rollback is not None and rollback not in ROLLBACKS:
            raise InvalidTask(f"A rollback is one of {', '.join(ROLLBACKS)}, not {rollback!r}.")
        self._session = session
        self.name = name
        self.rollback = rollback
        self.checkpoint: Checkpoint | None = None
        self.restored: Restored | None = None

    def __call__(self, function: Function) -> Function:
        """Decorate a function: every call is its own operation.

        The operation of a coroutine function lasts until the coroutine ends.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidTask(
                f"{function.__name__!r} is a generator: a call returns before its body runs.",
                hint="Use `with session.operation(NAME):` inside it.",
            )
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return await function(*args, **kwargs)

        return cast(Function, awaited)

    def _recreate_cm(self) -> Self:
        """Give every call of a decorated function its own operation."""
        return type(self)(self._session, self.name, self.rollback)

    def __enter__(self) -> Self:
        # Before the record: an operation that is recorded always has a checkpoint to go back to.
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
        if isinstance(error, SystemExit | GeneratorExit):
            self._say("operation.left", [self._place])  # deliberate, so there is no rollback
            return
        reason = f"{type(error).__name__}: {error}"
        # First the checkpoint: a crash during the rollback must not lose what the failure left.
        self._session.checkpoint("recovery", note=f"{self.name} failed: {reason}"[:500])
        rollback = self.rollback or self._safe_rollback()
        self._roll_back(rollback)
        # Last: until then the operation counts as open, and a resume after a crash here names it.
        failed = [[FAILED_OPERATIONS, self._place[1]], self.name]
        self._say("operation.failed", [self._place], failed, error=reason[:500], rollback=rollback)

    @property
    def _place(self) -> list[str | int]:
        assert self.checkpoint is not None  # noqa: S101 -- set on entering
        return [OPERATIONS, self.checkpoint.id]

    def _say(self, kind: str, *changes: list[Any], **facts: Any) -> None:
        facts = {"name": self.name, "checkpoint": self._place[1], **facts}
        self._session.internal.commit_events(
            lambda _: [event_change(kind, control=changes, **facts)]
        )

    def _safe_rollback(self) -> Rollback:
        """Return the default rollback: without files while other agents work on them."""
        others = others_at_work(self._session, self._session.actor)
        return "state" if others else "both"

    def _roll_back(self, rollback: Rollback) -> None:
        assert self.checkpoint is not None  # noqa: S101 -- set on entering
        if rollback == "none":
            return
        only: list[PathLike] = []
        if rollback != "workspace":
            only += self._parts(self.checkpoint)
        if rollback != "state" and self.checkpoint.workspace is not None:
            only.append(WORKSPACE)
        if only:
            self.restored = self._session.internal.roll_back(self.checkpoint, only)

    def _parts(self, checkpoint: Checkpoint) -> list[Path]:
        """Return what is rolled back: everything except process records and sent mail.

        If others have written in the meantime, only what this agent alone changed is rolled back.
        """
        mine: list[Path] = []
        theirs: list[Path] = []
        for event in self._session.events(since=checkpoint):
            changed = mine if event.actor == self._session.actor else theirs
            changed += _changed(event.payload)
        now, then = self._session.state.get(), self._session.state.at(checkpoint).get()
        paths = [path for path in mine if not any(_overlap(path, other) for other in theirs)]
        if not theirs:
            paths = [(name,) for name in sorted(now.keys() | then.keys())]
        known = [path for path in outermost(paths) if component(path[0]).rolls_back]
        return [path for path in known if _is_in(now, path) or _is_in(then, path)]


def _changed(payload: dict[str, Any]) -> Iterator[Path]:
    """Yield the paths of the state that an event has changed."""
    paths = [change[0] for change in payload.get("changes", ())]
    if "path" in payload:
        paths.append(payload["path"])
    yield from (merge_unit(tuple(path)) for path in paths if path)


def _overlap(one: Path, other: Path) -> bool:
    """Whether one of two paths lies inside the other, or they are the same."""
    return all(a == b for a, b in zip(one, other, strict=False))


def _is_in(value: Any, path: Path) -> bool:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
