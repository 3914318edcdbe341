"""What opencode keeps of a conversation, and what its ``import`` accepts.

opencode keeps messages in a database of its own. The plugin that ``mulligan install`` writes puts
them into a file, one message with its parts in each line, and writes the whole file again when
something has changed. A rewound conversation goes back through the program's own import.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
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
    SideFile,
    TranscriptOwner,
    encode_one,
)
from mulligan.locate.registry import state_directory

FOLDER = "opencode"
IMPORT = ".json"

OPEN = {"pending", "running"}
"""The states of calls that have not returned."""

_ID = re.compile(r"(?:msg|prt)_[0-9a-f]{12}[0-9A-Za-z]{14}")
_TAIL = 14
"""How many characters of an id are random; what comes before them is its time, and the order."""


class OpenCodeFolder(msgspec.Struct, frozen=True):
    """The directory into which the plugin writes conversations."""

    directory: Path

    def transcript(self, directory: Path, new: NewSession) -> Path:
        """Return where the plugin writes the conversation of a session."""
        return self.directory / f"{new.id}.jsonl"

    def subagent(self, transcript: Path, id: str) -> None:
        """Return None: what a subagent answered is part of the conversation."""

    def placed(
        self, transcript: Path, new: NewSession, entries: list[Entry], beside: KeptFile
    ) -> Placed:
        """Return the file for the import, too; it takes project and directory from its place."""
        time = _milliseconds(new.time)
        info = {
            "id": new.id,
            "slug": new.id[-_TAIL:].lower(),
            "projectID": "global",
            "directory": new.move.new if new.move else "/",
            "title": _title(entries),
            "version": "0.0.0",
            "time": {"created": time, "updated": time},
        }
        whole = encode_one({"info": info, "messages": entries})
        return Placed(entries, (SideFile(transcript.with_suffix(IMPORT), whole),))

    def prepare(self, new: NewSession, entries: Sequence[Entry]) -> None:
        """Do nothing: all of the conversation is in its messages."""

    def resume_command(self, id: str, transcript: Path | None, *, is_new: bool) -> str:
        """Return what to type to continue a session; one that was written is imported first."""
        resume = shlex.join(["opencode", "--session", id])
        if transcript is None:
            return resume
        file = shlex.quote(str(transcript.with_suffix(IMPORT)))
        return f"opencode import {file} && {resume}"


class OpenCodeFormat(Lines):
    """The conversations of opencode."""

    def folder(self, transcript: str | None, variables: Mapping[str, str]) -> OpenCodeFolder:
        """Return the directory that a transcript is in, or else the one of the plugin."""
        if transcript is not None:
            return OpenCodeFolder(Path(transcript).parent)
        return OpenCodeFolder(state_directory(variables) / FOLDER)

    def transcripts(self, variables: Mapping[str, str], root: Path) -> Iterable[Path]:
        """Return nothing: all of it is in a database (see ``opencode_database``)."""
        return ()

    def owner(self, path: Path, entries: Sequence[Any]) -> TranscriptOwner | None:
        """Return None: the file does not say; who writes it knows."""
        return None

    def session_id(self, id: str) -> str:
        """Return an id as the program makes them, of a UUID."""
        return f"ses_{id.replace('-', '')[: 12 + _TAIL]}"

    def prompts(self, entries: Sequence[Any], asked: Collection[str]) -> list[Prompt]:
        """Return the messages that a person typed, oldest first."""
        seen = {_stamp(id): id for id in asked}
        return [
            Prompt(index, id := one["info"]["id"], _time(one), text, seen.get(_stamp(id), id))
            for index, one in enumerate(entries)
            if (text := _prompt(one)) is not None
        ]

    def completed(
        self, then: list[Any], now: list[Any], until: int, calls: Collection[str] | None
    ) -> list[Any]:
        """Return the messages of a moment, with the results of the calls that had returned.

        At the end of a call, the program has not kept its result yet.
        """
        ends = (part for one in now for part in _tools(one) if _is_ended(part))
        later = {str(part.get("callID")): part for part in ends}
        ended = {id: later[id] for id in calls or () if id in later}
        return [
            _with_parts(one, lambda part: ended.get(str(part.get("callID")), part)) for one in then
        ]

    def rewound(self, entries: Sequence[Any], new: NewSession, new_id: NewId) -> Rewritten:
        """Return the messages as those of a new session; calls without a result get one."""
        known = [one for one in entries if _is_message(one)]
        open_calls = [part for one in known for part in _tools(one) if not _is_ended(part)]
        ids = _NewIds(new, new_id)
        made = [ids.replaced(_moved(_closed(one, new), new.move)) for one in known]
        if new.move is not None and made:
            made.append(_note(made, new.move.note, new, ids))
        return Rewritten(made, len(open_calls))


class _NewIds:
    """Replaces ids by new ones that sort in the same order: two messages cannot share one."""

    def __init__(self, new: NewSession, new_id: NewId) -> None:
        self._new, self._new_id = new, new_id
        self._made: dict[str, str] = {}

    def replaced(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.replaced(one) for one in value]
        if isinstance(value, dict):
            return {key: self.replaced(one) for key, one in value.items()}
        if not isinstance(value, str):
            return value
        return self._new.id if value == self._new.old else self.id(value)

    def id(self, value: str) -> str:
        """Return the new id for one of a message or part; any other text stays."""
        if not _ID.fullmatch(value):
            return value
        if value not in self._made:
            self._made[value] = value[:-_TAIL] + self.tail()
        return self._made[value]

    def tail(self) -> str:
        return self._new_id().replace("-", "")[-_TAIL:].rjust(_TAIL, "0")


def _stamp(id: str) -> str:
    """Return what a message's id keeps when a rewind gives it a new one."""
    return id[:-_TAIL] if _ID.fullmatch(id) else id


