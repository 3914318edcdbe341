"""The events of one agent as observations.

Calls of tools are read from ``tool.*`` events, from records under ``tools`` in the state, and from
messages of the conversation in the forms of OpenAI and Anthropic. A call that is recorded in
several of these ways, under one id, counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from mulligan.document.fold import CHECKPOINT, FORKED, REFRESHED, RESTORED
from mulligan.drift.observation import (
    ACTION,
    CYCLE,
    MESSAGE,
    PROGRESS,
    RESET,
    Observation,
    cut,
    digest,
)
from mulligan.drift.signals.signal import keep
from mulligan.model import Event

Record = dict[str, Any]

MAX_PENDING = 64
"""How many calls may be under way; older ones are forgotten."""

NO_PROGRESS = frozenset(
    ("agents", "conversation", "effects", "mailbox", "orchestrator", "outside", "steps", "tools")
)
"""Components whose changes are no progress: they record what was said and tried."""

RESTARTS = (REFRESHED, RESTORED, FORKED)
"""Events after which an agent may start over."""

SUPERVISOR = "supervisor"

STARTED = "agent.started"

ChangedFiles = Callable[[bytes | None, bytes], Iterable[tuple[str, str]]]
"""Returns path and content of the files that differ between two trees."""


def no_files(before: bytes | None, after: bytes) -> Iterable[tuple[str, str]]:
    """Return the tree itself as the only file, where its files cannot be read."""
    return [("workspace", after.hex())]


def only_agent(event: Event) -> str | None:
    """Return the only agent of which an event says something; None if any may be concerned."""
    if event.actor == SUPERVISOR or event.kind.startswith("operation."):
        return None
    return None if event.kind in RESTARTS or event.kind == STARTED else event.actor


class PendingCall(msgspec.Struct):
    """A call of a tool that has not returned yet."""

    name: str
    text: str


class JournalReader(msgspec.Struct):
    """Reads the events of one agent; its fields are state that is kept with the detector's."""

    agent: str
    calls: dict[str, PendingCall] = {}
    returned: dict[str, None] = {}
    context: int = 0
    tree: bytes | None = None
    failed_operations: list[str] = []
    in_operation: list[str] = []
    """The writers with an operation under way, of any agent."""

    def observe(self, event: Event, files: ChangedFiles = no_files) -> list[Observation]:
        """Return what an event says of the agent; most events of others say nothing."""
        payload = event.payload if isinstance(event.payload, dict) else {}
        if event.kind.startswith("operation."):
            self._follow_operations(event)
        if event.kind in RESTARTS and self._restarts(event, payload):
            self.calls, self.context, self.failed_operations = {}, 0, []
            return [Observation(RESET, event.seq, self.agent, time=event.time.timestamp())]
        if event.actor not in (self.agent, SUPERVISOR):
            return []
        if event.kind == CHECKPOINT:
            return list(self._files(event, payload, files))
        return [] if event.actor == SUPERVISOR else list(self._own(event, payload))

    def _follow_operations(self, event: Event) -> None:
        if event.kind == "operation.begun":
            self.in_operation = [*self.in_operation, event.actor][-MAX_PENDING:]
        elif event.actor in self.in_operation:
            self.in_operation.remove(event.actor)

    def _restarts(self, event: Event, payload: Record) -> bool:
        """Whether the agent starts over: refreshed, or with another context than before.

        The rollback of an operation does not count: an operation that fails again and again, each
        time rolled back, is a loop.
        """
        if event.kind == REFRESHED:
            return payload.get("agent") == self.agent
        if event.kind != RESTORED:
            return event.kind == FORKED
        if (only := payload.get("only")) is None:
            return True
        is_context = any(path[:1] == ["conversation"] for path in only)
        return is_context and event.actor not in self.in_operation

    def _own(self, event: Event, payload: Record) -> Iterable[Observation]:
        kind = event.kind
        if kind.startswith("state."):
            return self._state(event, payload)
        if kind.startswith("tool."):
            return self._tool(event, _tool_record(payload))
        if kind.startswith("task."):
            return self._task(event, payload)
        if kind.startswith("operation."):
            return self._operation(event, payload)
        if kind in ("effect.done", "effect.failed"):
            return [self._effect(event, payload)]
        return self._cycle(event, payload) if kind == "agent.cycle" else []

    # Parts of the state

    def _state(self, event: Event, payload: Record) -> Iterator[Observation]:
        path = [str(part) for part in payload.get("path") or ()]
        part = path[0] if path else ""
        if part == "conversation":
            yield from self._conversation(event, payload)
        elif path[:1] == ["tools"] and isinstance(payload.get("value"), dict):
            yield from self._tool(event, {"call": path[-1], **payload["value"]})
        elif part and part not in NO_PROGRESS and event.kind != "state.delete":
            content = payload.get("values", payload.get("value"))
            yield self._made(event, PROGRESS, "state", "/".join(path[:4]), _digest(content))

    def _conversation(self, event: Event, payload: Record) -> Iterator[Observation]:
        said = payload.get("values", payload.get("value"))
        messages = said if isinstance(said, list) else [said]
        size = len(msgspec.msgpack.encode(messages, enc_hook=str))
        appended = event.kind == "state.append"
        self.context = self.context + size if appended else size
        if not appended and len(messages) > 1:
            return  # the whole conversation was put again: only its size is new
        for message in messages:
            if isinstance(message, dict):
                yield from self._message(event, message)

    def _message(self, event: Event, message: Record) -> Iterator[Observation]:
        content = message.get("content")
        blocks = (
            [block for block in content if isinstance(block, dict)]
            if isinstance(content, list)
            else []
        )
        calls = list(_called(message, blocks))
        for call, record in calls:
            yield from self._tool(event, {"call": call, **record})
        for call, result, failed in _returned(message, blocks):
            record = {"call": call, "result": result, "status": "failed" if failed else "returned"}
            yield from self._tool(event, record)
        text = content if isinstance(content, str) else " ".join(_texts(blocks))
        if message.get("role") == "assistant" and text and not calls:
            made = self._made(event, MESSAGE, "message", cut(text))
            yield msgspec.structs.replace(made, context=self.context)

    # Calls, tasks, operations, cycles and files

    def _tool(self, event: Event, record: Record) -> Iterator[Observation]:
        call = str(_first(record, "call", "id") or "")
        known = self.calls.get(call) or PendingCall("", "")
        name = str(_first(record, "name", "tool") or known.name)
        arguments = _first(record, "args", "arguments", "input")
        text = known.text if arguments is None else cut(_text(arguments))
        is_open = record.get("status") in ("called", "pending", "running") or (
            event.kind == "tool.called"
        )
        if call in self.returned:
            return
        if is_open or not _has_returned(record, event.kind):
            keep(self.calls, call, PendingCall(name, text), MAX_PENDING)
            return
        self.calls.pop(call, None)
        if call:
            keep(self.returned, call, None, MAX_PENDING)
        if record.get("status") == "in_doubt":
            return  # its result is not known
        error = _first(record, "error")
        result = _outcome(error, _first(record, "result", "output", "content"))
        failed = bool(error) or record.get("status") in ("failed", "error")
        made = self._made(event, ACTION, name or "tool", text, result)
        failed = failed or record.get("failed") is True or result.startswith("Error")
        yield msgspec.structs.replace(made, failed=failed, context=self.context or None)

    def _task(self, event: Event, payload: Record) -> Iterator[Observation]:
        task = str(payload.get("task", ""))
        if event.kind in ("task.completed", "task.skipped", "task.updated"):
            content = _digest([event.kind, payload.get("changes")])
            yield self._made(event, PROGRESS, "task", task, content)
        elif event.kind in ("task.retried", "task.reopened"):
            # Without a content: being open is not a new content of the task.
            made = self._made(event, PROGRESS, "task", task)
            yield msgspec.structs.replace(made, failed=True)

    def _operation(self, event: Event, payload: Record) -> Iterator[Observation]:
        name = str(payload.get("name", ""))
        if event.kind == "operation.failed":
            if name not in self.failed_operations:
                self.failed_operations = [*self.failed_operations, name][-MAX_PENDING:]
            made = self._made(event, ACTION, f"operation {name}", "", _text(payload.get("error")))
            yield msgspec.structs.replace(made, failed=True)
        elif event.kind == "operation.succeeded" and name in self.failed_operations:
            # Only where one failed before: that it works again ends the row of failures.
            self.failed_operations = [known for known in self.failed_operations if known != name]
            yield self._made(event, ACTION, f"operation {name}", "", f"succeeded at #{event.seq}")

    def _effect(self, event: Event, payload: Record) -> Observation:
        """Return an act on the outside world: progress if it was done, else a failure."""
        name, effect = str(payload.get("name", "")), str(payload.get("effect", ""))
        if event.kind == "effect.done":
            return self._made(event, PROGRESS, "effect", effect, "done")
        error = _text(_changed_error(payload))
        made = self._made(event, ACTION, f"effect {name}", effect, error)
        return msgspec.structs.replace(made, failed=True)

    def _cycle(self, event: Event, payload: Record) -> Iterator[Observation]:
        for path, *value in payload.get("changes") or ():
            if path[-1:] == ["last_cycle"] and value and isinstance(value[0], dict):
                if error := value[0].get("error"):
                    made = self._made(event, ACTION, "cycle", "", _text(error))
                    yield msgspec.structs.replace(made, failed=True)
                seconds = value[0].get("seconds")
                length = float(seconds) if isinstance(seconds, int | float) else None
                yield msgspec.structs.replace(self._made(event, CYCLE), seconds=length)

    def _files(self, event: Event, payload: Record, files: ChangedFiles) -> Iterator[Observation]:
        tree = payload.get("workspace")
        if not isinstance(tree, bytes) or tree == self.tree:
            return
        before, self.tree = self.tree, tree
        if before is not None:
            for path, content in files(before, tree):
                yield self._made(event, PROGRESS, "file", path, content)

    def _made(
        self, event: Event, kind: Any, name: str = "", text: str = "", result: str = ""
    ) -> Observation:
        return Observation(
            kind, event.seq, self.agent, name, text, result, time=event.time.timestamp()
        )


