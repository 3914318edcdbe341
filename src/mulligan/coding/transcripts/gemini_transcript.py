"""What Gemini CLI writes into a transcript, and what it accepts when it resumes one.

A transcript is a list of entries that the program applies one after another: a header, messages,
changes of the header or of all messages (``$set``), and a way back (``$rewindTo``). A message that
comes again, with the same id, replaces the one before. A session that is resumed starts with all of
its messages once more, and so does one that was compressed, with fewer of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from mulligan.coding.transcripts.transcript_format import (
    INTERRUPTED,
    Entry,
    KeptFile,
    Lines,
    NewId,
    NewSession,
    Placed,
    Prompt,
    Rewritten,
    SideFile,
    TranscriptOwner,
    owner_of,
    text_of,
    typed,
)

VARIABLE = "GEMINI_CLI_HOME"
"""The variable that names the directory in which the program has its own, ``.gemini``."""

CONFIG = ".gemini"
PROJECTS = "tmp"
CHATS = "chats"
OWNER = ".project_root"
"""The file that says which directory a folder of transcripts belongs to."""

MOVED = "<moved_files>"
"""How a message begins that says where the files of a branch are."""

NO_PROMPT = ("/", "?", "<session_context>", "<hook_context>", MOVED)
"""How the text of messages of the user begins that no person typed as a prompt."""

HEADER = ("projectHash", "kind", "directories")
"""What a copy of a conversation takes from the header."""


class GeminiFolder(msgspec.Struct, frozen=True):
    """The directory of the program, and the folder of the transcript that is taken back.

    ``usual`` is the home that the program uses by itself.
    """

    config: Path
    usual: Path
    chats: Path | None = None

    def transcript(self, directory: Path, new: NewSession) -> Path:
        """Return where the transcript of a session that is continued in a directory is."""
        # With the whole id: the program removes files whose names end with the first part of the id
        # of a session that it takes for empty, and it takes one for empty that was resumed later.
        name = f"session-{new.time[:16].replace(':', '-')}-{new.id}.jsonl"
        if self.chats is not None and new.move is None:
            return self.chats / name
        return self._folder(str(directory), new) / CHATS / name

    def subagent(self, transcript: Path, id: str) -> None:
        """Return None: what a subagent answered is part of the conversation."""

    def placed(
        self, transcript: Path, new: NewSession, entries: list[Entry], beside: KeptFile
    ) -> Placed:
        """Return the file that makes a new folder the one of its directory, too."""
        owner = transcript.parents[1] / OWNER
        if new.move is None or not entries or owner.exists():
            return Placed(entries)
        return Placed(entries, (SideFile(owner, new.move.new.encode()),))

    def prepare(self, new: NewSession, entries: Sequence[Entry]) -> None:
        """Do nothing: the program keeps all of a session in its transcript."""

    def resume_command(self, id: str, transcript: Path | None, *, is_new: bool) -> str:
        """Return what to type to continue a session; one of which nothing was said is started."""
        words = ["gemini", "--session-id" if is_new else "--resume", id]
        return typed(words, VARIABLE, self.config.parent, self.usual)

    def _folder(self, directory: str, new: NewSession) -> Path:
        """Return the folder of a directory, or a new one: the program looks for its owner."""
        projects = self.config / PROJECTS
        for folder in sorted(projects.glob("*")):
            if _owner(folder) == directory:
                return folder
        name = re.sub("[^a-z0-9]+", "-", Path(directory).name.lower()).strip("-")
        return projects / f"{name or 'project'}-{new.id[:8]}"


class GeminiFormat(Lines):
    """The transcripts of Gemini CLI."""

    def folder(self, transcript: str | None, variables: Mapping[str, str]) -> GeminiFolder:
        """Return the directory that a transcript is in, or else the usual one."""
        home = _home(variables)
        parents = Path(transcript or "").parents
        if len(parents) > 4 and parents[2].name == PROJECTS and parents[3].name == CONFIG:
            return GeminiFolder(parents[3], home, parents[0])
        return GeminiFolder(home / CONFIG, home)

    def transcripts(self, variables: Mapping[str, str], root: Path) -> Iterable[Path]:
        """Return the files in the folders of a directory, and of those below it."""
        for folder in (_home(variables) / CONFIG / PROJECTS).glob("*"):
            owner = _owner(folder)
            if owner is not None and Path(owner).is_relative_to(root):
                yield from (folder / CHATS).glob("session-*.jsonl")

    def owner(self, path: Path, entries: Sequence[Any]) -> TranscriptOwner | None:
        """Return the session that the header names, and the directory that its folder is of."""
        found = entries[0] if entries and isinstance(entries[0], dict) else {}
        is_main = found.get("kind", "main") == "main" and "projectHash" in found
        # A session that is resumed begins a second file, in which nothing is said.
        is_empty = not any(_prompt(one) is not None for one in self.parsed(entries))
        if not is_main or is_empty:
            return None
        return owner_of(found.get("sessionId"), _owner(path.parent.parent))

    def parsed(self, entries: Iterable[Any]) -> list[Any]:
        """Return entries with a list of messages taken apart: each of them is an entry."""
        return [one for entry in super().parsed(entries) for one in _apart(entry)]

    def prompts(self, entries: Sequence[Any], asked: Collection[str]) -> list[Prompt]:
        """Return the prompts that the conversation has, each where it was said first."""
        kept = _messages(entries)
        found: dict[str, Prompt] = {}
        for index, one in enumerate(entries):
            text = _prompt(one)
            if text is not None and one["id"] in kept and one["id"] not in found:
                time = str(one.get("timestamp", ""))
                found[one["id"]] = Prompt(index, one["id"], time, text)
        return list(found.values())

    def results(self, entry: Any) -> Collection[str]:
        """Return the ids of the calls whose results an answer has."""
        return [str(call.get("id")) for call in _calls(entry) if call.get("result")]

    def rewound(self, entries: Sequence[Any], new: NewSession, new_id: NewId) -> Rewritten:
        """Return the messages as those of a new session; calls without a result get one."""
        messages = list(_messages(entries).values())
        if not any(_prompt(one) is not None for one in messages):
            return Rewritten([])
        closed = [_closed(one) for one in messages]
        added = list(_responses(messages, new, new_id))
        count = sum(one is not made for one, made in zip(messages, closed, strict=True))
        made = [_header(entries, new), *closed, *added]
        if new.move is not None:
            made.append(_said(f"{MOVED}{new.move.note}</{MOVED[1:]}", new, new_id))
        return Rewritten(made, count + len(added))


def _home(variables: Mapping[str, str]) -> Path:
    return Path(variables.get(VARIABLE) or variables.get("HOME") or "~").expanduser()


def _owner(folder: Path) -> str | None:
    """Return the directory that a folder of transcripts belongs to."""
    try:
        return (folder / OWNER).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None  # a folder of an older version, or none of transcripts


def _apart(entry: Any) -> Iterator[Any]:
    if not isinstance(entry, dict) or _is_message(entry):
        yield entry
        return
    changed = entry.get("$set")
    holder = changed if isinstance(changed, dict) else entry
    messages = holder.get("messages")
    if not isinstance(messages, list):
        yield entry
        return
    if holder is entry:
        yield {key: value for key, value in entry.items() if key != "messages"}
    else:
        yield {**entry, "$set": {**holder, "messages": []}}
    yield from messages


def _is_message(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("id"), str)


def _messages(entries: Iterable[Any]) -> dict[str, Entry]:
    """Return the messages of the conversation that the entries end with, by their ids."""
    found: dict[str, Entry] = {}
    for one in entries:
        if not isinstance(one, dict):
            continue
        changed, back = one.get("$set"), one.get("$rewindTo")
        if isinstance(back, str):
            ids = list(found)
            for id in ids[ids.index(back) if back in found else 0 :]:
                del found[id]
        elif _is_message(one):
            found[one["id"]] = one
        elif isinstance(changed, dict) and isinstance(changed.get("messages"), list):
            found.clear()
    return found


def _header(entries: Iterable[Any], new: NewSession) -> Entry:
    """Return the header of a new session."""
    known: Entry = {}
    for one in entries:
        if isinstance(one, dict) and not _is_message(one):
            changed = one.get("$set")
            known |= changed if isinstance(changed, dict) else one
    kept = {key: known[key] for key in HEADER if key in known}
    if new.move is not None:
        kept["projectHash"] = sha256(new.move.new.encode()).hexdigest()
        kept.pop("directories", None)
    return {"sessionId": new.id, "startTime": new.time, "lastUpdated": new.time} | kept


def _prompt(entry: Any) -> str | None:
    """Return what a person typed, or None for any other entry."""
    if not _is_message(entry) or entry.get("type") != "user":
        return None
    if any("functionResponse" in part for part in _parts(entry)):
        return None
    text = text_of(entry.get("content"))
    return None if not text.strip() or text.lstrip().startswith(NO_PROMPT) else text


def _parts(entry: Entry) -> list[Entry]:
    content = entry.get("content")
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


def _calls(entry: Any) -> list[Entry]:
    calls = entry.get("toolCalls") if isinstance(entry, dict) else None
    return [one for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []


def _closed(entry: Entry) -> Entry:
    """Return an answer with a result for each of its calls."""
    calls = _calls(entry)
    if all(call.get("result") for call in calls):
        return entry
    made = [
        call if call.get("result") else {**call, "status": "error", "result": [_response(call)]}
        for call in calls
    ]
    return {**entry, "toolCalls": made}


def _responses(messages: Sequence[Entry], new: NewSession, new_id: NewId) -> Iterator[Entry]:
    """Yield a message with results for calls in the parts of answers that have none."""
    parts = [part for one in messages for part in _parts(one)]
    answered = {str(one["functionResponse"].get("id")) for one in _named(parts, "functionResponse")}
    answered |= {str(call.get("id")) for one in messages for call in _calls(one)}
    asked = [one["functionCall"] for one in _named(parts, "functionCall")]
    missing = [_response(call) for call in asked if str(call.get("id")) not in answered]
    if missing:
        yield {**_said("", new, new_id), "content": missing}


def _named(parts: Iterable[Entry], kind: str) -> Iterator[Entry]:
    return (part for part in parts if isinstance(part.get(kind), dict))


def _response(call: Entry) -> Entry:
    named = {key: call[key] for key in ("id", "name") if key in call}
    return {"functionResponse": {**named, "response": {"error": INTERRUPTED}}}


def _said(text: str, new: NewSession, new_id: NewId) -> Entry:
    """Return a message of the user."""
    frame = {"id": new_id(), "timestamp": new.time, "type": "user"}
    return {**frame, "content": [{"text": text}]}
