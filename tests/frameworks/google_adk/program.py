"""A program that uses ADK; it is killed in a tool, and started again unchanged."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.genai import types

from mulligan.integrations.google_adk import MulliganPlugin, MulliganSessionService

WHO = {"app_name": "app", "user_id": "u", "session_id": "s"}


class ScriptModel(BaseLlm):
    """Asks for one charge, then for another one and a wait, then says that it is done."""

    log: Path

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for content in llm_request.contents for part in content.parts or []]
        outputs = sum(part.function_response is not None for part in parts)
        questions = sum(content.role == "user" and bool(content.parts) and bool(
            content.parts[0].text) for content in llm_request.contents)  # fmt: skip
        note(self.log, f"model {outputs} of {questions} questions")
        if outputs == 0:
            answer = [types.Part.from_function_call(name="charge", args={"number": 1})]
        elif outputs == 1:
            answer = [
                types.Part.from_function_call(name="charge", args={"number": 2}),
                types.Part.from_function_call(name="wait", args={}),
            ]
        else:
            answer = [types.Part(text="done")]
        yield LlmResponse(content=types.Content(role="model", parts=answer))


def note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


async def main(directory: Path, how: str) -> None:
    log = directory / "log.txt"
    service = MulliganSessionService(directory / "store")

    async def charge(number: int) -> dict[str, Any]:
        """Charge a number."""
        note(log, f"charge {number}")
        return {"charged": number}

    async def wait() -> dict[str, Any]:
        """Wait."""
        note(log, "wait")
        while "durable" in how and not is_charged(service):
            await asyncio.sleep(0.01)
        (directory / "started").touch()
        while not (directory / "go").exists():
            await asyncio.sleep(0.01)
        return {"waited": True}

    model = ScriptModel(model="script", log=log)
    app = App(
        name="app",
        root_agent=LlmAgent(name="payer", model=model, tools=[charge, wait]),
        plugins=[MulliganPlugin(service)] if "durable" in how else [],
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    runner = Runner(app=app, session_service=service)
    if await service.get_session(**WHO) is None:
        await service.create_session(**WHO)
    message = types.Content(role="user", parts=[types.Part(text="Charge, and wait.")])
    given = await service.resume_input("app", "u", "s", message)
    async for event in runner.run_async(user_id="u", session_id="s", **given):
        if event.is_final_response() and event.content:
            print(event.content.parts[0].text)


def is_charged(service: MulliganSessionService) -> bool:
    session = service.session("app", "u", "s")
    assert session is not None
    calls = session.tools.list(name="charge")
    return [call.status for call in calls].count("returned") == 2


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
