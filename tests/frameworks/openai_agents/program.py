"""A program that uses the OpenAI Agents SDK; it is killed in a tool, and started again unchanged.

Its model is a function of the conversation, as a real one is. Everything that happens outside is
a line of ``log.txt``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, UserError, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from mulligan.errors import EffectInDoubt
from mulligan.integrations.openai_agents import MulliganSession

QUESTION = "Charge one, then charge two and wait."


class ScriptModel(Model):
    """Asks for one charge, then for another one and a wait, then says that it is done."""

    def __init__(self, log: Path) -> None:
        self._log = log

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return ModelResponse(output=self._answer(input), usage=Usage(), response_id=None)

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        scripted = ScriptedModel([self._answer(input)])
        async for event in scripted.stream_response(system_instructions, input, *args, **kwargs):
            yield event

    def _answer(self, input: Any) -> list[Any]:
        items = [] if isinstance(input, str) else input
        questions = sum(isinstance(i, dict) and i.get("role") == "user" for i in items)
        outputs = sum(i.get("type") == "function_call_output" for i in items)
        note(self._log, f"model {outputs} of {questions} questions")
        if outputs == 0:
            return [function_call("charge", {"number": 1}, call_id="call_0")]
        if outputs == 1:
            return [
                function_call("charge", {"number": 2}, call_id="call_1"),
                function_call("wait", {}, call_id="call_2"),
            ]
        return [assistant_message("done")]


class BossModel(ScriptModel):
    """Asks another agent to pay, then says that it is done."""

    def _answer(self, input: Any) -> list[Any]:
        outputs = sum(i.get("type") == "function_call_output" for i in input)
        note(self._log, f"boss {outputs}")
        if outputs == 0:
            return [function_call("pay", {"input": QUESTION}, call_id="call_9")]
        return [assistant_message("paid")]


def note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


async def main(directory: Path, how: str) -> None:
    log = directory / "log.txt"
    session = MulliganSession("s", directory / "store")

    @function_tool
    def charge(number: int) -> str:
        note(log, f"charge {number}")
        return f"charged {number}"

    @function_tool(failure_error_function=None)
    async def wait() -> str:
        note(log, "wait")
        while "durable" in how and not is_charged(session):
            await asyncio.sleep(0.01)
        (directory / "started").touch()
        while not (directory / "go").exists():
            await asyncio.sleep(0.01)
        return "waited"

    agent = Agent(name="payer", model=ScriptModel(log), tools=[charge, wait])
    if "durable" in how:
        agent = session.durable(agent, at_most_once=["wait"] if "once" in how else [])
    if "nested" in how:
        pay = agent.as_tool("pay", "Pays.", failure_error_function=None)
        boss = Agent(name="boss", model=BossModel(log), tools=[pay])
        agent = session.durable(boss)
    given = await session.resume_input(QUESTION)
    try:
        if "stream" in how:
            streamed = Runner.run_streamed(agent, given, session=session)
            async for _ in streamed.stream_events():
                pass
            print(streamed.final_output)
        else:
            print((await Runner.run(agent, given, session=session)).final_output)
    except UserError as error:
        print(error.__cause__ if isinstance(error.__cause__, EffectInDoubt) else repr(error))


def is_charged(session: MulliganSession) -> bool:
    calls = session.timeline.tools.list(name="charge")
    return [call.status for call in calls].count("returned") == 2


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
