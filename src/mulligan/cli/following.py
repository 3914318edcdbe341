"""Following transcripts of agents without hooks: `watch`, `run --watch`, and teams that watch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from mulligan.cli.render.text import clean
from mulligan.errors import MulliganError
from mulligan.session.runtime.quiet import LOOK_SECONDS

if TYPE_CHECKING:
    from mulligan.coding.follow import TranscriptFollower
    from mulligan.model import Checkpoint
    from mulligan.store import Store

Say = Callable[[str], None]


def transcript_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--transcript`` to a command that watches."""
    return click.option(
        "--transcript",
        "transcripts",
        multiple=True,
        metavar="FILE|GLOB",
        help="Where the agent writes its conversation, if not where it usually does.",
    )(function)


RETRY_SECONDS = 10.0
"""How long nothing is looked at after a failure that may pass, such as on a full disk."""


class Follower:
    """Looks at transcripts; what fails there must not end what runs beside it."""

    def __init__(self, store: Store, root: Path, patterns: Sequence[str], say: Say) -> None:
        from mulligan.coding.follow import TranscriptFollower

        self._say, self._root = say, root
        self._again_at = 0.0
        self._failed: str | None = None
        # A pattern is quoted, so the shell has left a ~ in it.
        named = [os.path.expanduser(pattern) for pattern in patterns]
        self._follower: TranscriptFollower | None = TranscriptFollower(
            store, root, os.environ, named
        )
        for pattern in self._follower.unmatched():
            say(f"no file matches the transcript {pattern!r} in {root} yet")

    def look(self) -> list[Checkpoint]:
        """Record what is new; return the checkpoints that were taken."""
        if monotonic() < self._again_at:
            return []
        return self._attempt(lambda follower: follower.look())

    def close(self) -> list[Checkpoint]:
        """Record what was written last. Idempotent."""
        taken = self._attempt(lambda follower: follower.close())
        for pattern in self._follower.unread() if self._follower else ():
            self._say(
                f"nothing was recorded of {pattern!r}: it is no transcript of Claude Code, Codex, "
                f"Gemini CLI or opencode at work in {self._root}"
            )
        self._follower = None
        return taken

    def _attempt(self, work: Callable[[TranscriptFollower], list[Checkpoint]]) -> list[Checkpoint]:
        if self._follower is None:
            return []
        try:
            taken = work(self._follower)
        except (MulliganError, OSError) as error:
            self._note(error)
            return []
        if self._failed is not None:
            self._failed = None
            self._say("transcripts are followed again")
        return taken

    def _note(self, error: MulliganError | OSError) -> None:
        """Say once what failed; what will not pass ends the following."""
        if isinstance(error, MulliganError) and not error.retryable:
            self._follower = None
            self._say(f"transcripts are no longer followed: {error}")
            return
        self._again_at = monotonic() + RETRY_SECONDS
        if self._failed != (said := str(error)):
            self._failed = said
            self._say(f"transcripts are not followed for now: {said}")


def followed_directory(team: Mapping[str, Any] | None) -> Path | None:
    """Return the directory of a team that watches; None for one that does not, or has no files."""
    place = team.get("workspace") if team and team.get("watch") else None
    return None if place is None else Path(place)


@contextmanager
def following(store: Store, root: Path | None, patterns: Sequence[str] = ()) -> Iterator[None]:
    """Follow transcripts of agents in a directory in a thread while the block runs."""
    if root is None:
        yield
        return
    follower, ended = Follower(store, root, patterns, _warn), Event()

    def follow() -> None:
        # Polled: transcripts are in many places outside of the workspace, which may not exist yet.
        while not ended.wait(LOOK_SECONDS):
            follower.look()
        # In the same thread: its sessions belong to it.
        follower.close()

    thread = Thread(target=follow, name="mulligan-transcripts")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _warn(said: str) -> None:
    click.echo(f"Warning: {clean(said)}", err=True)
