"""Transcripts of Claude Code for tests, made entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

OLD = "11111111-1111-4111-8111-111111111111"
NEW = "22222222-2222-4222-8222-222222222222"


class Transcript:
    """Entries as the program appends them; every one follows the last one unless told."""

    def __init__(self, session: str = OLD, cwd: str = "/project") -> None:
        self.entries: list[Any] = []
        self.last: str | None = None
        self._frame = {"sessionId": session, "cwd": cwd, "version": "2.1.326"}
        self._numbers = count()

    def add(self, kind: str, follows: str | bool | None = True, **fields: Any) -> str:
        """Append an entry of the conversation; return its id."""
        number = next(self._numbers)
        uuid = f"uuid-{number}"
        parent = self.last if follows is True else follows
        self.entries.append(
            {
                "parentUuid": parent,
                "isSidechain": False,
                "type": kind,
                "uuid": uuid,
                "timestamp": f"2026-11-18T10:00:{number:02}.000Z",
                **self._frame,
                **fields,
            }
        )
        self.last = uuid
        return uuid

    def note(self, kind: str, **fields: Any) -> None:
        """Append an entry that is no part of the conversation."""
        self.entries.append({"type": kind, "sessionId": self._frame["sessionId"], **fields})

    def prompt(self, text: str, **fields: Any) -> str:
        """Append what a person asks."""
        return self.add("user", message={"role": "user", "content": text}, **fields)

    def say(self, text: str, **fields: Any) -> str:
        """Append an answer of the model."""
        return self._answer({"type": "text", "text": text}, **fields)

    def think(self) -> str:
        """Append thinking of the model."""
        return self._answer({"type": "thinking", "thinking": "…"})

    def call(self, call: str, answer: str = "answer", **fields: Any) -> str:
        """Append a call of a tool; calls with the same answer run in parallel."""
        block = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "make"}}
        return self._answer(block, answer, **fields)

    def result(self, call: str, **fields: Any) -> str:
        """Append the result of a call."""
        block = {"type": "tool_result", "tool_use_id": call, "content": "done"}
        return self.add("user", message={"role": "user", "content": [block]}, **fields)

    def _answer(self, block: dict[str, Any], answer: str = "", **fields: Any) -> str:
        message = {"role": "assistant", "content": [block], "id": answer or f"a{len(self.entries)}"}
        return self.add("assistant", message=message, **fields)


def new_ids() -> Callable[[], str]:
    """Return a source of ids that counts."""
    numbers = count()
    return lambda: f"new-{next(numbers)}"
