"""The components of a session's state: what each holds, which API writes it, how it is restored.

One table for everything that depends on a component: writes through ``session.state``, restores
beside other writers, rollbacks of operations, and clean starts of a recovery. Components that are
not listed belong to the application and follow ``DEFAULT``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mulligan.document import nodes
from mulligan.document.compare import same
from mulligan.document.document import MISSING, Document
from mulligan.document.fold import STATE
from mulligan.errors import InvalidPath
from mulligan.model import Path

TASKS = "tasks"
MAILBOX = "mailbox"
AGENTS = "agents"
ORCHESTRATOR = "orchestrator"
STEPS = "steps"
EFFECTS = "effects"
OUTSIDE = "outside"
TOOLS = "tools"

Merge = Literal["paths", "records"]
"""What is kept of writes that happen during a restore: each changed path, or each changed record
(``NAME/KEY``) as a whole, where half a record would be invalid."""

CleanStart = Literal["kept", "identity", "removed"]
"""What a clean start does: keep it, keep only what identifies each agent, or remove it."""


class Component(msgspec.Struct, frozen=True):
    """One component: ``api`` is the only way to write it; None for ``session.state``."""

    name: str
    holds: str
    api: str | None = None
    merge: Merge = "paths"
    rolls_back: bool = True
    """Whether the rollback of a failed operation covers it."""
    clean_start: CleanStart = "removed"


DEFAULT = Component("", "what the application stores there")

_TABLE = (
    Component(
        AGENTS,
        "the record of each agent: process, prompt, state, what it works on",
        api="session.agent.update(...), or `mulligan agents` to look",
        # The records describe processes, and a rollback does not bring processes back.
        rolls_back=False,
        clean_start="identity",
    ),
    Component("config", "the configuration of the run", clean_start="kept"),
    Component("context", "what the agent has in view"),
    Component("conversation", "the messages between user, agent and model"),
    Component(
        EFFECTS,
        "local effects; the ledger of all others is outside of what a restore rewinds",
        api="session.effect(...), or `mulligan effects`",
        merge="records",
    ),
    Component(
        MAILBOX,
        "the messages to each agent, and the ids of those it has processed",
        api="session.mailbox.send(...), or `mulligan mail send`",
        merge="records",
        # A message that was sent has left the sender.
        rolls_back=False,
    ),
    Component("memory", "what the agent has learned"),
    Component(
        ORCHESTRATOR,
        "the workflow that a supervisor runs",
        api="`mulligan up` and the supervisor",
        clean_start="kept",
    ),
    Component(
        OUTSIDE,
        "effects that happened beyond the point that the session went back to",
        api="session.restore(...) and session.effect(...)",
        merge="records",
        # The world does not roll back.
        rolls_back=False,
        clean_start="kept",
    ),
    Component(
        STEPS,
        "the results of durable steps",
        api="session.step(...) and session.durable(...)",
        merge="records",
    ),
    Component(
        TASKS,
        "the plan: tasks, who works on them, how they ended",
        api="session.tasks.add(...), claim(), complete(...), or `mulligan tasks`",
        merge="records",
        clean_start="kept",
    ),
    Component(
        TOOLS,
        "calls of tools, in doubt until they have returned",
        api="session.tools.call(...), or `mulligan tools` to look",
        merge="records",
    ),
)

COMPONENTS = {component.name: component for component in _TABLE}


def component(name: str | int) -> Component:
    """Return the entry of a component, by the first part of a path."""
    return COMPONENTS.get(str(name), DEFAULT)


def merge_unit(path: Path) -> Path:
    """Return the unit that is kept as a whole when this path is written during a restore."""
    return path[:2] if path and component(path[0]).merge == "records" else path


def check_writable(path: Path) -> None:
    """Raise ``InvalidPath`` for a path inside a component that has an API of its own."""
    if path and (api := component(path[0]).api) is not None:
        raise _refusal(str(path[0]), api)


def check_root(document: Document, value: Any) -> None:
    """Raise ``InvalidPath`` if a whole state would change a component with an API of its own."""
    for known in COMPONENTS.values():
        after = nodes.map_get(value, known.name, MISSING, document.resolved)
        if known.api is not None and not same(document.find((*STATE, known.name)), after):
            raise _refusal(known.name, known.api)


def _refusal(name: str, api: str) -> InvalidPath:
    return InvalidPath(
        f"{name!r} is not written through the state.",
        hint=f"Nothing was written. Use {api}. Reading it through the state is fine.",
    )
