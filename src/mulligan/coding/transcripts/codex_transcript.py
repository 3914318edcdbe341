"""What Codex writes into a transcript, and what it accepts when it resumes one.

A transcript ("rollout") is a list of entries in the order in which they happened: what the model
was given and has answered (``response_item``), what a person is shown (``event_msg``), and the
settings of each turn. The first one is about the session (``session_meta``). A person who goes back
inside of the program adds an entry that says how many turns no longer count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mulligan.coding.transcripts.transcript_format import (
    INTERRUPTED,
    Entry,
    KeptFile,
    Lines,
    Move,
    NewId,
    NewSession,
    Placed,
    Prompt,
    Rewritten,
    TranscriptOwner,
    owner_of,
    typed,
)

VARIABLE = "CODEX_HOME"
"""The variable that names the program's directory."""

SESSIONS = "sessions"

META = "session_meta"
EVENT = "event_msg"
ITEM = "response_item"

TURN_STARTS = {"task_started", "turn_started"}
ROLLED_BACK = "thread_rolled_back"

OUTPUTS = {
    "function_call": "function_call_output",
    "local_shell_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
"""The kinds of calls, and the kind of the item that has the result."""

BESIDE_CALLS = {*OUTPUTS, *OUTPUTS.values(), "reasoning"}
"""What may be between a call and its result."""

IDS = ("session_id", "thread_id")
"""The fields that hold the id of the session, wherever they are."""


class CodexFolder(msgspec.Struct, frozen=True):
    """The directory of the program, and the one that it uses by itself."""

    config: Path
    usual: Path

    def transcript(self, directory: Path, new: NewSession) -> Path:
        """Return where the transcript of a session is: in the folder of its day."""
        day, _, time = new.time.partition("T")
        clock = time[:8].replace(":", "-")
        folder = self.config / SESSIONS / Path(*day.split("-"))
        return folder / f"rollout-{day}T{clock}-{new.id}.jsonl"

    def subagent(self, transcript: Path, id: str) -> None:
        """Return None: what a subagent answered is part of the conversation."""

    def placed(
        self, transcript: Path, new: NewSession, entries: list[Entry], beside: KeptFile
    ) -> Placed:
        """Return the entries alone: the program finds the file by the id in its name."""
        return Placed(entries)

    def prepare(self, new: NewSession, entries: Sequence[Entry]) -> None:
        """Do nothing: the program keeps all of a session in its transcript."""

    def resume_command(self, id: str, transcript: Path | None, *, is_new: bool) -> str:
        """Return what to type to continue a session."""
        words = ["codex"] if is_new else ["codex", "resume", id]
        return typed(words, VARIABLE, self.config, self.usual)


class CodexFormat(Lines):
    """The transcripts of Codex."""

    def folder(self, transcript: str | None, variables: Mapping[str, str]) -> CodexFolder:
        """Return the directory that a transcript is in, or else the usual one."""
        usual = _usual(variables)
        return CodexFolder(_config_of(transcript) or usual, usual)

    def transcripts(self, variables: Mapping[str, str], root: Path) -> Iterable[Path]:
        """Return all transcripts: they are in folders by day, whatever the directory."""
        return (_usual(variables) / SESSIONS).glob("*/*/*/rollout-*.jsonl")

    def owner(self, path: Path, entries: Sequence[Any]) -> TranscriptOwner | None:
        """Return the session that the first entry tells of; none for a subagent."""
        found = (payload for one in entries if (payload := _payload(one, META)))
        meta = next(found, {})
        is_subagent = isinstance(meta.get("source"), dict)
        return None if is_subagent else owner_of(meta.get("id"), meta.get("cwd"))

    def prompts(self, entries: Sequence[Any], asked: Collection[str]) -> list[Prompt]:
        """Return the prompts that count, oldest first; each begins where its turn does."""
        found: list[Prompt] = []
        start: int | None = None
        turn: str | None = None
        for index, one in enumerate(entries):
            payload = _payload(one, EVENT)
            kind = _text(payload, "type")
            if kind in TURN_STARTS:
                start, turn = index, _text(payload, "turn_id")
            elif kind == ROLLED_BACK:
                count = payload.get("num_turns")
                del found[len(found) - count if isinstance(count, int) else len(found) :]
            elif (text := _prompt(payload)) is not None:
                at = _item_before(entries, index) if start is None else start
                time = str(one.get("timestamp", ""))
                found.append(Prompt(at, str(index), time, text, _text(payload, "turn_id") or turn))
                start = None  # what is typed into a turn that runs begins where it is said
        return found

    def results(self, entry: Any) -> Collection[str]:
        """Return the id of the call whose result an entry has."""
        payload = _payload(entry, ITEM)
        call = payload.get("call_id")
        return (call,) if payload.get("type") in OUTPUTS.values() and isinstance(call, str) else ()

    def rewound(self, entries: Sequence[Any], new: NewSession, new_id: NewId) -> Rewritten:
        """Return the entries as those of a new session; calls without a result get one."""
        known = [one for one in entries if isinstance(one, dict) and "payload" in one]
        if not any(one.get("type") == META for one in known):
            return Rewritten([])  # the program does not resume a file without it
        closed = list(_closed([_adopted(one, new) for one in known], new))
        made = [*closed, *(_moved(new.move, new) if new.move else ())]
        if any("ordinal" in one for one in made):
            made = [{**one, "ordinal": number} for number, one in enumerate(made)]
        return Rewritten(made, len(closed) - len(known))


def _usual(variables: Mapping[str, str]) -> Path:
    """Return the directory that the program uses with these variables."""
    home = Path(variables.get("HOME") or "~").expanduser()
    return Path(variables.get(VARIABLE) or home / ".codex").absolute()


def _config_of(transcript: str | None) -> Path | None:
    """Return the program's directory that a transcript is in; None if it is in none."""
    parents = Path(transcript or "").parents
    return parents[4] if len(parents) > 5 and parents[3].name == SESSIONS else None


def _payload(entry: Any, kind: str) -> Entry:
    """Return what an entry of a kind holds; nothing of any other entry."""
    if not isinstance(entry, dict) or entry.get("type") != kind:
        return {}
    found = entry.get("payload")
    return found if isinstance(found, dict) else {}


def _text(fields: Entry, key: str) -> str | None:
    found = fields.get(key)
    return found if isinstance(found, str) else None


def _prompt(event: Entry) -> str | None:
    """Return what a person typed, as the event that shows it tells; None for any other event."""
    if event.get("type") == "user_message":
        return _text(event, "message")
    item = event.get("item")
    if event.get("type") != "item_completed" or not isinstance(item, dict):
        return None
    if item.get("type") != "UserMessage":
        return None
    parts = item.get("content")
    listed = parts if isinstance(parts, list) else ()
    texts = [_text(one, "text") for one in listed if isinstance(one, dict)]
    return "\n".join(text for text in texts if text is not None)


def _item_before(entries: Sequence[Any], index: int) -> int:
    """Return where the message to the model is that an event shows."""
    before = range(index - 1, -1, -1)
    found = (at for at in before if _payload(entries[at], ITEM).get("role") == "user")
    return next(found, index)


def _adopted(entry: Entry, new: NewSession) -> Entry:
    """Return an entry as one of the new session."""
    if entry.get("type") == ITEM:
        return entry
    made: Entry = _replaced(entry, new)
    if entry.get("type") == META and isinstance(made["payload"], dict):
        made["payload"] |= {"id": new.id, "timestamp": new.time}
    return made


def _replaced(value: Any, new: NewSession) -> Any:
    """Return a value with the new id, and in the new directory, if there is one."""
    if isinstance(value, list):
        return [_replaced(one, new) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: _field(key, one, new) for key, one in value.items()}


def _field(key: str, value: Any, new: NewSession) -> Any:
    if key in IDS and value == new.old:
        return new.id
    if new.move is not None and key == "cwd" and isinstance(value, str):
        return new.move.path(value)
    if new.move is not None and key == "runtime_workspace_roots" and isinstance(value, list):
        return [new.move.path(one) if isinstance(one, str) else one for one in value]
    return _replaced(value, new)


def _closed(entries: Sequence[Entry], new: NewSession) -> Iterator[Entry]:
    """Yield the entries, with a result for every call that has none, after its answer."""
    payloads = [_payload(one, ITEM) for one in entries]
    answered = {call for one in entries for call in CodexFormat().results(one)}
    waiting: list[Entry] = []
    for one, payload in zip(entries, payloads, strict=True):
        kind = _text(payload, "type")
        if kind is not None and kind not in BESIDE_CALLS:
            yield from _results(waiting, new)
            waiting = []
        if kind in OUTPUTS and _text(payload, "call_id") not in answered:
            waiting.append(payload)
        yield one
    yield from _results(waiting, new)


def _results(calls: Sequence[Entry], new: NewSession) -> Iterator[Entry]:
    for call in calls:
        kind = OUTPUTS[call["type"]]
        yield _item({"type": kind, "call_id": call.get("call_id"), "output": INTERRUPTED}, new)


def _moved(move: Move, new: NewSession) -> Iterator[Entry]:
    """Yield a message that tells the model where the files of this branch are."""
    content = [{"type": "input_text", "text": move.note}]
    yield _item({"type": "message", "role": "developer", "content": content}, new)


def _item(payload: Entry, new: NewSession) -> Entry:
    return {"timestamp": new.time, "type": ITEM, "payload": payload}
