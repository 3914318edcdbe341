"""The files of a thread: a graph that goes back to an earlier checkpoint gets those it had there.

LangGraph does not say that a run starts at an earlier checkpoint, but it loads that checkpoint with
the config of the run. The files are restored then, before any node runs. A safety checkpoint keeps
what was there, and ``mulligan undo`` brings it back.

A checkpoint has the files of its step only if it is saved before the nodes of the next step run. By
default, LangGraph does not wait for that, so runs with files need ``durability="sync"`` or
``"exit"``. It never waits for the checkpoint that begins the branch of a run, whose files are those
of its parent.
"""

from __future__ import annotations

from typing import Any

from mulligan.errors import StateError
from mulligan.integrations.langgraph.layout import ROOT, checkpoint_key, graph_path
from mulligan.session import Session
from mulligan.session.names import WORKSPACE

FILES = (ROOT, "files")
"""In the state: the checkpoint whose files were restored, until the next one is saved."""

RUN = "__pregel_runtime"
"""A key that the config of a run has, and no other config."""

DURABILITY = "__pregel_durability"
"""The key of a run's durability in its config."""

BRANCHES = ("update", "fork")
"""The sources of checkpoints that may begin a branch."""

FORK_OF = "fork_of"
"""In the data of a checkpoint that begins the branch of a run: the one that has its files."""


def check_durability(configurable: dict[str, Any]) -> None:
    """Refuse a run that does not wait for its checkpoints before the next step."""
    if RUN in configurable and configurable.get(DURABILITY, "async") == "async":
        raise StateError(
            "A graph whose checkpoints hold files cannot run with the durability 'async'.",
            hint='Nothing was run. Call graph.invoke(input, config, durability="sync"): then '
            "every checkpoint is saved before the next step changes files.",
        )


class ThreadFiles:
    """The files of the checkpoints of a thread's outermost graph."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def at_start(self, configurable: dict[str, Any]) -> None:
        """Restore the files for a run that loads its first checkpoint, if they are others."""
        if RUN not in configurable or configurable.get("checkpoint_ns"):
            return
        if "checkpoint_id" in configurable and configurable["checkpoint_id"] is None:
            return  # the run compares the checkpoint that it starts at with the latest one
        wanted, latest = configurable.get("checkpoint_id"), self._latest()
        restored = self._session.state.get(FILES)
        # Those of the latest checkpoint are there, and may have been edited since. If an earlier
        # run restored others and saved no checkpoint after them, they have to be brought back.
        if wanted is None or wanted == latest:
            if restored is not None and restored != latest:
                self._restore(latest)
        elif restored != wanted:
            self._restore(wanted)

    def at_save(self, namespace: str, parent: str | None, source: str | None) -> None:
        """Restore the files for a branch that begins at another checkpoint than the latest."""
        if namespace or source not in BRANCHES or parent is None:
            return
        if parent not in (self._latest(), self._session.state.get(FILES)):
            self._restore(parent)

    def saved(self, namespace: str) -> None:
        """Note that the files are those of the checkpoint that was just saved."""
        if not namespace and self._session.state.get(FILES) is not None:
            self._session.state.delete(FILES)

    def _latest(self) -> str | None:
        state, place = self._session.state, graph_path("")
        found: str | None = state.get((*place, "latest")) or state.get((*place, "id"))
        return found

    def _restore(self, id: str | None) -> None:
        taken = None if id is None else self._session.checkpoints.find(checkpoint_key("", id))
        while taken is not None and FORK_OF in taken.data:
            taken = self._session.checkpoints.find(checkpoint_key("", taken.data[FORK_OF]))
        # A checkpoint that was saved without a workspace has none to restore.
        if taken is None or taken.workspace is None:
            return
        # First: if this process dies while it restores, the next run knows that it did.
        self._session.state.set(FILES, id)
        self._session.restore(taken.seq, only=[WORKSPACE])
