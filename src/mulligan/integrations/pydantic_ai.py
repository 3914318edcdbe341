"""pydantic-ai: a conversation store on Mulligan timelines, and runs that repeat nothing.

::

    store = MulliganConversationStore(".")
    result = await store.run(agent, prompt, conversation_id="chat-1")

One Mulligan session per conversation: ``conversation`` has its entries, ``pydantic_ai`` its record.
A fork gets a session of its own, whose entries share their storage with those of its origin.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from mulligan.integrations.missing_extra import framework

with framework("pydantic-ai", "pydantic_ai"):
    from pydantic import TypeAdapter
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.exceptions import UnexpectedModelBehavior
    from pydantic_ai.messages import ModelMessagesTypeAdapter

from mulligan.document.document import MISSING
from mulligan.errors import UnstorableValue
from mulligan.integrations.handles import (
    CallThread,
    Handles,
    StoreLike,
    delete_if_present,
    name_of,
    prefix_of,
    retried,
    text_of,
)
from mulligan.integrations.json_values import all_from_stored, all_to_stored
from mulligan.integrations.recorded_calls import RESPONSES, RecordedCalls
from mulligan.integrations.typed_values import TypedValues
from mulligan.session import Session

KIND = "pydantic-ai"
RECORD = "pydantic_ai"
ENTRIES = "conversation"

MAX_PLACES = 10_000
"""How many entries a process remembers the conversation of."""

_RECORDS = TypeAdapter(ConversationRecord)

_SEEN = ("kind", "instructions", "parts")
_FLEETING = frozenset({"timestamp", "metadata"})
"""What parts of equal messages of two runs differ in."""


class MulliganConversationStore(ConversationStore):
    """A conversation store of pydantic-ai.

    A save is one transaction. A deleted conversation takes its entries with it; forks have their
    own. Several processes may use one store.
    """

    def __init__(self, store: StoreLike) -> None:
        """Use an open store, or open that of a directory."""
        self._handles = Handles(store)
        self._thread = CallThread("mulligan-pydantic-ai")
        self._places: dict[str, str] = {}

    async def run(
        self,
        agent: Any,
        prompt: Any,
        *,
        conversation_id: str,
        scope: str | None = None,
        at_most_once: Sequence[str] = (),
        **options: Any,
    ) -> Any:
        """Run an agent in a stored conversation, save it, and return the result.

        A program that died in the middle and is started again with the same prompt goes on: the
        model is asked nothing that it answered before, and no tool that returned is called again.
        The options are those of ``Agent.run``; ``at_most_once`` is as in ``MulliganDurability``.
        """
        loaded = await self.load(conversation_id, scope=scope)
        conversation = loaded or Conversation(conversation_id=conversation_id)
        durability = MulliganDurability(self, at_most_once)
        given = [*(options.pop("capabilities", None) or ()), durability]
        result = await agent.run(prompt, conversation=conversation, capabilities=given, **options)
        await self.save(result, scope=scope)
        return result

    def session(self, conversation_id: str) -> Session:
        """Return the Mulligan session of a conversation, for checkpoints and forks."""
        return self._handles.session(_name(conversation_id))

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._handles.close()

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; None if there is none."""
        return await self._thread.run(self._record, _name(conversation_id))

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records of all conversations, or of those of a scope, newest first."""
        found = await self._thread.run(self._records)
        matching = [record for record in found if scope is None or record.scope == scope]
        return sorted(matching, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries; raises ``ConversationConflict``."""
        write = partial(self._write, record, list(new_entries), expected_revision)
        await self._thread.run(retried, write)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation and its entries; raises ``ConversationConflict``."""
        delete = partial(self._delete, conversation_id, expected_revision)
        await self._thread.run(retried, delete)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; raises ``LookupError``."""
        found = await self._thread.run(self._chain, entry_id, 1)
        return found[-1]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to one, or the last ``limit`` of them; raises ``LookupError``."""
        if head_id is None or limit == 0:
            return []
        return await self._thread.run(self._chain, head_id, limit)

    def _record(self, name: str) -> ConversationRecord | None:
        session = self._handles.find(name)
        stored = None if session is None else session.state.get(RECORD)
        if stored is None:
            return None
        record = cast(ConversationRecord, _RECORDS.validate_python(all_from_stored([stored])[0]))
        self._note(record, name)
        return record

    def _records(self) -> list[ConversationRecord]:
        names = [session.name for session in self._handles.starting_with(prefix_of(KIND))]
        return [record for name in names if (record := self._record(name)) is not None]

    def _write(
        self,
        record: ConversationRecord,
        new: list[ConversationEntry],
        expected_revision: str | None,
    ) -> None:
        name = _name(record.conversation_id)
        session = self._handles.session(name)
        with session.batch():
            before = session.state.get(RECORD, MISSING)
            known = None if before is MISSING else all_from_stored([before])[0]
            if (known and known["revision"]) != expected_revision:
                raise ConversationConflict(record.conversation_id)
            copied = self._copied(session, record, new, known and known["head_id"])
            entries = [*copied, *(_dumped(entry) for entry in new)]
            if entries:
                session.state.extend(ENTRIES, all_to_stored(entries))
            delete_if_present(session.state, RESPONSES)  # the conversation has what they led to
            [after] = all_to_stored([_RECORDS.dump_python(record, mode="json")])
            # Compared, so that of two processes with the same revision only one writes.
            session.state.set(RECORD, after, expected=before)
        self._note(record, name)

    def _copied(
        self,
        session: Session,
        record: ConversationRecord,
        new: list[ConversationEntry],
        present: str | None,
    ) -> list[dict[str, Any]]:
        """Return the entries before the new ones that another conversation has: a fork's."""
        head = new[0].parent_id if new else record.head_id
        if (
            head is None
            or head == present
            or any(entry["id"] == head for entry in _entries(session))
        ):
            return []
        try:
            return [_dumped(entry) for entry in self._chain(head, None)]
        except LookupError:
            raise ConversationConflict(record.conversation_id) from None

    def _delete(self, conversation_id: str, expected_revision: str) -> None:
        name = _name(conversation_id)
        session = self._handles.find(name)
        if session is None:
            raise ConversationConflict(conversation_id)
        # Before the record is read: what another process saves after that is not deleted.
        expected = session.internal.number, session.head.seq
        record = self._record(name)
        if record is None or record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        self._handles.delete(name, expected)

    def _chain(self, head: str, limit: int | None) -> list[ConversationEntry]:
        """Return an entry and those before it, oldest first, as many as there may be."""
        session = self._holder(head)
        if limit is not None:
            recent = _followed(head, all_from_stored(session.state.tail(ENTRIES, limit)), limit)
            if len(recent) == limit or (recent and recent[0]["parent_id"] is None):
                return [_loaded(entry) for entry in recent]
        found = _followed(head, _entries(session), limit)
        if not found:
            raise LookupError(f"There is no entry {head!r}.")
        return [_loaded(entry) for entry in found]

    def _holder(self, entry_id: str) -> Session:
        """Return the session that has an entry, if any has; raises ``LookupError``."""
        place = self._places.get(entry_id)
        session = None if place is None else self._handles.find(place)
        if session is not None:
            return session
        for candidate in self._handles.starting_with(prefix_of(KIND)):
            if any(entry["id"] == entry_id for entry in _entries(candidate)):
                return candidate
        raise LookupError(f"There is no entry {entry_id!r}.")

    def _note(self, record: ConversationRecord, name: str) -> None:
        """Remember where the ends of a conversation's histories are."""
        if len(self._places) > MAX_PLACES:
            self._places.clear()
        for entry_id in (record.head_id, *record.branches):
            if entry_id is not None:
                self._places[entry_id] = name


