"""What Claude Code writes into a transcript, and what it accepts when it resumes one.

A transcript is a list of entries. Those of the conversation have a ``uuid`` and name their parent
by ``parentUuid``: a tree, because calls that run in parallel are answered one by one, and because
a person may go back inside of the program. The conversation is the path from the newest entry to
the root. Other entries are notes about the session or about one entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mulligan.coding.transcripts.transcript_format import (
    INTERRUPTED,
    Entry,
    Move,
    NewSession,
    Prompt,
    text_of,
)

FOLDER_LENGTH = 200
"""The longest name of a project folder, in characters, before a hash of the path is appended."""

SESSION_NOTES = frozenset(
    (
        "agent-color",
        "agent-name",
        "agent-setting",
        "ai-title",
        "atis-latch",
        "content-replacement",
        "custom-title",
        "mode",
        "permission-mode",
        "tag",
        "tools-used",
    )
)
"""Notes about the session that hold for a copy, too.

Others are left out: requests and costs of the session that made them, and links that tie one
session to something outside (a pull request, a worktree, a remote control).
"""

ENTRY_NOTES = {
    "attribution-snapshot": "messageId",
    "file-history-delta": "messageId",
    "file-history-snapshot": "messageId",
    "summary": "leafUuid",
}
"""Notes about one entry, kept with it, and the field that names the entry."""

NO_PROMPT = ("<local-command-", "<command-name>", "<command-message>", "<bash-", "<task-")
"""How the text of user entries begins that no person typed as a prompt."""

INTERRUPTION = re.compile(r"\[Request interrupted(?: by user|: )[^\]]*\]")
"""What the program writes as the person's words when a turn was stopped, such as with Esc.

