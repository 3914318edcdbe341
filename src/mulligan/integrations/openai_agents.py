"""The OpenAI Agents SDK: sessions with branches, run states, and agents that repeat nothing.

::

    session = MulliganSession("chat-1", ".")
    result = await Runner.run(agent, await session.resume_input(question), session=session)

One Mulligan session per session of the SDK: ``conversation`` has the items, ``branches`` those of
other branches, ``run_state`` a run that waits for approval, ``openai`` what else is known.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import dropwhile
from typing import Any, NamedTuple

from mulligan.integrations.missing_extra import framework

with framework("openai-agents", "agents"):
    from agents import (
        Agent,
        FunctionTool,
        ItemHelpers,
        Model,
        ModelBehaviorError,
        ModelProvider,
        MultiProvider,
        RunState,
        SessionSettings,
    )
    from agents.items import ModelResponse
    from agents.memory import SessionABC
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
    from openai.types.responses import Response, ResponseCompletedEvent
    from pydantic import TypeAdapter
    from pydantic_core import to_jsonable_python

from mulligan.integrations.handles import (
    CallThread,
    Handles,
    StoreLike,
    delete_if_present,
    name_of,
    retried,
    text_of,
)
from mulligan.integrations.json_values import (
    all_from_stored,
    all_to_stored,
    from_stored,
    to_stored,
)
from mulligan.integrations.openai_branches import (
    BRANCHES,
    CONVERSATION,
    RECORD,
    Branches,
    is_user,
    items_path,
)
from mulligan.integrations.openai_usage import Usage
from mulligan.integrations.recorded_calls import RecordedCalls
from mulligan.session import Session
from mulligan.session.parts.state import State

KIND = "openai"
RUN_STATE = "run_state"

ACCESS = "session.timeline"
"""How a program gets to the Mulligan session."""

OUTPUT_CALL = "json_tool_call"
"""What the SDK takes for the final output of models of litellm, though no tool has this name."""

_RESPONSE = TypeAdapter(ModelResponse)


class MulliganSession(SessionABC):
    """A session of the OpenAI Agents SDK on a Mulligan timeline.

    Everything is durable when its call returns, and several processes may use one session. Its
    branches are those of the SDK's ``AdvancedSQLiteSession``, by the same methods.
    """

    def __init__(
        self,
        session_id: str,
        store: StoreLike,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        """Open or make the session with that id in an open store, or in that of a directory."""
        self.session_id = text_of(session_id, "A session id")
        self.session_settings = coerce_session_settings(session_settings or SessionSettings())
        self._handles = Handles(store)
        self._thread = CallThread(f"mulligan-{session_id[:20]}")
        self._session = self._handles.session(name_of(KIND, session_id))
        self._branches = Branches(self._session)
        self._usage = Usage(self._session, self._branches)
        self._calls = RecordedCalls(self._session, self._thread, ACCESS)

    @property
    def timeline(self) -> Session:
        """The Mulligan session, for checkpoints, restores and forks; its calls block."""
        return self._session

    async def get_items(self, limit: int | None = None, branch_id: str | None = None) -> list[Any]:
        """Return the items of the current or a named branch: all, or the latest ``limit``."""
        most = resolve_session_limit(limit, self.session_settings)
        return await self._thread.run(self._items, most, branch_id)

    async def add_items(self, items: list[Any]) -> None:
        """Append items to the current branch, in one transaction."""
        if items:
            await self._thread.run(self._add, self._branches.current, list(items))

    async def pop_item(self) -> Any | None:
        """Remove and return the last item of the current branch; None if it has none."""
        return await self._thread.run(self._pop, self._branches.current)

    async def clear_session(self) -> None:
        """Remove all items of all branches; ids of branches stay taken."""
        await self._thread.run(retried, self._clear)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] | None = None
    ) -> _Snapshot:
        """Return the latest items, for the SDK's compaction; the SDK finds this by its name.

        Without it, the SDK clears the session and adds the compacted items: two transactions, and
        a crash in between would lose the conversation.
        """
        path, items, size = await self._thread.run(self._latest, self._branches.current, limit)
        replace = partial(self._replace_suffix, path, items, prune_prefix)
        return _Snapshot(all_from_stored(items), size <= limit, replace)

    async def _replace_suffix(
        self,
        path: tuple[str, ...],
        expected: list[Any],
        is_expired: Callable[[Any], bool] | None,
        start: int,
        output: list[Any],
    ) -> bool:
        """Replace the items from ``start`` on, if the conversation still ends with all of them.

        Items at the start of the conversation that have expired are removed with them.
        """
        suffix, items = expected[start:], all_to_stored(output)

        def replace(state: State) -> bool:
            if not suffix or state.tail(path, len(suffix)) != suffix:
                return False
            size = state.length(path) - len(suffix)
            if is_expired is None:
                state.truncate(path, size)
                state.extend(path, items)
            else:
                before = state.get(path)[:size]
                kept = dropwhile(lambda item: is_expired(from_stored(item)), before)
                state.put(path, [*kept, *items])
            return True

        return await self._thread.run(self._session.state.transaction, replace)

    def _latest(self, branch: str, limit: int) -> tuple[tuple[str, ...], list[Any], int]:
        path, state = items_path(self._branches.known(branch)), self._session.state
        return path, state.tail(path, limit), state.length(path)

    async def resume_input(self, input: Any, agent: Agent[Any] | None = None) -> Any:
        """Return what to pass to ``Runner.run`` so that an interrupted program goes on.

        It is the run state that waits for approval, if one was saved and ``agent`` is given; an
        empty list, if the conversation has this input and its run did not end; the input itself
        otherwise. A run has ended when the last item is a message of the agent.
        """
        if agent is not None and (waiting := await self.load_run_state(agent)) is not None:
            return waiting
        items = await self.get_items(limit=-1)
        return [] if _is_unfinished(items, ItemHelpers.input_to_new_input_list(input)) else input

    async def save_run_state(self, state: RunState[Any, Any]) -> None:
        """Keep the state of a run that waits for approval; items of a later run remove it."""
        stored = {key: to_stored(value) for key, value in state.to_json().items()}
        await self._thread.run(self._session.state.put, RUN_STATE, stored)

    async def load_run_state(self, agent: Agent[Any], **options: Any) -> RunState[Any, Any] | None:
        """Return the run that waits for approval; None if none does.

        The options are those of ``RunState.from_json``.
        """
        stored = await self._thread.run(self._session.state.get, RUN_STATE)
        if stored is None:
            return None
        found = {key: from_stored(value) for key, value in stored.items()}
        return await RunState.from_json(agent, found, **options)

    def durable(
        self,
        agent: Agent[Any],
        *,
        at_most_once: Sequence[str] = (),
        provider: ModelProvider | None = None,
    ) -> Agent[Any]:
        """Return an agent whose calls of the model and of function tools are recorded.

        A run of it that is started again after a crash asks the model nothing that it answered
        before, and calls no tool that returned. A tool whose process died in the middle is called
        again, unless its name matches a pattern of ``at_most_once``: then the run raises the SDK's
        ``UserError`` with ``EffectInDoubt`` as its cause. Agents that it can hand off to are made
        durable, too. ``provider`` finds models by name.
        """
        calls = RecordedCalls(self._session, self._thread, ACCESS, at_most_once)
        return _DurableAgents(self, calls, provider or MultiProvider()).made(agent)

    async def create_branch_from_turn(
        self, turn_number: int, branch_name: str | None = None
    ) -> str:
        """Make a branch of what was before a turn of the user, and switch to it."""
        make = partial(self._branches.make, turn_number, branch_name)
        return await self._thread.run(retried, make)

    async def create_branch_from_content(
        self, search_term: str, branch_name: str | None = None
    ) -> str:
        """Make a branch before the first turn of the user that contains a text."""
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise ValueError(f"No user turns found containing '{search_term}'")
        return await self.create_branch_from_turn(found[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Use a branch from now on, in this object."""
        await self._thread.run(self._branches.switch, branch_id)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Delete a branch; the current one only with ``force``."""
        await self._thread.run(retried, partial(self._delete, branch_id, force))

    async def list_branches(self) -> list[dict[str, Any]]:
        """Return the branches: id, numbers of messages and turns, whether current, when made."""
        return await self._thread.run(self._branches.all)

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Return the turns of the user: number, content, and whether one can branch there."""
        return await self._thread.run(self._branches.turns, branch_id)

    async def find_turns_by_content(
        self, search_term: str, branch_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the turns of the user that contain a text, whatever the case."""
        return await self._thread.run(self._branches.matching, search_term, branch_id)

    async def store_run_usage(self, result: Any) -> None:
        """Store what a run used for the latest turn of the current branch."""
        used, branch = result.context_wrapper.usage, self._branches.current
        if used is not None:
            await self._thread.run(self._usage.store, branch, used)

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """Return requests and tokens of a turn, or of each turn of a branch."""
        if user_turn_number is None:
            return await self._thread.run(self._usage.of_turns, branch_id)
        return await self._thread.run(self._usage.of_turn, user_turn_number, branch_id)

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """Return requests, tokens and turns of a branch, or of all; None if nothing is stored."""
        return await self._thread.run(self._usage.total, branch_id)

    async def get_conversation_by_turns(
        self, branch_id: str | None = None
    ) -> dict[int, list[dict[str, str | None]]]:
        """Return the kind and the tool of each item, by turn."""
        return await self._thread.run(self._usage.by_turn, branch_id)

    async def get_tool_usage(
        self, branch_id: str | None = None
    ) -> list[tuple[str | None, int, int]]:
        """Return how often each tool was called in each turn: name, count, turn."""
        return await self._thread.run(self._usage.tools, branch_id)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._handles.close()

    def _items(self, limit: int | None, branch_id: str | None) -> list[Any]:
        path = items_path(self._branches.known() if branch_id is None else branch_id)
        state = self._session.state
        if limit is None or limit < 0:  # the SDK's own sessions have no limit then, either
            return all_from_stored(state.get(path, []))
        return all_from_stored(state.tail(path, limit))

    def _add(self, branch: str, items: list[Any]) -> None:
        state = self._session.state
        with self._session.batch():
            state.extend(items_path(self._branches.known(branch)), all_to_stored(items))
            if any(not is_user(item) for item in items):
                self._calls.forget_responses()
                delete_if_present(state, RUN_STATE)

    def _pop(self, branch: str) -> Any | None:
        return self._usage.pop(self._branches.known(branch))

    @contextmanager
    def _leaving_branch(self) -> Iterator[None]:
        """A transaction that may leave the current branch; if it fails, that stays in use."""
        before = self._branches.current
        try:
            with self._session.batch():
                yield
        except BaseException:
            self._branches.current = before
            raise

    def _delete(self, branch: str, force: bool) -> None:
        with self._leaving_branch():
            self._branches.delete(branch, force)
            self._usage.forget(branch)

    def _clear(self) -> None:
        state = self._session.state
        with self._leaving_branch():
            self._branches.clear()
            self._usage.forget()
            self._calls.forget_responses()
            for path in (CONVERSATION, BRANCHES, RUN_STATE):
                delete_if_present(state, path)

    def _place(self) -> str:
        """Return where in the conversation a turn is, so that ids of calls are unique."""
        branch = self._branches.known()
        generation = self._session.state.get((RECORD, "generation"), 0)
        return f"{branch}.{generation}.{self._session.state.length(items_path(branch))}"


class _Snapshot(NamedTuple):
    """The latest items of a session, and how to replace the end of them."""

    items: list[Any]
    complete: bool
    replace_suffix: Callable[[int, list[Any]], Awaitable[bool]]


class _DurableAgents:
    """Makes copies of agents whose calls are recorded; agents may hand off in circles."""

    def __init__(
        self, session: MulliganSession, calls: RecordedCalls, provider: ModelProvider
    ) -> None:
        self._session = session
        self._calls = calls
        self._provider = provider
        # With the given one, so that no other agent gets its number.
        self._made: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def made(self, agent: Agent[Any]) -> Agent[Any]:
        if id(agent) in self._made:
            return self._made[id(agent)][1]
        made = agent.clone()
        self._made[id(agent)] = agent, made
        made.model = _DurableModel(agent.model, agent.name, self._calls, self._provider)
        made.tools = [self._tool(tool) for tool in agent.tools]
        made.handoffs = [self._handoff(other) for other in agent.handoffs]
        return made

    def _handoff(self, other: Any) -> Any:
        if isinstance(other, Agent):
            return self.made(other)
        invoke = other.on_invoke_handoff

        async def handed_off(context: Any, arguments: str) -> Any:
            return self.made(await invoke(context, arguments))

        made = copy.copy(other)
        made.on_invoke_handoff = handed_off
        return made

    def _tool(self, tool: Any) -> Any:
        # An agent as a tool has a run of its own, which may stop for approval.
        if not isinstance(tool, FunctionTool) or getattr(tool, "_is_agent_tool", False):
            return tool
        invoke = tool.on_invoke_tool

        async def recorded(context: Any, arguments: str) -> Any:
            place = await self._session._thread.run(self._session._place)

            async def call() -> Any:
                return _output(await invoke(context, arguments))

            id = f"{place}.{context.tool_call_id}"
            return await self._calls.tool(id, tool.name, arguments, call)

        return dataclasses.replace(tool, on_invoke_tool=recorded)


class _DurableModel(Model):
    """A model whose responses are recorded."""

    def __init__(
        self, model: Any, agent: str, calls: RecordedCalls, provider: ModelProvider
    ) -> None:
        self._model = model if isinstance(model, Model) else provider.get_model(model)
        self._agent = agent
        self._calls = calls

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        handoffs: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        asked = ["response", self._agent, system_instructions, to_jsonable_python(input)]
        found = await self._calls.recorded(asked)
        if found is None:
            given = (model_settings, tools, output_schema, handoffs, *args)
            made = await self._model.get_response(system_instructions, input, *given, **kwargs)
            found = _RESPONSE.dump_python(made, mode="json", exclude_none=True)
            if _is_usable(made.output, [*tools, *handoffs], output_schema):
                await self._calls.record(asked, found)
        return _RESPONSE.validate_python({"response_id": None, **found})

    async def stream_response(
        self,
        system_instructions: Any,
        input: Any,
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        handoffs: Any,
        *args: Any,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        # Only the last event, which has the whole response, is recorded. After a crash it is the
        # only one.
        asked = ["stream", self._agent, system_instructions, to_jsonable_python(input)]
        found = await self._calls.recorded(asked)
        if found is not None:
            response = Response.model_validate(found)
            yield ResponseCompletedEvent(
                response=response, sequence_number=0, type="response.completed"
            )
            return
        given = (model_settings, tools, output_schema, handoffs, *args)
        async for event in self._model.stream_response(
            system_instructions, input, *given, **kwargs
        ):
            if isinstance(event, ResponseCompletedEvent) and _is_usable(
                event.response.output, [*tools, *handoffs], output_schema
            ):
                # Before it is handed on: its tools are called as soon as it is.
                await self._calls.record(asked, event.response.model_dump(mode="json"))
            yield event


def _is_usable(output: list[Any], known: list[Any], output_schema: Any) -> bool:
    """Whether a run can go on with an answer; otherwise it raises ``ModelBehaviorError``.

    A run that fails so asks again when it is started again. The same answer would fail it again.
    """
    calls = [item for item in output if item.type not in ("message", "reasoning")]
    if calls:
        names = {getattr(one, "tool_name", None) or one.name for one in known}
        return all(
            item.type != "function_call" or item.namespace or item.name in {*names, OUTPUT_CALL}
            for item in calls
        )
    text = ItemHelpers.extract_text(output[-1]) if output else None
    if not text or output_schema is None or output_schema.is_plain_text():
        return True
    try:
        output_schema.validate_json(text)
    except ModelBehaviorError:
        return False
    return True


def _output(result: Any) -> Any:
    """Return what a tool gave as JSON can hold it; what cannot, as the text that the SDK makes."""
    try:
        return to_jsonable_python(result)
    except ValueError:
        return str(result)


def _is_unfinished(items: list[Any], asked: list[Any]) -> bool:
    """Whether a conversation has an input, and no answer after it."""
    size = len(asked)
    if not asked:
        return True
    for start in range(len(items) - size, -1, -1):
        if items[start : start + size] == asked:
            last = items[-1]
            return not (isinstance(last, dict) and last.get("role") == "assistant")
    return False
