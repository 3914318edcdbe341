"""Where Claude Code keeps its transcripts, and how one is put there for it to resume."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mulligan.coding import claude
from mulligan.coding.transcripts import claude_transcript
from mulligan.coding.transcripts.claude_transcript import backups, folder_name
from mulligan.coding.transcripts.transcript_draft import make_private
from mulligan.coding.transcripts.transcript_format import (
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
    is_plain_id,
    owner_of,
    typed,
)
from mulligan.layout import sync_directory

VARIABLE = "CLAUDE_CONFIG_DIR"
"""The variable that names the program's configuration directory."""

PROJECTS = "projects"
BACKUPS = "file-history"
SUFFIX = ".jsonl"


class ClaudeFolder(msgspec.Struct, frozen=True):
    """The configuration directory of the program, and the one that it uses by itself."""

    config: Path
    usual: Path | None = None

    def transcript(self, directory: Path, new: NewSession) -> Path:
        """Return where the transcript of a session that was started in a directory is."""
        folder = self.config / PROJECTS / folder_name(os.path.realpath(directory))
        return folder / f"{new.id}{SUFFIX}"

    def subagent(self, transcript: Path, id: str) -> Path:
        """Return where the transcript of a subagent is."""
        return transcript.with_suffix("") / "subagents" / f"agent-{id}{SUFFIX}"

    def placed(
        self, transcript: Path, new: NewSession, entries: list[Entry], beside: KeptFile
    ) -> Placed:
        """Return the large results of tools, too, which the entries then name in their new place.

        One that was not kept stays where it is, as long as the old session does.
        """
        if new.transcript is None:
            return Placed(entries)
        old, now = (f"{claude.tool_results_of(str(one))}/" for one in (new.transcript, transcript))
        found = {name: beside(name) for name in sorted(_names(entries, old))}
        kept = {name: data for name, data in found.items() if data is not None}
        files = tuple(SideFile(Path(now, name), data) for name, data in kept.items())
        moved = {old + name: now + name for name in kept}
        return Placed([_renamed(one, moved) for one in entries] if moved else entries, files)

    def prepare(self, new: NewSession, entries: Iterable[Entry]) -> None:
        """Give a new session the program's own copies of files, which its notes refer to.

        One that is gone is left out: the program then says so when it is asked for it.
        """
        source, target = self.config / BACKUPS / new.old, self.config / BACKUPS / new.id
        found = [name for name in sorted(backups(entries)) if (source / name).is_file()]
        if found and is_plain_id(new.old):
            make_private(target)
            for name in found:
                with suppress(FileExistsError):
                    # A link, because the program never changes these files, only replaces them.
                    os.link(source / name, target / name, follow_symlinks=False)
            sync_directory(target)

    def resume_command(self, id: str, transcript: Path | None, *, is_new: bool) -> str:
        """Return what to type to continue a session; one of which nothing was said is started."""
        words = ["claude", "--session-id" if is_new else "--resume", id]
        return typed(words, VARIABLE, self.config, self.usual or self.config)


class ClaudeFormat(Lines):
    """The transcripts of Claude Code; ``claude_transcript`` tells what is in them."""

    def folder(self, transcript: str | None, variables: Mapping[str, str]) -> ClaudeFolder:
        """Return the configuration directory that a transcript is in, or else the usual one."""
        usual = _usual(variables)
        return ClaudeFolder(config_of(transcript) or usual, usual)

    def transcripts(self, variables: Mapping[str, str], root: Path) -> Iterable[Path]:
        """Return the files in the folder of a directory; those of directories below have others."""
        folder = _usual(variables) / PROJECTS / folder_name(os.path.realpath(root))
        return folder.glob(f"*{SUFFIX}")

    def owner(self, path: Path, entries: Sequence[Any]) -> TranscriptOwner | None:
        """Return the session that the first entry of a conversation names."""
        said = (one for one in entries if claude_transcript.is_main(one))
        found = (owner_of(one.get("sessionId"), one.get("cwd")) for one in said)
        return next((one for one in found if one is not None), None)

    def prompts(self, entries: Sequence[Any], asked: Collection[str]) -> list[Prompt]:
        """Return the prompts of the conversation that the entries end with, oldest first."""
        return claude_transcript.prompts(entries, asked)

    def results(self, entry: Any) -> Collection[str]:
        """Return the ids of the calls whose results an entry of the conversation has."""
        return claude_transcript.results(entry) if claude_transcript.is_main(entry) else ()

    def started_in(self, entries: Sequence[Any], transcript: str | None, cwd: str) -> Path:
        """Return the directory that the transcript's folder is named after."""
        folder = Path(transcript or "").parent.name
        found = (one.get("cwd") for one in entries if isinstance(one, dict))
        named = (one for one in found if isinstance(one, str))
        return Path(next((one for one in named if folder_name(one) == folder), cwd))

    def rewound(self, entries: Sequence[Any], new: NewSession, new_id: NewId) -> Rewritten:
        """Return the conversation that the entries end with, as one of a new session."""
        made = claude_transcript.rewound(entries, new, new_id)
        return Rewritten(made, sum(claude_transcript.is_closing(one) for one in made))

    def subagent(self, entries: Iterable[Any], new: NewSession) -> list[Entry]:
        """Return the transcript of a subagent for the new session of its parent."""
        return claude_transcript.subagent(entries, new)


def _usual(variables: Mapping[str, str]) -> Path:
    """Return the configuration directory that the program uses with these variables."""
    home = Path(variables.get("HOME") or "~").expanduser()
    return Path(variables.get(VARIABLE) or home / ".claude").absolute()


def _names(value: Any, folder: str) -> set[str]:
    """Return the names of files in a folder that a value refers to."""
    if isinstance(value, str):
        rests = value.split(folder)[1:]
        return {found[0] for rest in rests if (found := claude.RESULT_NAME.match(rest))}
    inner = value.values() if isinstance(value, dict) else value
    every = (_names(one, folder) for one in inner) if isinstance(value, dict | list) else ()
    return set().union(*every)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with other paths in its texts."""
    if isinstance(value, dict):
        return {key: _renamed(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
    return value


def config_of(transcript: str | None) -> Path | None:
    """Return the configuration directory that a transcript is in; None if it is in none."""
    parents = Path(transcript or "").parents
    return parents[2] if len(parents) > 3 and parents[1].name == PROJECTS else None
