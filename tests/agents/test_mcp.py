"""The MCP server in the real Claude Code and the real Codex."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from tests.agents.conftest import ClaudeCode
from tests.agents.limits import AGENTS
from tests.agents.model_apis import Api, Block, Json
from tests.agents.model_server import ModelServer, text, tool
from tests.agents.other_agents import Codex
from tests.children import end_processes_in

PLAN = "PLAN-OF-THE-LAST-ANSWER"
ALLOWED = "mcp__mulligan Bash"


class PlanningModel(ModelServer):
    """A model that passes the plan which a tool returned on to the next tool."""

    def answer(self, request: Json, api: Api) -> list[Block]:
        """Return the answer of the script, with the newest plan in it."""
        said = json.dumps(request.get("messages", []))
        plans = re.findall(r'plan_id\\*": ?\\*"([0-9a-f]+)', said)
        blocks = json.dumps(super().answer(request, api))
        found: list[Block] = json.loads(blocks.replace(PLAN, plans[-1] if plans else "none"))
        return found


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A model that can plan."""
    with PlanningModel() as server:
        yield server


def results(model: ModelServer) -> dict[str, str]:
    """Return what the calls of tools returned, by their ids, as the model was told."""
    found = {}
    for message in model.requests[-1]["messages"]:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part.get("type") == "tool_result":
                content = part.get("content")
                said = content if isinstance(content, str) else json.dumps(content)
                found[part["tool_use_id"]] = said
    return found


@pytest.mark.parametrize("hooks", [False, True], ids=["alone", "with hooks"])
def test_claude_code_checkpoints_plans_restores_and_undoes(
    claude: ClaudeCode, model: ModelServer, hooks: bool
) -> None:
    """With hooks, each call of these tools is itself recorded, before and after it."""
    claude.add_server()
    claude.mulligan("init")
    if hooks:
        claude.install()
    file = claude.project / "a.txt"
    file.write_text("one\n")
    turns = [
        [tool("mcp__mulligan__checkpoint", label="start", note="before")],
        [tool("Bash", command="echo two > a.txt", description="edit")],
        [tool("mcp__mulligan__restore", plan_id="0123456789abcdef")],
        [tool("mcp__mulligan__plan_restore", point="start")],
        [tool("mcp__mulligan__restore", plan_id=PLAN)],
        [tool("mcp__mulligan__read_file", path="a.txt", point="start")],
        [tool("Bash", command="cat a.txt", description="look")],
        [tool("mcp__mulligan__undo")],
        [text("all done")],
    ]
    answer = claude.run(model.prompt("mcp", *turns), "--allowedTools", ALLOWED)
    assert "all done" in answer
    said = results(model)
    assert "PlanOutdated" in said["toolu_mcp_2_0"]
    assert "restored_files" in said["toolu_mcp_4_0"], said
    assert "one" in said["toolu_mcp_5_0"]
    assert said["toolu_mcp_6_0"] == "one"
    assert file.read_text() == "two\n"
    assert claude.notes() == ""
    with claude.store() as store:
        name = claude.session().name if hooks else "main"
        session = store.session(name, create=False)
        assert session.checkpoints.at("start").actor == "mcp"


def test_claude_code_reads_resources_and_instructions(
    claude: ClaudeCode, model: ModelServer
) -> None:
    claude.add_server()
    claude.mulligan("init")
    (claude.project / "a.txt").write_text("one\n")
    claude.mulligan("checkpoint", "--label", "start")
    uri = "mulligan://main/files/start/a.txt"
    turns = [
        [tool("ListMcpResourcesTool", server="mulligan")],
        [tool("ReadMcpResourceTool", server="mulligan", uri=uri)],
        [text("all done")],
    ]
    assert "all done" in claude.run(model.prompt("resources", *turns))
    said = results(model)
    assert "mulligan://main/checkpoints/" in said["toolu_resources_0_0"]
    assert "one" in said["toolu_resources_1_0"]
    assert "one timeline" in json.dumps(model.requests), "the instructions reach the model"


def outputs(model: ModelServer) -> list[str]:
    """Return what the calls of Codex returned, as the model was told."""
    items = model.requests[-1]["input"]
    return [json.dumps(one["output"]) for one in items if one["type"] == "function_call_output"]


def ours(name: str, **given: Any) -> Block:
    """Return a call of a tool of our server, as Codex names it."""
    return {**tool(name, **given), "namespace": "mcp__mulligan"}


@pytest.fixture
def codex(tmp_path: Path, model: ModelServer) -> Iterator[Codex]:
    """Codex with the server installed as its guide says."""
    place = os.environ.get(AGENTS)
    if not place:
        pytest.skip(f"{AGENTS} is not set: `make test-agents` installs and runs the agents")
    if not (Path(place) / "node_modules" / ".bin" / "codex").exists():
        pytest.skip(f"codex is NOT INSTALLED in {place}, and was not tested")
    agent = Codex(Path(place).absolute(), tmp_path / "home", model)
    server = str(Path(sys.executable).with_name("mulligan"))
    subprocess.run(
        [str(agent.program), "mcp", "add", "mulligan", "--", server, "mcp"],
        cwd=agent.project,
        env=agent.variables,
        check=True,
        capture_output=True,
    )
    yield agent
    end_processes_in(tmp_path)


def test_codex_takes_a_checkpoint_and_reads_it(codex: Codex, model: ModelServer) -> None:
    (codex.project / "a.txt").write_text("one\n")
    calls = [
        ours("checkpoint", label="start"),
        ours("read_file", path="a.txt", point="start"),
        ours("restore", plan_id="0123456789abcdef"),
    ]
    assert "all done" in codex.run("do it", *[[call] for call in calls], [text("all done")])
    taken, read, refused = outputs(model)
    assert "checkpoint_id" in taken
    assert "one" in read
    assert "PlanOutdated" in refused
    with mulligan.open(codex.project, create=False) as store:
        found = [s for s in store.sessions() if "start" in s.checkpoints.labels()]
        assert [s.checkpoints.at("start").actor for s in found] == ["mcp"]
