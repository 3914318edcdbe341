"""smolagents: a step callback that keeps an agent's steps on a Mulligan timeline.

::

    steps = MulliganSteps("research-1", ".")
    answer = steps.run(agent, task)

One Mulligan session per id: ``conversation`` has the steps, ``variables`` those of a code agent
after its last step, ``smolagents`` the task and whether it was answered.
"""

from __future__ import annotations

import dataclasses
import io
import uuid
import weakref
from collections.abc import Iterator
from typing import Any

from mulligan.integrations.missing_extra import framework

with framework("smolagents", "smolagents"):
    from smolagents import ActionStep, AgentError, MemoryStep, TaskStep
    from smolagents.agent_types import handle_agent_output_types
    from smolagents.memory import FinalAnswerStep
    from smolagents.utils import AgentMaxStepsError

from mulligan.document.document import MISSING
from mulligan.errors import UnstorableValue
from mulligan.integrations.handles import (
    Handles,
    StoreLike,
    delete_if_present,
    name_of,
    retried,
    text_of,
)
from mulligan.integrations.typed_values import TypedValues
from mulligan.session import Session

KIND = "smolagents"
RECORD = "smolagents"
STEPS = "conversation"
VARIABLES = "variables"
WRITER = (RECORD, "writer")
"""Which object stored the last step, and how many steps there are since."""

MAX_DEPTH = 8
"""How many lists and objects in each other are looked through for parts of a step."""

_REBUILT = frozenset({"model_input_messages", "raw"})
"""What is not stored of a step: what a model was sent is in the steps before, and the answer of a
provider in the message that was made of it."""

_IMAGES = frozenset({"observations_images", "task_images"})


