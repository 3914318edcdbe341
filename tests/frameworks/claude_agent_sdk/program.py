"""A program that uses the Claude Agent SDK; it is killed, and started again unchanged."""

from __future__ import annotations

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from mulligan.integrations.claude_agent_sdk import MulliganSessionStore

PROMPT = "Write one, wait, write two."


async def main(store: str, directory: str) -> None:
    sessions = MulliganSessionStore(store)
    options = ClaudeAgentOptions(cwd=directory, allowed_tools=["Bash"])
    prompt, options = await sessions.resume(PROMPT, options)
    async for message in query(prompt=prompt, options=options):
        if isinstance(message, ResultMessage):
            print(f"{message.session_id} {message.result}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