class MulliganDurability(AbstractCapability[Any]):
    """Records what the model answers and what tools return, until the conversation is saved.

    A run with the same history and prompt that is started again after a crash goes on from there.
    A tool whose process died in the middle is called again, unless its name matches a pattern of
    ``at_most_once``: then ``EffectInDoubt`` is raised. ``MulliganConversationStore.run`` uses it.
    """

    def __init__(self, store: MulliganConversationStore, at_most_once: Sequence[str] = ()) -> None:
        """Record in the conversations of a store."""
        self._store = store
        self._at_most_once = tuple(at_most_once)
        self._values = TypedValues(trusted=("pydantic_ai.",), keeps_order=True)
        self._answered: Any = None
        """What the model was asked last in this run, until a tool has acted on its answer."""

    async def for_run(self, ctx: Any) -> MulliganDurability:
        """Return a copy for one run: several may go on at once."""
        return copy.copy(self)

    async def on_run_error(self, ctx: Any, *, error: BaseException) -> Any:
        """Forget an answer of the model that the run failed by: it would fail each run again."""
        if isinstance(error, UnexpectedModelBehavior) and self._answered is not None:
            await self._calls(ctx).forget(self._answered)
        raise error

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        """Return the recorded response to a request, or make the request and record it."""
        sent = ModelMessagesTypeAdapter.dump_python(request_context.messages, mode="json")

        async def ask() -> Any:
            response = await handler(request_context)
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]

        # Of a message, what the model sees: the rest differs between two runs that say the same.
        seen = [{key: message.get(key) for key in _SEEN} for message in sent]
        asked = [request_context.model.model_name, _lasting(seen)]
        found = await self._calls(ctx).response(asked, ask)
        self._answered = asked
        return ModelMessagesTypeAdapter.validate_python([found])[0]

    async def wrap_tool_execute(
        self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        """Return the recorded result of a call, or make it and record its result."""

        async def execute() -> Any:
            return self._written(await handler(args))

        # The id of a call may come again in another answer of some models; its step does not.
        state = self._store.session(str(ctx.conversation_id)).state
        entries = await self._store._thread.run(state.length, ENTRIES)
        id = f"{entries}.{ctx.run_step}.{call.tool_call_id}"
        found = await self._calls(ctx).tool(id, call.tool_name, call.args_as_dict(), execute)
        self._answered = None
        return self._values.from_plain(found)

    def _written(self, result: Any) -> Any:
        try:
            return self._values.to_plain(result)
        except UnstorableValue as error:
            raise UnstorableValue(
                f"The result of a tool cannot be recorded: {error}",
                hint="The tool was called, and will be called again. Return plain values, "
                "dataclasses or pydantic models.",
            ) from error

    def _calls(self, ctx: Any) -> RecordedCalls:
        id = str(ctx.conversation_id)
        session, access = self._store.session(id), f"store.session({id!r})"
        return RecordedCalls(session, self._store._thread, access, self._at_most_once)


def _name(conversation_id: str) -> str:
    return name_of(KIND, text_of(conversation_id, "A conversation id"))


def _entries(session: Session) -> list[dict[str, Any]]:
    return all_from_stored(session.state.get(ENTRIES, []))


def _dumped(entry: ConversationEntry) -> dict[str, Any]:
    [message] = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
    return {"id": entry.id, "parent_id": entry.parent_id, "kind": entry.kind, "message": message}


def _loaded(entry: dict[str, Any]) -> ConversationEntry:
    [message] = ModelMessagesTypeAdapter.validate_python([entry["message"]])
    return ConversationEntry(
        id=entry["id"], parent_id=entry["parent_id"], message=message, kind=entry["kind"]
    )


def _followed(head: str, entries: list[dict[str, Any]], limit: int | None) -> list[dict[str, Any]]:
    """Return an entry and those before it as far as they are there, oldest first."""
    by_id = {entry["id"]: entry for entry in entries}
    found: list[dict[str, Any]] = []
    wanted: str | None = head
    while wanted in by_id and (limit is None or len(found) < limit):
        found.append(by_id[wanted])
        wanted = by_id[wanted]["parent_id"]
    return found[::-1]


def _lasting(value: Any) -> Any:
    """Return messages without what differs between two runs that say the same."""
    if isinstance(value, list):
        return [_lasting(item) for item in value]
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in _FLEETING}
    return value
