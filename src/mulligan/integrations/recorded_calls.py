"""Calls of models and tools that are recorded, so that a run which is started again repeats none.

A response of a model is recorded until what it led to is in the conversation: then the model is
not asked the same again. A call of a tool is a call of ``session.tools``, and stays there.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from blake3 import blake3

from mulligan.errors import EffectInDoubt, UnknownEffect
from mulligan.integrations.handles import CallThread, delete_if_present
from mulligan.integrations.json_values import from_stored, to_stored
from mulligan.model import ToolCall
from mulligan.session import Session
from mulligan.session.parts.tools import ActiveCall

RESPONSES = "model_responses"
"""The component with the responses of models that the conversation does not have yet."""

MAX_ID = 160
"""How many characters of a framework's id are used as they are; longer ones end in a digest."""

MakeCall = Callable[[], Awaitable[Any]]
"""Makes a call, and returns its result as JSON can hold it."""


class RecordedCalls:
    """The recorded calls of one session."""

    def __init__(
        self, session: Session, thread: CallThread, access: str, at_most_once: Sequence[str] = ()
    ) -> None:
        """Connect to a session; ``access`` is how a program of the framework gets to it.

        Calls of tools whose names match a pattern of ``at_most_once`` raise ``EffectInDoubt``
        instead of being made again after a crash in the middle.
        """
        self._session = session
        self._thread = thread
        self._access = access
        self._at_most_once = tuple(at_most_once)

    async def response(self, asked: Any, call: MakeCall) -> Any:
        """Return the recorded response to what a model is asked, or ask it and record that."""
        found = await self.recorded(asked)
        if found is None:
            found = await call()
            await self.record(asked, found)
        return found

    async def recorded(self, asked: Any) -> Any:
        """Return the recorded response to what a model is asked; None if there is none."""
        path = (RESPONSES, digest_of(asked))
        return from_stored(await self._thread.run(self._session.state.get, path))

    async def record(self, asked: Any, response: Any) -> None:
        """Record the response to what a model was asked."""
        path = (RESPONSES, digest_of(asked))
        await self._thread.run(self._session.state.set, path, to_stored(response))

    async def forget(self, asked: Any) -> None:
        """Remove the recorded response to what a model was asked, if there is one."""
        path = (RESPONSES, digest_of(asked))
        await self._thread.run(delete_if_present, self._session.state, *path)

    def forget_responses(self) -> None:
        """Remove the responses: the conversation has what they led to. Inside of a batch, too."""
        delete_if_present(self._session.state, RESPONSES)

    async def tool(self, id: str, name: str, args: Any, call: MakeCall) -> Any:
        """Return the recorded result of a call, or make it between its two records."""
        active = await self.begin(id, name, args)
        if isinstance(active, ToolCall):
            return from_stored(active.result)
        try:
            result = await call()
        except BaseException as error:
            await self.end(active, error=error)
            raise
        await self.end(active, result)
        return result

    async def begin(self, id: str, name: str, args: Any) -> ToolCall | ActiveCall:
        """Return the call if it has returned; otherwise record that it is made now."""
        return await self._thread.enter(partial(self._begin, id, name, args), _not_made)

    async def end(
        self, active: ActiveCall, result: Any = None, error: BaseException | None = None
    ) -> None:
        """Record how a call ended."""
        if error is None:
            active.returned(to_stored(result))
            await self._thread.run_to_end(active.__exit__, None, None, None)
        else:
            leave = partial(active.__exit__, type(error), error, error.__traceback__)
            await self._thread.run_to_end(leave)

    def _begin(self, id: str, name: str, args: Any) -> ToolCall | ActiveCall:
        known = self._known(id, name, args)
        if isinstance(known, ToolCall):
            return known
        return self._session.tools.call(name, to_stored(args), id=known).__enter__()

    def _known(self, id: str, name: str, args: Any) -> ToolCall | str:
        """Return the call that has returned, or the id under which it is made now."""
        first = id if len(id) <= MAX_ID else f"{id[: MAX_ID - 33]}~{digest_of(id)}"
        number, known = 1, first
        while (found := self._found(known)) is not None:
            if found.name == name and from_stored(found.args) == args:
                if found.status == "returned":
                    return found
                if found.status != "failed" and self._is_once(name):
                    raise EffectInDoubt(
                        f"The tool {name!r} was called, and the process died before it returned.",
                        hint=f"Look whether it happened, then record that: {self._access}.tools"
                        f".record({name!r}, id={known!r}, result=…), or with error=… in the place "
                        "of the result if it is to be called again.",
                    )
            number += 1
            known = f"{first}#{number}"
        return known

    def _found(self, id: str) -> ToolCall | None:
        try:
            return self._session.tools.get(id)
        except UnknownEffect:
            return None

    def _is_once(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._at_most_once)


def _not_made(active: ToolCall | ActiveCall) -> None:
    """End a call that was recorded, and cancelled before it was made."""
    if isinstance(active, ActiveCall):
        active.failed("cancelled before it was made")
        active.__exit__(None, None, None)


def digest_of(value: Any) -> str:
    """Return the digest of a JSON value, equal for equal values."""
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return blake3(data).hexdigest(length=16)
