"""How a coding agent keeps its conversations: what a rewind has to know, whatever the agent.

Each agent has a module with its format. A transcript is a list of entries. The format tells which
of them are prompts, cuts the list, and makes of the rest a transcript that the program resumes. Its
folder tells where the program looks for one, and what to type to continue it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

Entry = dict[str, Any]

NewId = Callable[[], str]
"""Makes an id that nothing else has."""

KeptFile = Callable[[str], bytes | None]
"""Returns a file that was kept with a transcript, by its name; None if there is none."""

INTERRUPTED = (
    "[Interrupted: the conversation was taken back to a moment at which this call had not "
    "returned, so its result is unknown. Check what it did before you repeat it.]"
)
"""The result of a call that had not returned at the point of the cut."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")


class Prompt(msgspec.Struct, frozen=True):
    """What a person asked: its place in the list of entries, its id, its time and its text.

    ``asked`` is the id by which hooks know it; None if the agent gives them none. One that
    ``is_queued`` was typed during the turn before it, and waited for the end of that.
    """

    entry: int
    uuid: str
    time: str
    text: str
    asked: str | None = None
    is_queued: bool = False


class Move(msgspec.Struct, frozen=True):
    """A copy of a conversation that continues in another directory."""

    old: str
    new: str

    @property
    def note(self) -> str:
        """What the model is told: earlier entries name the other directory."""
        return (
            f"This conversation continues in {self.new}, which has a copy of the files of "
            f"{self.old} as they were at this point. Read and change files in {self.new}; "
            f"{self.old} belongs to another branch of the conversation."
        )

    def path(self, path: str) -> str:
        """Return where a path is after the move; one outside of the old directory stays."""
        old = self.old.rstrip("/")
        inside = path == self.old or path.startswith(f"{old}/")
        return self.new + path[len(old) :] if inside else path


class NewSession(msgspec.Struct, frozen=True):
    """The session that a rewound transcript is for.

    ``old`` is the id of the one that is left, and ``transcript`` where its transcript is.
    """

    id: str
    time: str
    move: Move | None = None
    old: str = ""
    transcript: str | None = None


class TranscriptOwner(msgspec.Struct, frozen=True):
    """Whose transcript a file is: the agent's id of its session, and the directory it works in."""

    id: str
    cwd: str


class SideFile(msgspec.Struct, frozen=True):
    """A file that a transcript needs beside it."""

    path: Path
    data: bytes


class Placed(msgspec.Struct, frozen=True):
    """The entries of a transcript as they are in its file, and the files beside it."""

    entries: list[Entry]
    side_files: tuple[SideFile, ...] = ()


class Rewritten(msgspec.Struct, frozen=True):
    """A conversation up to a point, as a transcript of a new session.

    No entries mean that nothing had been said. ``closed`` counts the calls that got a result
    because they had none.
    """

    entries: list[Entry]
    closed: int = 0


class AgentFolder(Protocol):
    """Where an agent keeps its transcripts, as one person uses it."""

    def transcript(self, directory: Path, new: NewSession) -> Path:
        """Return where the program looks for a session that is continued in a directory."""

    def subagent(self, transcript: Path, id: str) -> Path | None:
        """Return where the transcript of a subagent is; None if it has no use for one."""

    def placed(
        self, transcript: Path, new: NewSession, entries: list[Entry], beside: KeptFile
    ) -> Placed:
        """Return the entries for a file, and what has to be beside it before it is published.

        ``beside`` returns what was kept of a file beside the old transcript, by its name.
        """

    def prepare(self, new: NewSession, entries: Sequence[Entry]) -> None:
        """Give a new session what the program itself keeps of the old one. Idempotent."""

    def resume_command(self, id: str, transcript: Path | None, *, is_new: bool) -> str:
        """Return what to type to continue a session.

        ``transcript`` is one that a rewind has written and that the program does not know yet.
        ``is_new`` is for a session of which nothing was said.
        """