The entry has the id of the prompt that was stopped.
"""

FIRST_KEYS = (
    "parentUuid",
    "logicalParentUuid",
    "isSidechain",
    "promptId",
    "agentId",
    "message",
    "attachment",
    "type",
    "uuid",
    "timestamp",
)
"""The order in which the program writes keys. It reads long transcripts by these bytes."""


def folder_name(directory: str) -> str:
    """Return the name of the folder in which the program keeps the transcripts of a directory.

    ``directory`` is absolute and without symbolic links. Every UTF-16 unit that is no ASCII letter
    or digit becomes a hyphen; a long name is cut, and a hash of the path makes it unique.
    """
    units = _units(directory)
    name = "".join(chr(unit) if re.match("[A-Za-z0-9]", chr(unit)) else "-" for unit in units)
    if len(name) <= FOLDER_LENGTH:
        return name
    return f"{name[:FOLDER_LENGTH]}-{_base36(abs(_hash(units)))}"


def prompts(entries: Sequence[Any], asked: Collection[str] = ()) -> list[Prompt]:
    """Return the prompts of the conversation that the entries end with, oldest first.

    ``asked`` are the ids of prompts that are known as such: of these, commands count, too. Other
    commands, such as one that shows the costs, ask the model nothing.
    """
    places = {one["uuid"]: index for index, one in enumerate(entries) if is_main(one)}
    return [
        Prompt(
            entry=places[uuid],
            uuid=uuid,
            time=str(one.get("timestamp", "")),
            text=text,
            asked=_asked(one),
            is_queued=one.get("promptSource") == "queued",
        )
        for uuid, one in conversation(entries).items()
        if (text := prompt_text(one) or _command(one, asked)) is not None
    ]


def prompt_text(entry: Entry) -> str | None:
    """Return what a person typed, or None for any other entry."""
    if entry.get("type") != "user" or entry.get("isMeta") or entry.get("isCompactSummary"):
        return None
    if results(entry):
        return None
    text = text_of(_content(entry))
    said = text.strip()
    return None if not said or said.startswith(NO_PROMPT) or INTERRUPTION.fullmatch(said) else text


def _asked(entry: Entry) -> str | None:
    """Return the id by which hooks know a prompt."""
    found = entry.get("promptId")
    return found if isinstance(found, str) else None


def _command(entry: Entry, asked: Collection[str]) -> str | None:
    """Return the command that a person typed as a prompt, or None."""
    if entry.get("promptId") not in asked or entry.get("type") != "user" or entry.get("isMeta"):
        return None
    text = text_of(_content(entry))
    name = re.search("<command-name>(.*?)</command-name>", text, re.S)
    given = re.search("<command-args>(.*?)</command-args>", text, re.S)
    return f"{name[1]} {given[1] if given else ''}".strip() if name else None


def rewound(entries: Sequence[Any], new: NewSession, new_id: Callable[[], str]) -> list[Entry]:
    """Return the conversation that the entries end with, as a transcript of a new session.

    Entries keep their ids and parents. Branches that the conversation left are dropped, as are
    unreadable lines. Calls without a result get one that says so. An empty list means that nothing
    had been said. ``new_id`` makes the ids of added entries.
    """
    kept = conversation(entries)
    if not kept:
        return []
    adopted = [_adopted(one, new) for one in _with_notes(entries, kept)]
    made = list(_closed(adopted, new, new_id))
    if new.move is not None:
        made.append(_moved(made, new.move, new, new_id))
    return [_in_order(one) for one in (*made, _last_prompt(made, new))]


def subagent(entries: Iterable[Any], new: NewSession) -> list[Entry]:
    """Return the transcript of a subagent for the new session of its parent."""
    return [_in_order(_adopted(one, new)) for one in entries if _is_conversation(one)]


def backups(entries: Iterable[Entry]) -> set[str]:
    """Return the names of the copies of files that notes of a transcript refer to."""
    found: set[str] = set()
    for one in entries:
        tracked = _fields(_fields(one, "snapshot"), "trackedFileBackups")
        for backup in (*tracked.values(), one.get("backup")):
            name = backup.get("backupFileName") if isinstance(backup, dict) else None
            if isinstance(name, str) and name not in (".", "..") and "/" not in name:
                found.add(name)
    return found


def _fields(entry: Entry, key: str) -> Entry:
    found = entry.get(key)
    return found if isinstance(found, dict) else {}


def _id(entry: Entry, key: str) -> str | None:
    found = entry.get(key)
    return found if isinstance(found, str) else None


def is_closing(entry: Entry) -> bool:
    """Whether an entry was added as the result of a call that had none."""
    return entry.get("toolUseResult") == INTERRUPTED


def is_main(entry: Any) -> bool:
    """Whether an entry belongs to the conversation itself, not to a subagent."""
    return _is_conversation(entry) and not entry.get("isSidechain")


def conversation(entries: Sequence[Any]) -> dict[str, Entry]:
    """Return the conversation that the entries end with: by id, in order, with kept parents."""
    # Of two lines with one id, the program takes the last.
    usable = {one["uuid"]: one for one in entries if is_main(one)}
    while True:
        kept = _path(entries, usable)
        found = [one for uuid, one in usable.items() if uuid in kept]
        calls = {call for one in found for call in _calls(one)}
        orphans = {one["uuid"] for one in found if not calls.issuperset(results(one))}
        if not orphans:
            return _linked(found)
        # Without its call, a result is refused by the model. What followed it follows the line
        # before it instead, so the path is looked for again.
        usable = {uuid: one for uuid, one in usable.items() if uuid not in orphans}


def _path(entries: Sequence[Any], usable: Mapping[str, Entry]) -> set[str]:
    """Return the ids on the path from the end to the root, and of what belongs to them."""
    before = dict(zip(usable, (None, *usable), strict=False))
    kept: set[str] = set()
    at = _leaf(entries, usable)
    # Thinking that nothing followed was cut off; the model refuses it as the end of an answer.
    while at is not None and _is_only_thinking(usable[at]):
        at = _parent(usable[at], usable, before)
    # An id that was passed already means that the parents run in a circle.
    while at is not None and at not in kept:
        kept.add(at)
        at = _parent(usable[at], usable, before)
    return kept | _beside(usable.values(), kept)


def _linked(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return entries by id; one whose parent is not before it follows the line before it."""
    made: dict[str, Entry] = {}
    last = None
    for one in entries:
        named = _id(one, "parentUuid")
        made[one["uuid"]] = one if named is None or named in made else {**one, "parentUuid": last}
        last = one["uuid"]
    return made


