"""The tool that hooks of Claude Code call, so that the server is their resident helper.

``tools/list`` does not show it: it is for the agent's settings, not for the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from mulligan.coding import claude
from mulligan.coding.hook_input import CLAUDE
from mulligan.coding.hooks import HookRunner, said, session_of
from mulligan.coding.mcp_input import hook_json
from mulligan.errors import InvalidHook, MulliganError

SESSION = "CLAUDE_CODE_SESSION_ID"
"""The variable in which Claude Code names its session to the servers that it starts."""


class HookReply(msgspec.Struct, frozen=True):
    """What a hook answers to the agent, and the session that it wrote to."""

    text: str
    session: str | None = None


class Hook(Protocol):
    """Handles events of the agent."""

    def handle(self, arguments: dict[str, Any]) -> HookReply:
        """Record an event; raises nothing."""

    def serve(self) -> None:
        """Say that events are handled here from now on; raises nothing. Idempotent."""

    def retire(self) -> None:
        """Say that no further event is handled here."""

    def close(self) -> None:
        """Close what is open."""


class Lock(Protocol):
    """What the commands that hooks run as well look at; see ``resident.serving.ServedAgent``."""

    def take(self) -> bool:
        """Take it; return False if another server of the agent has it. Idempotent."""

    def release(self) -> None:
        """Release it. Idempotent."""


class ClaudeHook:
    """Records the events of the agent that started the server."""

    def __init__(self, variables: Mapping[str, str], parent: int, lock: Lock | None = None) -> None:
        """Use the variables of the environment; ``parent`` is the process of the agent.

        While ``lock`` is held, the commands that hooks run as well do nothing.
        """
        # Claude Code names its process to commands alone, and it starts its servers itself. Where
        # the variable is set, it names another agent, in which this one was started as a command.
        self._runner = HookRunner({**variables, claude.PROCESS: str(parent)}, stays=True)
        self._lock = lock

    def handle(self, arguments: dict[str, Any]) -> HookReply:
        """Record an event, and return the reply for the agent."""
        try:
            data = hook_json(arguments)
        except InvalidHook as error:
            self._runner.note(CLAUDE, said(error))
            return HookReply("")
        reply = self._runner.handle(data, CLAUDE)
        return HookReply(reply.decode(), conversation(arguments.get("session_id")))

    def serve(self) -> None:
        """Take the lock."""
        if self._lock is None:
            return
        try:
            self._lock.take()
        except (MulliganError, OSError) as error:
            # Without it, commands get the same events as well; they are still recorded once.
            self._runner.note(CLAUDE, said(error))
            self._lock = None

    def retire(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def close(self) -> None:
        """Close stores and sessions."""
        self._runner.close()


def conversation(id: Any) -> str | None:
    """Return the session that records a conversation of Claude Code."""
    return session_of(CLAUDE, id) if isinstance(id, str) and id else None