def _first(record: Record, *names: str) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def _tool_record(payload: Record) -> Record:
    """Return what an event says of a call: its facts, and the record in its changes."""
    record: Record = {}
    for path, *value in payload.get("changes") or ():
        if path[:1] == ["tools"] and value:
            if isinstance(value[0], dict) and len(path) <= 3:
                record |= value[0]
            elif len(path) > 2:
                record[str(path[-1])] = value[0]
    facts = {key: value for key, value in payload.items() if key not in ("changes", "control")}
    return {**record, **facts}


def _changed_error(payload: Record) -> Any:
    """Return the error that an event puts into a record."""
    for path, *value in payload.get("control") or ():
        if path[-1:] == ["error"] and value:
            return value[0]
    return payload.get("error")


def _has_returned(record: Record, kind: str) -> bool:
    if kind in ("tool.returned", "tool.failed"):
        return True
    ended = record.get("status") in ("returned", "done", "failed", "error")
    return ended or any(name in record for name in ("result", "output", "error"))


def _outcome(error: Any, result: Any) -> str:
    """Return what came back: of a failure the error, and then what was printed.

    The texts of a command's output are taken out of their record, so that two failures of one
    shell are told apart by what they printed.
    """
    if not error:
        return _text(result)
    texts = [v for v in result.values() if isinstance(v, str)] if isinstance(result, dict) else []
    return " ".join([_text(error), *(texts or ([_text(result)] if result else []))])