def _is_conversation(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("uuid"), str)
        and entry.get("type") in ("user", "assistant", "attachment", "system", "progress")
    )


def _leaf(entries: Sequence[Any], usable: Mapping[str, Entry]) -> str | None:
    """Return the id of the newest entry, or of the one that a person went back to."""
    leaf: str | None = None
    for one in entries:
        if is_main(one) and one["uuid"] in usable:
            leaf = one["uuid"]
        elif isinstance(one, dict) and one.get("type") == "last-prompt" and one.get("explicit"):
            named = one.get("leafUuid", leaf)
            leaf = named if named is None or named in usable else leaf
    return leaf


def _parent(
    entry: Entry, usable: Mapping[str, Entry], before: Mapping[str, str | None]
) -> str | None:
    """Return the entry that another one follows; the line before it if its parent is not there.

    A compaction starts a new root, and names what it followed beside.
    """
    named = _id(entry, "parentUuid") or _id(entry, "logicalParentUuid")
    return named if named is None or named in usable else before[entry["uuid"]]


def _beside(entries: Iterable[Entry], kept: set[str]) -> set[str]:
    """Return parallel calls, and results, that belong to kept answers but are not their parents."""
    every = list(entries)
    answers = {
        one["message"].get("id") for one in every if one["uuid"] in kept and _is_answer(one)
    } - {None}
    parts = [one for one in every if _is_answer(one) and one["message"].get("id") in answers]
    parts += [one for one in every if one["uuid"] in kept]
    calls = {call for one in parts for call in _calls(one)}
    return {one["uuid"] for one in parts} | {
        one["uuid"] for one in every if calls.intersection(results(one))
    }


def _with_notes(entries: Sequence[Any], kept: Mapping[str, Entry]) -> Iterator[Entry]:
    """Yield the conversation in the order of the file, with the notes that hold for it."""
    left = dict(kept)
    for one in entries:
        if is_main(one):
            if (found := left.pop(one["uuid"], None)) is not None:
                yield found
        elif _is_conversation(one) or (isinstance(one, dict) and _holds(one, kept)):
            yield one


def _holds(note: Entry, kept: Mapping[str, Entry]) -> bool:
    """Whether a note holds for a copy of the conversation."""
    kind = str(note.get("type"))
    field = ENTRY_NOTES.get(kind)
    return kind in SESSION_NOTES or (field is not None and _id(note, field) in kept)


def _adopted(entry: Entry, new: NewSession) -> Entry:
    """Return an entry as one of the new session."""
    made = dict(entry)
    for key in ("sessionId", "session_id"):
        if key in made:
            made[key] = new.id
    cwd = made.get("cwd")
    if new.move is not None and isinstance(cwd, str):
        made["cwd"] = new.move.path(cwd)
    return made


def _closed(
    entries: Sequence[Entry], new: NewSession, new_id: Callable[[], str]
) -> Iterator[Entry]:
    """Yield the entries, with a result for every call that has none, after its answer.

    What followed such a call follows the added result.
    """
    answered = {call for one in entries if is_main(one) for call in results(one)}
    replaced: dict[str, str] = {}
    waiting: list[Entry] = []
    for one in entries:
        if is_main(one):
            if waiting and not _belongs(one, waiting[-1]):
                yield from _results_for(waiting, answered, new, new_id, replaced)
                waiting = []
            if not answered.issuperset(_calls(one)):
                waiting.append(one)
        parent = replaced.get(_id(one, "parentUuid") or "")
        yield one if parent is None or results(one) else {**one, "parentUuid": parent}
    yield from _results_for(waiting, answered, new, new_id, replaced)


