"""Transcripts of Codex for tests that need no agent."""

from __future__ import annotations

from typing import Any

from mulligan.coding.transcripts.transcript_format import Entry

OLD = "0a-old"


class Rollout:
    """A transcript as the program writes it."""

    def __init__(self, cwd: str = "/p", source: Any = "exec") -> None:
        self.entries: list[Any] = []
        self.add("session_meta", {"id": OLD, "session_id": OLD, "cwd": cwd, "source": source})

    def add(self, kind: str, payload: Entry) -> None:
        number = len(self.entries)
        time = f"2026-11-18T10:00:{number:02}Z"
        entry = {"timestamp": time, "ordinal": number, "type": kind, "payload": payload}
        self.entries.append(entry)

    def prompt(self, text: str, turn: str, *, starts: bool = True) -> None:
        if starts:
            self.add("event_msg", {"type": "task_started", "turn_id": turn})
            self.add("turn_context", {"turn_id": turn, "cwd": "/p/src"})
        message = {"type": "message", "role": "user", "content": [{"text": text}]}
        self.add("response_item", message)
        item = {"type": "UserMessage", "content": [{"type": "text", "text": text}]}
        shown = {"type": "item_completed", "thread_id": OLD, "turn_id": turn, "item": item}
        self.add("event_msg", shown)

    def call(self, id: str, kind: str = "function_call") -> None:
        self.add("response_item", {"type": kind, "call_id": id, "name": "exec_command"})

    def result(self, id: str) -> None:
        self.add("response_item", {"type": "function_call_output", "call_id": id, "output": "ok"})

    def say(self, text: str) -> None:
        content = [{"type": "output_text", "text": text}]
        self.add("response_item", {"type": "message", "role": "assistant", "content": content})
