"""The interfaces of models that the agents use, as far as the tests need them.

An answer is a list of blocks: ``{"type": "text", "text": …}``, and calls of tools
``{"type": "tool_use", "id": …, "name": …, "input": …}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

Block = dict[str, Any]
Json = dict[str, Any]

USER, AGENT, RESULT = "user", "agent", "result"

Said = tuple[str, str]
"""Who said something, and the text: the user, the agent, or a tool, whose text is left out."""

STOP = b"data: [DONE]\n\n"


class Api(Protocol):
    """How one interface writes requests and answers."""

    def conversation(self, request: Json) -> list[Said]:
        """Return who said what, in order, with one entry for each turn of the agent."""

    def answer(self, request: Json, content: Sequence[Block]) -> Json:
        """Return an answer as the interface writes it."""

    def events(self, answer: Json) -> Iterator[bytes]:
        """Yield the events of an answer that is streamed."""


def text_of(content: Any) -> str:
    """Return what a message says itself; results of tools are not part of it."""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content or () if isinstance(part.get("text"), str))


def event(value: Json, kind: str | None = None) -> bytes:
    """Return an event of a stream."""
    name = f"event: {kind}\n" if kind else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()


def _texts(content: Sequence[Block]) -> str:
    return "\n".join(block["text"] for block in content if block["type"] == "text")


def _calls(content: Sequence[Block]) -> list[Block]:
    return [block for block in content if block["type"] == "tool_use"]


class Messages:
    """The Messages API of Anthropic, which Claude Code uses."""

    def conversation(self, request: Json) -> list[Said]:
        """Return who said what, in order."""
        who = {"user": USER, "assistant": AGENT}
        return [
            (who.get(message["role"], RESULT), text_of(message["content"]))
            for message in request.get("messages", ())
        ]

    def answer(self, request: Json, content: Sequence[Block]) -> Json:
        """Return an answer as the interface writes it."""
        return {
            "id": f"msg_{len(request.get('messages', []))}",
            "type": "message",
            "role": "assistant",
            "model": request.get("model", "fake"),
            "content": list(content),
            "stop_reason": "tool_use" if _calls(content) else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 10},
        }

    def events(self, answer: Json) -> Iterator[bytes]:
        """Yield the events of an answer that is streamed."""
        yield self._event("message_start", message={**answer, "content": [], "stop_reason": None})
        for index, block in enumerate(answer["content"]):
            if block["type"] == "text":
                empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                given = json.dumps(block["input"])
                empty = {**block, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": given}
            yield self._event("content_block_start", index=index, content_block=empty)
            yield self._event("content_block_delta", index=index, delta=delta)
            yield self._event("content_block_stop", index=index)
        ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        yield self._event("message_delta", delta=ended, usage={"output_tokens": 10})
        yield self._event("message_stop")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, kind)


class ChatCompletions:
    """The Chat Completions API of OpenAI, which opencode uses."""

    def conversation(self, request: Json) -> list[Said]:
        """Return who said what, in order."""
        who = {"user": USER, "assistant": AGENT}
        return [
            (who.get(message["role"], RESULT), text_of(message.get("content")))
            for message in request["messages"]
        ]

    def answer(self, request: Json, content: Sequence[Block]) -> Json:
        """Return an answer as the interface writes it."""
        message: Json = {"role": "assistant", "content": _texts(content) or None}
        calls = [
            {
                "index": index,
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
            }
            for index, block in enumerate(_calls(content))
        ]
        if calls:
            message["tool_calls"] = calls
        reason = "tool_calls" if calls else "stop"
        return {
            "id": f"chatcmpl-{len(request['messages'])}",
            "object": "chat.completion",
            "created": 0,
            "model": request.get("model", "fake"),
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20},
        }

    def events(self, answer: Json) -> Iterator[bytes]:
        """Yield the events of an answer that is streamed."""
        [choice] = answer["choices"]
        chunk = {**answer, "object": "chat.completion.chunk", "usage": None}
        said = {"index": 0, "delta": choice["message"], "finish_reason": None}
        ended = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        yield event({**chunk, "choices": [said]})
        yield event({**chunk, "choices": [ended], "usage": answer["usage"]})
        yield STOP


class Responses:
    """The Responses API of OpenAI, which Codex uses."""

    def conversation(self, request: Json) -> list[Said]:
        """Return who said what, in order; the parts of a turn stand side by side."""
        found: list[Said] = []
        for item in request["input"]:
            one = self._said(item)
            if one[0] != AGENT or not found or found[-1][0] != AGENT:
                found.append(one)
        return found

    def _said(self, item: Json) -> Said:
        kind, role = item.get("type", "message"), item.get("role")
        if kind.endswith("_output"):
            return RESULT, ""
        if kind != "message" or role == "assistant":
            return AGENT, ""
        return (USER, text_of(item["content"])) if role == "user" else (RESULT, "")

    def answer(self, request: Json, content: Sequence[Block]) -> Json:
        """Return an answer as the interface writes it."""
        number = len(request["input"])
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 0,
            "status": "completed",
            "model": request.get("model", "fake"),
            "output": [self._item(block, f"{number}_{at}") for at, block in enumerate(content)],
            "usage": {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20},
        }

    def _item(self, block: Block, place: str) -> Json:
        if block["type"] == "text":
            content = [{"type": "output_text", "text": block["text"], "annotations": []}]
            return {
                "type": "message",
                "id": f"msg_{place}",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        called = {
            "type": "function_call",
            "id": f"fc_{place}",
            "call_id": block["id"],
            "name": block["name"],
            "arguments": json.dumps(block["input"]),
            "status": "completed",
        }
        # Codex names the server of a tool beside the tool.
        return {**called, **{key: block[key] for key in ("namespace",) if key in block}}

    def events(self, answer: Json) -> Iterator[bytes]:
        """Yield the events of an answer that is streamed."""
        begun = {**answer, "status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=begun)
        for index, item in enumerate(answer["output"]):
            yield self._event("response.output_item.added", output_index=index, item=item)
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._event("response.completed", response=answer)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, kind)


class GenerateContent:
    """The API of Gemini."""

    def conversation(self, request: Json) -> list[Said]:
        """Return who said what, in order."""
        return [self._said(content) for content in request.get("contents", ())]

    def _said(self, content: Json) -> Said:
        parts = content.get("parts", [])
        if any("functionResponse" in part for part in parts):
            return RESULT, ""
        return AGENT if content.get("role") == "model" else USER, text_of(parts)

    def answer(self, request: Json, content: Sequence[Block]) -> Json:
        """Return an answer as the interface writes it."""
        parts = [self._part(block) for block in content]
        said = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        used = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
        return {"candidates": [said], "usageMetadata": used, "modelVersion": "fake"}

    def _part(self, block: Block) -> Json:
        if block["type"] == "text":
            return {"text": block["text"]}
        return {"functionCall": {"name": block["name"], "args": block["input"]}}

    def events(self, answer: Json) -> Iterator[bytes]:
        """Yield the events of an answer that is streamed."""
        yield event(answer)


APIS: Mapping[str, Api] = {
    "/messages": Messages(),
    "/chat/completions": ChatCompletions(),
    "/responses": Responses(),
    ":generateContent": GenerateContent(),
    ":streamGenerateContent": GenerateContent(),
}
"""The interfaces, by the ends of their paths."""

COUNTS: Mapping[str, Json] = {
    "/count_tokens": {"input_tokens": 10},
    ":countTokens": {"totalTokens": 10},
}
"""What is answered to questions for the length of a conversation, by the ends of their paths."""