class TranscriptFormat(Protocol):
    """What one agent writes into a transcript, and what it accepts when it resumes one."""

    def folder(self, transcript: str | None, variables: Mapping[str, str]) -> AgentFolder:
        """Return the folder that a transcript is in, or else the one that the program uses."""

    def transcripts(self, variables: Mapping[str, str], root: Path) -> Iterable[Path]:
        """Return the files that may be transcripts of sessions in a directory."""

    def owner(self, path: Path, entries: Sequence[Any]) -> TranscriptOwner | None:
        """Return whose transcript a file is; None if it is none of this agent."""

    def session_id(self, id: str) -> str:
        """Return a new id of a session, made of a UUID."""

    def parsed(self, entries: Iterable[Any]) -> list[Any]:
        """Return stored entries as the program reads them; each one by itself."""

    def prompts(self, entries: Sequence[Any], asked: Collection[str]) -> list[Prompt]:
        """Return the prompts of the conversation that the entries end with, oldest first.

        ``asked`` are ids of prompts that hooks have seen.
        """

    def completed(
        self, then: list[Any], now: list[Any], until: int, calls: Collection[str] | None
    ) -> list[Any]:
        """Return the entries of a moment, with results that were written a little later.

        ``then`` had been written at that moment, ``now`` has been since. ``calls`` had returned;
        None stands for those of one batch, if the agent does not name them. What is in ``now`` from
        ``until`` on came later.
        """

    def started_in(self, entries: Sequence[Any], transcript: str | None, cwd: str) -> Path:
        """Return the directory in which the program was started; ``cwd`` is its last one."""

    def rewound(self, entries: Sequence[Any], new: NewSession, new_id: NewId) -> Rewritten:
        """Return the conversation that the entries end with, as one of a new session."""

    def subagent(self, entries: Iterable[Any], new: NewSession) -> list[Entry]:
        """Return the transcript of a subagent for the new session; empty if none is needed."""


class Lines:
    """What formats have in common whose transcripts are lines that are only added to."""

    def session_id(self, id: str) -> str:
        """Return a UUID as it is."""
        return id

    def parsed(self, entries: Iterable[Any]) -> list[Any]:
        """Return entries with those parsed that the store keeps as text."""
        return decoded(entries)

    def completed(
        self, then: list[Any], now: list[Any], until: int, calls: Collection[str] | None
    ) -> list[Any]:
        """Return the entries of a moment, and the lines up to its last result."""
        if now[: len(then)] != then:
            return then
        length = len(then)
        for index in range(length, until):
            found = self.results(now[index])
            if calls is None and found:
                return now[: index + 1]
            if calls and not set(calls).isdisjoint(found):
                length = index + 1
        return now[:length]

    def results(self, entry: Any) -> Collection[str]:
        """Return the ids of the calls whose results an entry has."""
        raise NotImplementedError

    def started_in(self, entries: Sequence[Any], transcript: str | None, cwd: str) -> Path:
        """Return the last directory: the program stays in the one in which it was started."""
        return Path(cwd)

    def subagent(self, entries: Iterable[Any], new: NewSession) -> list[Entry]:
        """Return nothing: what a subagent answered is part of the conversation."""
        return []


def decoded(entries: Iterable[Any]) -> list[Any]:
    """Return entries with those parsed that the store keeps as text.

    These are lines that are valid for the program, but hold what the state cannot: half of a
    surrogate pair, where a text was cut, or a very large number.
    """
    return [_decoded(one) if isinstance(one, str) else one for one in entries]


def encode(entries: Iterable[Entry]) -> bytes:
    """Return a transcript as the bytes of its file: a line for each entry."""
    return b"".join(encode_one(one) + b"\n" for one in entries)


def encode_one(entry: Entry) -> bytes:
    """Return an entry as JSON, without a line's end."""
    try:
        return msgspec.json.encode(entry)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(entry, separators=(",", ":")).encode()  # as escapes, as it was


def text_of(content: Any) -> str:
    """Return the text of a message: a string, or blocks of which some have text."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def owner_of(id: Any, cwd: Any) -> TranscriptOwner | None:
    """Return the owner that an entry names; None if it names none."""
    if not isinstance(id, str) or not isinstance(cwd, str) or not cwd:
        return None
    return TranscriptOwner(id, cwd) if is_plain_id(id) else None


def is_plain_id(id: str) -> bool:
    """Whether an id can be part of a file's name."""
    return _PLAIN_ID.fullmatch(id) is not None


def typed(words: Sequence[str], variable: str, place: Path, usual: Path) -> str:
    """Return a command to type; the variable is named if the program's folder is not the usual."""
    named = "" if place == usual else f"{variable}={shlex.quote(str(place))} "
    return named + shlex.join(words)


def _decoded(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line