class MulliganSteps:
    """Stores every step of an agent when it ends; a callback for steps of every kind.

    What a step did is durable before the next one begins. A run that was interrupted goes on after
    its last step: :meth:`run` does so. Files and other things that the code of a step changed are
    not undone when its step did not end; variables of a code agent that cannot be stored, such as
    functions, are missing after a resume, and named in ``lost``.
    """

    def __init__(self, id: str, store: StoreLike) -> None:
        """Keep the steps of the session with an id, in an open store or in that of a directory."""
        self._handles = Handles(store)
        self._session = self._handles.session(name_of(KIND, text_of(id, "An id")))
        self._values = TypedValues(trusted=("smolagents.",))
        # Code may depend on the order of a dictionary; a step is only read.
        self._ordered = TypedValues(trusted=("smolagents.",), keeps_order=True)
        self._agents: weakref.WeakSet[Any] = weakref.WeakSet()
        self._offset = 0
        self._missing: tuple[str, ...] = ()
        self._id = uuid.uuid4().hex
        self._written: list[Any] | None = None
        """What is in the place of ``WRITER`` since this object wrote last; None before."""
        self._known: list[Any] = []
        """The steps of the agent's memory that are stored, as its objects."""
        self._last: list[Any] = []
        """The last step that was stored here: another one is there after a restore."""
        self.lost: tuple[str, ...] = ()
        """The variables of the code agent that could not be stored after its last step."""

    @property
    def timeline(self) -> Session:
        """The Mulligan session, for checkpoints, restores and forks."""
        return self._session

    def __call__(self, step: Any, agent: Any) -> None:
        """Store a step that has ended, and the task before it."""
        if isinstance(step, FinalAnswerStep):
            with self._session.batch():
                self._check_writer(self._session.state.length(STEPS))
                self._session.state.set((RECORD, "has_ended"), True)
            return
        if isinstance(step, ActionStep):
            step.step_number += self._offset
        # An agent adds a step to its memory after the callbacks.
        present = [*agent.memory.steps, step]
        self._follow_restore()
        count = _same(self._known, present)
        with self._session.batch():
            if count < self._session.state.length(STEPS):
                self._session.state.truncate(STEPS, count)  # those of an earlier run
            new = [self._dumped(one) for one in present[count:]]
            self._session.state.extend(STEPS, new)
            self._store_variables(agent)
            written = self._check_writer(count + len(new))
        self._known, self._last, self._written = present, new[-1:], written

    def run(self, agent: Any, task: str, **options: Any) -> Any:
        """Run an agent on a task, or go on with it if it was interrupted in the middle.

        The options are those of ``agent.run``. With ``reset=False`` the agent continues from the
        stored steps of earlier tasks, and from what the program put into its memory since.
        """
        is_known = agent in self._agents
        if not is_known:
            self._agents.add(agent)
            agent.step_callbacks.register(MemoryStep, self)
        if options.get("additional_args") is None and self._is_interrupted(task):
            return self._resumed(agent, task, options)
        is_new = options.get("reset", True)
        kept, shared = ([], 0) if is_new else self._continued(agent, is_known)
        agent.memory.steps = kept
        with self._session.batch():
            if shared != self._session.state.length(STEPS):
                self._session.state.truncate(STEPS, shared)
            delete_if_present(self._session.state, VARIABLES)
            written = [self._id, shared]
            record = {"task": task, "has_ended": False, "lost": [], "writer": written}
            self._session.state.set(RECORD, record)
        self._known, self._written = kept[:shared], written
        self._offset, self._missing = 0, ()
        return agent.run(task, **{**options, "reset": False})

    def steps(self) -> list[Any]:
        """Return the steps that are stored."""
        return [self._loaded(step) for step in self._session.state.get(STEPS, [])]

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._handles.close()

    def _is_interrupted(self, task: str) -> bool:
        record = self._session.state.get(RECORD)
        return (
            record is not None
            and record.get("task") == task  # none, if the steps came by the callback alone
            and not record["has_ended"]
            and self._session.state.length(STEPS) > 0
        )

    def _resumed(self, agent: Any, task: str, options: dict[str, Any]) -> Any:
        kept = retried(self._taken_over)
        places = [n for n, step in enumerate(kept) if isinstance(step, TaskStep)]
        done = sum(isinstance(step, ActionStep) for step in kept[places[-1] :])
        agent.memory.steps, self._known = _Continued(kept), kept
        if _is_last(kept[-1]):
            return _answered(agent, kept[-1].action_output, task, options)
        agent.state.update(self._variables())
        self._offset = done
        most = options.get("max_steps") or agent.max_steps
        return agent.run(task, **{**options, "reset": False, "max_steps": max(1, most - done)})

    def _taken_over(self) -> list[Any]:
        """Return the stored steps; from now on, another process that continues them is refused."""
        before = self._session.state.get(WRITER, MISSING)
        kept = self.steps()
        written = [self._id, len(kept)]
        self._session.state.set(WRITER, written, expected=before)
        self._written = written
        return kept

    def _check_writer(self, count: int) -> list[Any]:
        """Note that this object stores a step; raises ``Conflict`` if another one has since.

        The steps of two processes would be mixed. What this one did meanwhile is not stored.
        """
        state, written = self._session.state, [self._id, count]
        if self._written is None:  # a callback that was registered without ``run``
            state.set(WRITER, written)
        else:
            state.set(WRITER, written, expected=self._written)
        return written

    def _follow_restore(self) -> None:
        """Take what this object wrote before as the last it wrote, if the session was restored."""
        found = self._session.state.get(WRITER, None)
        if found is not None and found[0] == self._id and found != self._written:
            self._known, self._written = [], found

    def _continued(self, agent: Any, is_known: bool) -> tuple[list[Any], int]:
        """Return the steps that a run continues from, and how many of them are stored.

        They are those of the agent's memory, which the program may have changed since the last
        run, after the stored ones if the agent is new here. After a restore of the session they
        are the stored ones.
        """
        stored, present = self._session.state.get(STEPS, []), [*agent.memory.steps]
        if is_known and stored[-1:] != self._last:
            return self.steps(), len(stored)
        shared = _equal(stored, [self._dumped(step) for step in present])
        if is_known or shared == len(stored):
            return present, shared
        return [*self.steps(), *present], len(stored)

    def _store_variables(self, agent: Any) -> None:
        """Store the variables of a code agent, as far as they can be."""
        found = getattr(getattr(agent, "python_executor", None), "state", None)
        if not isinstance(found, dict):
            return
        # What an earlier process could not store is missing until code defines it again.
        stored, lost = {}, [name for name in self._missing if name not in found]
        for name, value in found.items():
            if name.startswith("_"):
                continue  # of the executor: its printed output, counters and the like
            try:
                stored[name] = self._ordered.to_plain(value)
            except UnstorableValue:
                lost.append(name)
        self._session.state.put(VARIABLES, stored)
        self.lost = tuple(lost)
        self._session.state.put((RECORD, "lost"), lost)

    def _variables(self) -> dict[str, Any]:
        found, lost = {}, [*self._session.state.get((RECORD, "lost"), [])]
        for name, value in (self._session.state.get(VARIABLES) or {}).items():
            try:
                found[name] = self._values.from_plain(value)
            except UnstorableValue:  # its class is in a module that the code of a step imported
                lost.append(name)
        self.lost = self._missing = tuple(lost)
        return found

    def _dumped(self, step: Any) -> Any:
        return self._values.to_plain(self._slim(step))

    def _slim(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of a step that can be stored: images as PNG, errors as their message."""
        # Lists of a step are not deeper; what its action returned may be.
        if isinstance(value, list) and depth < MAX_DEPTH:
            return [self._slim(item, depth + 1) for item in value]
        if isinstance(value, AgentError):
            return {"kind": type(value).__name__, "message": value.message}
        is_part = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if not is_part or depth >= MAX_DEPTH:
            return self._storable(value)
        made = object.__new__(type(value))
        for field in dataclasses.fields(value):
            item = getattr(value, field.name, None)
            if field.name in _IMAGES:
                item = None if item is None else [_png(image) for image in item]
            elif field.name in _REBUILT:
                item = None
            else:
                item = self._slim(item, depth + 1)
            object.__setattr__(made, field.name, item)
        return made

    def _storable(self, value: Any) -> Any:
        try:
            self._values.to_plain(value)
        except UnstorableValue:
            return _text(value)  # a result of an action that only the program knows
        return value

    def _loaded(self, stored: Any) -> Any:
        step = self._values.from_plain(stored)
        for name in _IMAGES:
            if getattr(step, name, None) is not None:
                setattr(step, name, [_image(data) for data in getattr(step, name)])
        if isinstance(getattr(step, "error", None), dict):
            step.error = _error(**step.error)
        return step


class _Continued(list[Any]):
    """The steps of a run that goes on: the task that ``run`` adds is among them already."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__(steps)
        self._has_task = False

    def append(self, step: Any) -> None:
        if isinstance(step, TaskStep) and not self._has_task:
            self._has_task = True
            return
        super().append(step)


def _is_last(step: Any) -> bool:
    """Whether a run has its answer with a step, although its end is not stored."""
    return isinstance(step, ActionStep) and (
        step.is_final_answer or isinstance(step.error, AgentMaxStepsError)
    )


def _answered(agent: Any, answer: Any, task: str, options: dict[str, Any]) -> Any:
    """Return what ``agent.run`` does for a run whose steps are over; the model is not asked."""

    def end(**_: Any) -> Iterator[Any]:
        step = FinalAnswerStep(handle_agent_output_types(answer))
        agent.step_callbacks.callback(step, agent=agent)
        yield step

    agent._run_stream = end
    try:
        return agent.run(task, **{**options, "reset": False})
    finally:
        del agent._run_stream


def _text(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # by its class, or because it nests too deep
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _same(first: list[Any], second: list[Any]) -> int:
    """Return how many objects two lists have in common at their start."""
    differing = (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a is not b)
    return next(differing, min(len(first), len(second)))


def _equal(first: list[Any], second: list[Any]) -> int:
    """Return how many items two lists have in common at their start."""
    differing = (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differing, min(len(first), len(second)))


def _error(kind: str, message: str) -> Any:
    """Return an error of a step; none is logged again."""
    import smolagents.utils

    found = getattr(smolagents.utils, kind, AgentError)
    made = found.__new__(found, message)
    made.message = message
    return made


def _png(image: Any) -> bytes:
    written = io.BytesIO()
    image.save(written, format="PNG")
    return written.getvalue()


def _image(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data))
