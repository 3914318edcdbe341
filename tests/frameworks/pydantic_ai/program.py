"""A program that uses pydantic-ai; it is killed in a tool, and started again unchanged."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from mulligan.errors import EffectInDoubt
from mulligan.integrations.pydantic_ai import MulliganConversationStore


@dataclass
class Receipt:
    """A result of a class of its own."""

    number: int


def note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


def scripted(log: Path) -> FunctionModel:
    """Ask for one charge, then for another one and a wait, then say that it is done."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        outputs = [part for part in parts if isinstance(part, ToolReturnPart)]
        questions = sum(isinstance(part, UserPromptPart) for part in parts)
        note(log, f"model {len(outputs)} of {questions} questions")
        if not outputs:
            return ModelResponse(parts=[ToolCallPart("charge", {"number": 1})])
        if len(outputs) == 1:
            calls = [ToolCallPart("charge", {"number": 2}), ToolCallPart("wait", {})]
            return ModelResponse(parts=calls)
        results = [str(part.content) for part in outputs]
        return ModelResponse(parts=[TextPart(f"done: {results}")])

    return FunctionModel(answer)


async def main(directory: Path, how: str) -> None:
    log = directory / "log.txt"
    store = MulliganConversationStore(directory / "store")
    agent = Agent(scripted(log))

    @agent.tool_plain
    def charge(number: int) -> Receipt:
        note(log, f"charge {number}")
        return Receipt(number)

    @agent.tool_plain
    async def wait() -> str:
        note(log, "wait")
        while not is_charged(store):
            await asyncio.sleep(0.01)
        (directory / "started").touch()
        while not (directory / "go").exists():
            await asyncio.sleep(0.01)
        return "waited"

    once = ["wait"] if how == "once" else []
    try:
        result = await store.run(agent, "Charge, and wait.", conversation_id="c", at_most_once=once)
        print(result.output)
    except EffectInDoubt as error:
        print(error)


def is_charged(store: MulliganConversationStore) -> bool:
    calls: Any = store.session("c").tools.list(name="charge")
    return [call.status for call in calls].count("returned") == 2


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
