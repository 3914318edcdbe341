"""Where Claude Code keeps its transcripts, and how one is put there for it to resume."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mulligan.coding.claude_transcript import backups, encode, folder_name
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.layout import sync_directory, write_file
from mulligan.workspace.fsync import make_directories, sync_names

VARIABLE = "CLAUDE_CONFIG_DIR"
"""The variable that names the program's configuration directory."""

PROJECTS = "projects"
BACKUPS = "file-history"
SUFFIX = ".jsonl"
DRAFT = ".mulligan"
"""What the name of a file ends with until it is whole; the program does not list such names."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")


class ClaudeFolder(msgspec.Struct, frozen=True):
    """The configuration directory of the program, as one person uses it."""

    config: Path

    def transcript(self, directory: Path, id: str) -> Path:
        """Return where the transcript of a session that was started in a directory is."""
        return self.config / PROJECTS / folder_name(os.path.realpath(directory)) / f"{id}{SUFFIX}"

    def subagent(self, transcript: Path, id: str) -> Path:
        """Return where the transcript of a subagent is."""
        return transcript.with_suffix("") / "subagents" / f"agent-{id}{SUFFIX}"

    def copy_backups(self, entries: Iterable[dict[str, Any]], old: str, new: str) -> None:
        """Give a new session the program's own copies of files, which its notes refer to.

        One that is gone is left out: the program then says so when it is asked for it.
        """
        names = backups(entries)
        source, target = self.config / BACKUPS / old, self.config / BACKUPS / new
        found = [name for name in sorted(names) if (source / name).is_file()]
        if found and _is_plain(old):
            _make(target)
            for name in found:
                with suppress(FileExistsError):
                    # A link, because the program never changes these files, only replaces them.
                    os.link(source / name, target / name, follow_symlinks=False)
            sync_directory(target)


def config_directory(variables: Mapping[str, str], home: Path) -> Path:
    """Return the configuration directory that the program uses with these variables."""
    return Path(variables.get(VARIABLE) or home / ".claude").absolute()


def config_of(transcript: str | None) -> Path | None:
    """Return the configuration directory that a transcript is in; None if it is in none."""
    parents = Path(transcript or "").parents
    return parents[2] if len(parents) > 3 and parents[1].name == PROJECTS else None


def resume_command(
    id: str, *, config: Path, usual: Path, directory: Path | None, is_new: bool = False
) -> str:
    """Return what to type to continue a session; ``directory`` is where, None for here.

    ``is_new`` is for a session of which nothing was said yet: it is started under its id.
    """
    words = ["claude", "--session-id" if is_new else "--resume", id]
    variable = "" if config == usual else f"{VARIABLE}={shlex.quote(str(config))} "
    change = "" if directory is None else f"cd {shlex.quote(str(directory))} && "
    return change + variable + shlex.join(words)


def draft_of(path: Path) -> Path:
    """Return the name under which a transcript is written before it gets its own."""
    return path.with_name(path.name + DRAFT)


def write_transcript(
    path: Path, entries: Iterable[dict[str, Any]], failpoint: FailpointHook
) -> None:
    """Write a transcript under its draft's name, durable."""
    _make(path.parent)
    write_file(draft_of(path), encode(entries))
    failpoint(Failpoint.REWIND_DRAFT_WRITTEN)


def publish(draft: Path, failpoint: FailpointHook) -> None:
    """Give a written transcript its name: from here on the program can resume it."""
    os.rename(draft, draft.with_name(draft.name.removesuffix(DRAFT)))
    sync_directory(draft.parent)
    failpoint(Failpoint.REWIND_PUBLISHED)


def is_subagent_id(id: str) -> bool:
    """Whether an id of a subagent can be part of a file's name."""
    return _is_plain(id)


def _is_plain(id: str) -> bool:
    return _PLAIN_ID.fullmatch(id) is not None


def _make(directory: Path) -> None:
    made = make_directories(directory)
    for one in made:
        one.chmod(0o700)  # the program's own folders may be open to others; what is said is not
    sync_names(made)