def _is_message(entry: Any) -> bool:
    info = entry.get("info") if isinstance(entry, dict) else None
    return isinstance(info, dict) and isinstance(info.get("id"), str)


def _parts(entry: Entry) -> list[Entry]:
    parts = entry.get("parts")
    return [one for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []


def _tools(entry: Any) -> Iterator[Entry]:
    if _is_message(entry):
        yield from (one for one in _parts(entry) if one.get("type") == "tool")


def _state(part: Entry) -> Entry:
    found = part.get("state")
    return found if isinstance(found, dict) else {}


def _is_ended(part: Entry) -> bool:
    return str(_state(part).get("status")) not in OPEN


def _prompt(entry: Any) -> str | None:
    """Return what a person typed, or None for any other message."""
    if not _is_message(entry) or entry["info"].get("role") != "user":
        return None
    typed = (one for one in _parts(entry) if one.get("type") == "text" and not one.get("synthetic"))
    texts = [text for one in typed if isinstance(text := one.get("text"), str)]
    return "\n".join(texts) or None


def _time(entry: Entry) -> str:
    time = entry["info"].get("time")
    made = time.get("created") if isinstance(time, dict) else None
    if not isinstance(made, int) or not 0 <= made < 1 << 46:
        return ""
    return datetime.fromtimestamp(made / 1000, UTC).isoformat()


def _title(entries: Sequence[Entry]) -> str:
    first = next((text for one in entries if (text := _prompt(one))), "New session")
    return " ".join(first.split())[:80]


def _with_parts(entry: Any, change: Callable[[Entry], Entry]) -> Any:
    if not _is_message(entry):
        return entry
    return {**entry, "parts": [change(part) for part in _parts(entry)]}


def _closed(entry: Entry, new: NewSession) -> Entry:
    """Return a message with a result for each of its calls."""

    def close(part: Entry) -> Entry:
        if part.get("type") != "tool" or _is_ended(part):
            return part
        time = _milliseconds(new.time)
        given = _state(part).get("input", {})
        ended = {"start": time, "end": time}
        state = {"status": "error", "input": given, "error": INTERRUPTED, "time": ended}
        return {**part, "state": state}

    made: Entry = _with_parts(entry, close)
    return made


def _moved(entry: Entry, move: Move | None) -> Entry:
    """Return a message whose directory is the new one."""
    place = entry["info"].get("path")
    if move is None or not isinstance(place, dict):
        return entry
    moved = {
        key: move.path(value) if isinstance(value, str) else value for key, value in place.items()
    }
    return {**entry, "info": {**entry["info"], "path": moved}}


def _note(entries: Sequence[Entry], text: str, new: NewSession, ids: _NewIds) -> Entry:
    """Return a message of the user with a text that the program does not show."""
    time = _milliseconds(new.time)
    # As the program makes ids, which sort by time; after the others, even if the clock went back.
    known = [one["info"]["id"][4:16] for one in entries if _ID.fullmatch(one["info"]["id"])]
    stamp = f"{max(time * 0x1000 % (1 << 48), int(max(known, default='0'), 16) + 1):012x}"
    asked = [one["info"] for one in entries if one["info"].get("role") == "user"]
    last = asked[-1] if asked else {}
    message = f"msg_{stamp}{ids.tail()}"
    info = {key: last[key] for key in ("agent", "model") if key in last}
    frame = {"role": "user", "id": message, "sessionID": new.id, "time": {"created": time}}
    part = {"type": "text", "text": text, "synthetic": True, "id": f"prt_{stamp}{ids.tail()}"}
    return {
        "info": {**info, **frame},
        "parts": [{**part, "sessionID": new.id, "messageID": message}],
    }


def _milliseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
