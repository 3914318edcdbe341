"""Programs that use smolagents; they are killed in a tool, and started again unchanged."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from smolagents import ChatMessage, CodeAgent, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import LogLevel

from mulligan.integrations.smolagents import MulliganSteps


def note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


class ScriptModel(Model):
    """Answers by how many steps it sees: of tools, or of code."""

    def __init__(self, log: Path, answers: list[Any]) -> None:
        super().__init__(model_id="script")
        self.log, self.answers = log, answers

    def generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatMessage:
        said = [message for message in messages if message.role != MessageRole.SYSTEM]
        text = "".join(str(message.content) for message in said)
        tasks, seen = text.count("New task:"), text.count("Observation:")
        note(self.log, f"model {seen} of {tasks} tasks")
        answer = self.answers[seen]
        if isinstance(answer, str):
            return ChatMessage(role=MessageRole.ASSISTANT, content=answer)
        function = ChatMessageToolCallFunction(name=answer[0], arguments=answer[1])
        call = ChatMessageToolCall(function=function, id=f"call_{seen}", type="function")
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])


TOOLS = [("charge", {"number": 1}), ("wait", {}), ("final_answer", {"answer": "done"})]

CODE = [
    "Thought: pay\n<code>\npaid = [charge(1)]\nrate = lambda x: x\n</code>",
    "Thought: wait\n<code>\nwait()\npaid.append('waited')\n</code>",
    "Thought: done\n<code>\nfinal_answer(str(paid))\n</code>",
]


def main(directory: Path, how: str) -> None:
    log = directory / "log.txt"

    @tool
    def charge(number: int) -> str:
        """Charge a number.

        Args:
            number: what to charge
        """
        note(log, f"charge {number}")
        return f"charged {number}"

    @tool
    def wait() -> str:
        """Wait."""
        note(log, "wait")
        (directory / "started").touch()
        while not (directory / "go").exists():
            time.sleep(0.01)
        return "waited"

    make: Any = CodeAgent if how == "code" else ToolCallingAgent
    answers: Any = CODE if how == "code" else TOOLS
    agent = make(
        tools=[charge, wait], model=ScriptModel(log, answers), verbosity_level=LogLevel.OFF
    )
    steps = MulliganSteps("s", directory / "store")
    print(steps.run(agent, "Charge, and wait."))
    print([getattr(step, "step_number", "task") for step in steps.steps()], steps.lost)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
