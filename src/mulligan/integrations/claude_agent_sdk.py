"""The Claude Agent SDK: transcripts of its sessions on Mulligan timelines.

::

    store = MulliganSessionStore(".")
    prompt, options = await store.resume(PROMPT, ClaudeAgentOptions(cwd=".", session_store=store))
    async for message in query(prompt=prompt, options=options): ...

One Mulligan session per session of the SDK: ``conversation`` has the entries of the main
transcript, ``subagents`` those of each subagent, ``claude`` whose session it is, how many entries
each transcript has, and the SDK's own summary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from mulligan.integrations.missing_extra import framework

with framework("claude-agent-sdk", "claude_agent_sdk"):
    import anyio
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        SessionKey,
        SessionStore,
        fold_session_summary,
        import_session_to_store,
        project_key_for_directory,
    )

from mulligan.document.document import MISSING
from mulligan.integrations.handles import (
    Handles,
    StoreLike,
    name_of,
    prefix_of,
    retried,
    text_of,
)
from mulligan.integrations.json_values import (
    all_from_stored,
    all_to_stored,
    from_stored,
    to_stored,
)
from mulligan.session import Session

R = TypeVar("R")

KIND = "claude-sdk"
RECORD = "claude"
CONVERSATION = "conversation"
SUBAGENTS = "subagents"

CONTINUE = "Continue from where you left off."
"""The prompt of a session that goes on after it was interrupted."""


class MulliganSessionStore(SessionStore):
    """A session store of the Claude Agent SDK.

    Appends are durable when they return, entries with a uuid are stored once, and several
    processes may append to one session.
    """

    def __init__(self, store: StoreLike) -> None:
        """Use an open store, or open that of a directory."""
        self._handles = Handles(store)
        self._known: dict[tuple[str, str | None], _KnownUuids] = {}

    async def append(self, key: SessionKey, entries: list[Any]) -> None:
        """Append entries of a transcript; those whose uuid it has already are left out."""
        if entries:
            await _in_thread(lambda: retried(lambda: self._append(key, entries)))

    async def load(self, key: SessionKey) -> list[Any] | None:
        """Return all entries of a transcript; None if it was never written."""
        return await _in_thread(lambda: self._load(key))

    async def list_sessions(self, project_key: str) -> list[Any]:
        """Return the ids of a project's sessions, and when each was written last."""
        return await _in_thread(
            lambda: [
                {"session_id": record["session_id"], "mtime": written}
                for record, written in self._written(project_key)
            ]
        )

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        """Return the SDK's summaries of a project's sessions."""
        return await _in_thread(
            lambda: [
                {
                    "session_id": record["session_id"],
                    "mtime": written,
                    "data": from_stored(record["summary"]),
                }
                for record, written in self._written(project_key)
            ]
        )

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its subagents, or the transcript of one subagent."""
        await _in_thread(lambda: retried(lambda: self._delete(key)))

    async def list_subkeys(self, key: Any) -> list[str]:
        """Return the subpaths of a session's subagents."""
        return await _in_thread(lambda: self._subkeys(key))

    async def resume(
        self, prompt: str, options: ClaudeAgentOptions
    ) -> tuple[str, ClaudeAgentOptions]:
        """Return what to pass to ``query`` so that an interrupted program goes on.

        If the project has a session that got this prompt and did not get to its end, the options
        resume it, and the prompt says to continue. Otherwise both are what they were. Entries that
        the interrupted process wrote to its own transcript only are read from there first. The
        options use this store, and flush every entry to it at once.
        """
        options = dataclasses.replace(options, session_store=self, session_store_flush="eager")
        if options.resume or options.continue_conversation:
            return prompt, options
        project_key = project_key_for_directory(options.cwd)
        found = await _in_thread(lambda: self._interrupted(project_key, prompt))
        if found is not None:
            await self._import(found, options)
            found = await _in_thread(lambda: self._interrupted(project_key, prompt))
        if found is None:
            return prompt, options
        return CONTINUE, dataclasses.replace(options, resume=found)

    def session(self, project_key: str, session_id: str) -> Session | None:
        """Return the Mulligan session of a session of the SDK, for checkpoints and forks."""
        return self._handles.find(name_of(KIND, project_key, session_id))

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._handles.close()

    async def _import(self, session_id: str, options: ClaudeAgentOptions) -> None:
        """Append what the program's own transcript has and the store does not."""
        found = _Collected()
        directory = None if options.cwd is None else str(options.cwd)
        try:
            # One entry at a time: a torn last line must not take others with it.
            await import_session_to_store(session_id, found, directory=directory, batch_size=1)
        except FileNotFoundError:
            return  # the session ran on another machine, or from a copy of its own
        except ValueError:
            pass  # the last line is torn: what is before it was collected
        for key, entries in found.transcripts:
            await self.append(key, entries)

    def _append(self, key: SessionKey, entries: list[Any]) -> None:
        name, subpath = _name(key), key.get("subpath")
        session = self._handles.session(name)
        known = self._known.setdefault((name, subpath), _KnownUuids())
        path = _path(subpath)
        with session.batch():
            before = session.state.get(RECORD, MISSING)
            record = _new_record(key) if before is MISSING else before
            count = _count(record, subpath)
            new = known.unknown(session, path, count, entries)
            if not new:
                return
            session.state.extend(path, all_to_stored(new))
            after = _with_entries(record, key, count + len(new), new)
            # Compared, so that count, summary and entries are those of one moment.
            session.state.set(RECORD, after, expected=before)
        known.add(count, new)

    def _load(self, key: SessionKey) -> list[Any] | None:
        session = self._handles.find(_name(key))
        if session is None:
            return None
        stored = session.state.get(_path(key.get("subpath")))
        return None if stored is None else all_from_stored(stored)

    def _of_project(self, project_key: str) -> list[tuple[Session, dict[str, Any]]]:
        found = self._handles.starting_with(prefix_of(KIND, text_of(project_key, "A project key")))
        records = [(session, session.state.get(RECORD)) for session in found]
        return [(session, record) for session, record in records if record is not None]

    def _written(self, project_key: str) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the sessions with entries, the oldest write first, and its time in milliseconds.

        No two times are equal: by them the SDK finds the session that was written last.
        """
        found = sorted(self._of_project(project_key), key=lambda pair: pair[0].updated)
        before = 0
        for session, record in found:
            if record["entries"]:
                before = max(before + 1, int(session.updated.timestamp() * 1000))
                yield record, before

    def _delete(self, key: SessionKey) -> None:
        session, subpath = self._handles.find(_name(key)), key.get("subpath")
        before = None if session is None else session.state.get(RECORD)
        if session is None or before is None:
            return
        if subpath is None:
            self._handles.delete(session.name)
            return
        with session.batch():
            if subpath in before["subpaths"]:
                left = {path: n for path, n in before["subpaths"].items() if path != subpath}
                session.state.delete(_path(subpath))
                session.state.set(RECORD, {**before, "subpaths": left}, expected=before)

    def _subkeys(self, key: Any) -> list[str]:
        session = self._handles.find(_name(key))
        record = None if session is None else session.state.get(RECORD)
        return [] if record is None else [*record["subpaths"]]

    def _interrupted(self, project_key: str, prompt: str) -> str | None:
        """Return the id of the newest session with this prompt, unless it came to its end."""
        found = sorted(self._of_project(project_key), key=lambda pair: pair[0].updated)
        for session, record in reversed(found):
            entries = all_from_stored(session.state.get(CONVERSATION) or [])
            if prompt in [_prompt(entry) for entry in entries]:
                return None if _has_ended(entries) else cast(str, record["session_id"])
        return None


class _Collected:
    """Takes the entries of transcripts that have a uuid, by which they are stored once."""

    def __init__(self) -> None:
        self.transcripts: list[tuple[SessionKey, list[Any]]] = []

    async def append(self, key: SessionKey, entries: list[Any]) -> None:
        if not self.transcripts or self.transcripts[-1][0] != key:
            self.transcripts.append((key, []))
        self.transcripts[-1][1].extend(entry for entry in entries if entry.get("uuid"))


class _KnownUuids:
    """The uuids of a transcript, as far as this process has read it."""

    def __init__(self) -> None:
        self._count = 0
        self._uuids: set[str] = set()
        self._last: tuple[int, str] | None = None
        """The place and uuid of the last entry that has one."""

    def unknown(
        self, session: Session, path: tuple[str, ...], count: int, entries: list[Any]
    ) -> list[Any]:
        """Return the entries that a transcript of ``count`` entries does not have yet."""
        self._catch_up(session, path, count)
        found, here = [], set[str]()
        for entry in entries:
            uuid = entry.get("uuid")
            if uuid is not None and (uuid in self._uuids or uuid in here):
                continue
            here.add(uuid)
            found.append(entry)
        return found

    def add(self, count: int, entries: list[Any]) -> None:
        """Note entries that were appended after ``count`` others."""
        for place, entry in enumerate(entries, count):
            if (uuid := entry.get("uuid")) is not None:
                self._uuids.add(uuid)
                self._last = (place, uuid)
        self._count = count + len(entries)

    def _catch_up(self, session: Session, path: tuple[str, ...], count: int) -> None:
        """Read what other processes wrote; all of it, if the session was restored meanwhile."""
        if not self._is_part(session, path, count):
            self._count, self._uuids, self._last = 0, set(), None
        if self._count == 0 and count:
            self.add(0, all_from_stored(session.state.get(path)))
            return
        places = range(self._count, count)
        self.add(
            self._count, all_from_stored(session.state.get((*path, place)) for place in places)
        )

    def _is_part(self, session: Session, path: tuple[str, ...], count: int) -> bool:
        if self._count > count:
            return False
        if self._last is None:
            return self._count == 0
        place, uuid = self._last
        [entry] = all_from_stored([session.state.get((*path, place))])
        return isinstance(entry, dict) and entry.get("uuid") == uuid


async def _in_thread(call: Callable[[], R]) -> R:
    # By anyio, not asyncio: the SDK also runs under trio.
    return cast(R, await anyio.to_thread.run_sync(call))


def _name(key: Any) -> str:
    return name_of(
        KIND,
        text_of(key["project_key"], "A project key"),
        text_of(key["session_id"], "A session id"),
    )


def _path(subpath: str | None) -> tuple[str, ...]:
    return (CONVERSATION,) if subpath is None else (SUBAGENTS, subpath)


def _new_record(key: SessionKey) -> dict[str, Any]:
    return {
        "project_key": key["project_key"],
        "session_id": key["session_id"],
        "entries": 0,
        "subpaths": {},
        "summary": {},
    }


def _count(record: dict[str, Any], subpath: str | None) -> int:
    count = record["entries"] if subpath is None else record["subpaths"].get(subpath, 0)
    return int(count)


def _with_entries(
    record: dict[str, Any], key: SessionKey, count: int, new: list[Any]
) -> dict[str, Any]:
    subpath = key.get("subpath")
    if subpath is not None:
        return {**record, "subpaths": {**record["subpaths"], subpath: count}}
    previous: Any = None
    if record["entries"]:
        data = from_stored(record["summary"])
        previous = {"session_id": key["session_id"], "mtime": 0, "data": data}
    folded = fold_session_summary(previous, key, new)
    return {**record, "entries": count, "summary": to_stored(folded["data"])}


def _prompt(entry: Any) -> str | None:
    """Return the text of a prompt; None for entries that are none."""
    if not isinstance(entry, dict) or entry.get("type") != "user" or entry.get("isMeta"):
        return None
    content = (entry.get("message") or {}).get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if part.get("type") == "text"]
        return texts[0] if len(texts) == 1 else None
    return content if isinstance(content, str) else None


def _has_ended(entries: list[Any]) -> bool:
    """Whether the last message of a transcript is the agent's, and asks for no tool."""
    said = [entry for entry in entries if entry.get("type") in ("user", "assistant")]
    if not said or said[-1]["type"] == "user":
        return False
    return bool((said[-1].get("message") or {}).get("stop_reason") in ("end_turn", "stop_sequence"))