def _belongs(entry: Entry, answer: Entry) -> bool:
    """Whether an entry is a result, or another part of the same answer."""
    if results(entry):
        return True
    known = answer["message"].get("id")
    return _is_answer(entry) and known is not None and entry["message"].get("id") == known


def _results_for(
    waiting: Iterable[Entry],
    answered: Collection[str],
    new: NewSession,
    new_id: Callable[[], str],
    replaced: dict[str, str],
) -> Iterator[Entry]:
    for one in waiting:
        for call in _calls(one):
            if call in answered:
                continue
            block = {"tool_use_id": call, "type": "tool_result", "content": INTERRUPTED}
            made = _added(one, new, new_id)
            replaced[one["uuid"]] = made["uuid"]
            yield {
                **made,
                "message": {"role": "user", "content": [{**block, "is_error": True}]},
                "toolUseResult": INTERRUPTED,
                "sourceToolAssistantUUID": one["uuid"],
            }


def _moved(
    entries: Sequence[Entry], move: Move, new: NewSession, new_id: Callable[[], str]
) -> Entry:
    """Return an entry that tells the model where the files of this branch are."""
    last = [one for one in entries if is_main(one)][-1]
    text = f"<system-reminder>{move.note}</system-reminder>"
    message = {"role": "user", "content": text}
    return {**_added(last, new, new_id), "isMeta": True, "message": message}


def _added(parent: Entry, new: NewSession, new_id: Callable[[], str]) -> Entry:
    """Return the frame of a user entry that follows another one."""
    taken = ("userType", "entrypoint", "cwd", "version", "gitBranch", "promptId", "slug")
    return {
        "parentUuid": parent["uuid"],
        "isSidechain": False,
        "type": "user",
        "uuid": new_id(),
        "timestamp": new.time,
        "sessionId": new.id,
        **{key: parent[key] for key in taken if key in parent},
    }


def _last_prompt(entries: Sequence[Entry], new: NewSession) -> Entry:
    """Return the note by which the program finds the end of the conversation."""
    main = [one for one in entries if is_main(one)]
    said = [text for one in main if (text := prompt_text(one)) is not None]
    last = {"lastPrompt": said[-1][:200]} if said else {}
    return {"type": "last-prompt", **last, "leafUuid": main[-1]["uuid"], "sessionId": new.id}


def _in_order(entry: Entry) -> Entry:
    """Return an entry with its keys in the order in which the program writes them."""
    first = FIRST_KEYS if "uuid" in entry else ("type",)
    made = {key: entry[key] for key in first if key in entry}
    return made | entry


def _content(entry: Entry) -> Any:
    message = entry.get("message")
    return message.get("content") if isinstance(message, dict) else None


def _blocks(entry: Entry, kind: str) -> Iterator[dict[str, Any]]:
    content = _content(entry)
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == kind:
            yield block


def _is_answer(entry: Entry) -> bool:
    return entry.get("type") == "assistant" and isinstance(entry.get("message"), dict)


def _calls(entry: Entry) -> list[str]:
    """Return the ids of the calls of tools in an answer."""
    if not _is_answer(entry):
        return []
    return [str(block.get("id")) for block in _blocks(entry, "tool_use")]


def results(entry: Entry) -> list[str]:
    """Return the ids of the calls whose results are in a user entry."""
    if entry.get("type") != "user":
        return []
    return [str(block.get("tool_use_id")) for block in _blocks(entry, "tool_result")]


def _is_only_thinking(entry: Entry) -> bool:
    content = _content(entry) if _is_answer(entry) else None
    kinds = {block.get("type") for block in content if isinstance(block, dict)} if content else ()
    return bool(kinds) and set(kinds) <= {"thinking", "redacted_thinking"}


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]


def _hash(units: Iterable[int]) -> int:
    """Return the signed 32-bit hash that the program appends to long names."""
    found = 0
    for unit in units:
        found = (found * 31 + unit) & 0xFFFFFFFF
    return found - (1 << 32) if found >= 1 << 31 else found


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, rest = divmod(number, 36)
        text = digits[rest] + text
    return text or "0"
