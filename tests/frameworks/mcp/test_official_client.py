"""The MCP server with the client of the official SDK, which checks every answer by its schema."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import mulligan as library
from tests.frameworks.needed import needed

mcp = needed("mcp")

WITH_HANDSHAKE, PER_REQUEST = "2025-11-25", "2026-07-28"
MODES = {"legacy": WITH_HANDSHAKE, "auto": PER_REQUEST, PER_REQUEST: PER_REQUEST}
"""How the client begins, and the revision that both agree on then."""

Use = Callable[[Any], Awaitable[None]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a file and a store."""
    (tmp_path / "a.txt").write_text("one\n")
    with library.open(tmp_path) as store:
        store.session("main")
    return tmp_path


def connected(project: Path, mode: str, use: Use) -> None:
    """Start a server as a client does, and use it."""
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "mulligan", "mcp"], cwd=str(project)
    )

    async def main() -> None:
        async with mcp.Client(server, mode=mode) as client:
            await use(client)

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_every_tool_answers_as_its_schema_says(project: Path, mode: str) -> None:
    async def use(client: Any) -> None:
        assert client.session.protocol_version == MODES[mode]
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert len(tools) == 13
        assert tools["restore"].annotations.destructive_hint
        assert tools["log"].annotations.read_only_hint

        async def call(name: str, **given: Any) -> dict[str, Any]:
            # The client raises unless the result conforms to the schema of the tool.
            done = await client.call_tool(name, given)
            assert not done.is_error, done.content
            found: dict[str, Any] = done.structured_content
            called.add(name)
            return found

        called: set[str] = set()
        taken = await call("checkpoint", label="start", note="before")
        await call("status")
        await call("mark", verdict="good", note="it works")
        assert (await call("log"))["entries"][0]["checkpoint_id"] == taken["checkpoint_id"]
        (project / "a.txt").write_text("two\n")
        assert (await call("diff", before="start"))["files"][0]["path"] == "a.txt"
        plan = await call("plan_restore", point="start")
        await call("restore", plan_id=plan["plan_id"])
        assert (project / "a.txt").read_text() == "one\n"
        await call("undo")
        assert (await call("read_file", path="a.txt", point="start"))["content"] == "one\n"
        await call("fork", point="start")
        await call("tasks")
        await call("effects")
        await call("search_history", text="before")
        await call("search_history", path="a.txt")
        assert called == set(tools)

    connected(project, mode, use)


@pytest.mark.parametrize("mode", MODES)
def test_failures_are_tool_errors_and_resources_are_read(project: Path, mode: str) -> None:
    async def use(client: Any) -> None:
        failed = await client.call_tool("restore", {"plan_id": "none"})
        assert failed.is_error
        assert "PlanOutdated" in failed.content[0].text
        with pytest.raises(mcp.MCPError):
            await client.call_tool("hook_of_nothing", {})
        await client.call_tool("checkpoint", {"label": "start"})
        (listed,) = (await client.list_resources()).resources
        assert "start" in (await client.read_resource(str(listed.uri))).contents[0].text
        templates = (await client.list_resource_templates()).resource_templates
        assert len(templates) == 2
        file = await client.read_resource("mulligan://main/files/start/a.txt")
        assert file.contents[0].text == "one\n"
        with pytest.raises(mcp.MCPError):
            await client.read_resource("mulligan://main/files/start/none")

    connected(project, mode, use)