def _called(message: Record, blocks: list[Record]) -> Iterator[tuple[str, Record]]:
    """Yield the calls that a message asks for."""
    for call in message.get("tool_calls") or ():
        if isinstance(call, dict):
            function = call.get("function")
            asked = function if isinstance(function, dict) else call
            record = {"name": asked.get("name"), "args": asked.get("arguments")}
            yield str(call.get("id", "")), {**record, "status": "called"}
    for block in blocks:
        if block.get("type") == "tool_use":
            record = {"name": block.get("name"), "args": block.get("input")}
            yield str(block.get("id", "")), {**record, "status": "called"}


def _returned(message: Record, blocks: list[Record]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the results that a message brings."""
    if message.get("role") == "tool":
        failed = bool(message.get("is_error")) or message.get("status") == "error"
        yield str(message.get("tool_call_id", "")), message.get("content"), failed
    for block in blocks:
        if block.get("type") == "tool_result":
            yield (
                str(block.get("tool_use_id", "")),
                block.get("content"),
                bool(block.get("is_error")),
            )


def _texts(blocks: list[Record]) -> list[str]:
    return [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]


_encode = msgspec.json.Encoder(enc_hook=str, order="sorted").encode


def _text(value: Any) -> str:
    """Return a value as text; equal values have equal texts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return _encode(value).decode(errors="replace")


def _digest(value: Any) -> str:
    return f"{digest(_text(value)):016x}"
