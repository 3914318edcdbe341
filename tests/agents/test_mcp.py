"""The MCP server in the real Claude Code and the real Codex."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import mulligan
from tests.agents.conftest import ClaudeCode
from tests.agents.limits import AGENTS
from tests.agents.model_server import Block, ModelServer, text, tool
from tests.agents.other_agents import Codex
from tests.children import end_processes_in

PLAN = "PLAN-OF-THE-LAST-ANSWER"
ALLOWED = "mcp__mulligan Bash"


class PlanningModel(ModelServer):
    """A model that passes the plan which a tool returned on to the next tool."""

    def answer(self, request: dict[str, Any]) -> list[Block]:
        """Return the answer of the script, with the newest plan in it."""
        said = json.dumps(request.get("messages", []))
        plans = re.findall(r'plan_id\\*": ?\\*"([0-9a-f]+)', said)
        blocks = json.dumps(super().answer(request))
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


class ResponsesModel:
    """A model for Codex, which names the server of a tool beside the tool."""

    def __init__(self) -> None:
        self.turns: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                data = b"".join(model.events(request))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.send_error(404)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def events(self, request: dict[str, Any]) -> Iterator[bytes]:
        """Yield the events of the answer that is due: one for each call that has returned."""
        self.requests.append(request)
        kinds = [item.get("type") for item in request["input"]]
        done = kinds.count("function_call_output")
        item = self._message() if done >= len(self.turns) else self._call(done)
        response = {"id": f"resp_{done}", "object": "response", "output": [item]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        yield self._event("response.created", response=response)
        yield self._event("response.output_item.done", output_index=0, item=item)
        completed = {**response, "status": "completed", "usage": usage}
        yield self._event("response.completed", response=completed)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def outputs(self) -> list[str]:
        """Return what the calls returned."""
        last = self.requests[-1]["input"]
        found = [item for item in last if item.get("type") == "function_call_output"]
        return [json.dumps(item["output"]) for item in found]

    def _call(self, turn: int) -> dict[str, Any]:
        called = self.turns[turn]
        return {
            "type": "function_call",
            "id": f"fc_{turn}",
            "call_id": f"call_{turn}",
            "namespace": "mcp__mulligan",
            "name": called["tool"],
            "arguments": json.dumps(called["input"]),
        }

    def _message(self) -> dict[str, Any]:
        content = [{"type": "output_text", "text": "all done"}]
        return {"type": "message", "id": "msg", "role": "assistant", "content": content}

    def _event(self, kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[tuple[Codex, ResponsesModel]]:
    """Codex with the server installed as its guide says, and a model for it."""
    place = os.environ.get(AGENTS)
    if not place:
        pytest.skip(f"{AGENTS} is not set: `make test-agents` installs and runs the agents")
    if not (Path(place) / "node_modules" / ".bin" / "codex").exists():
        pytest.skip(f"codex is NOT INSTALLED in {place}, and was not tested")
    model = ResponsesModel()
    agent = Codex(Path(place).absolute(), tmp_path / "home", model)
    server = str(Path(sys.executable).with_name("mulligan"))
    subprocess.run(
        [str(agent.program), "mcp", "add", "mulligan", "--", server, "mcp"],
        cwd=agent.project,
        env=agent.variables,
        check=True,
        capture_output=True,
    )
    yield agent, model
    model.close()
    end_processes_in(tmp_path)


def test_codex_takes_a_checkpoint_and_reads_it(codex: tuple[Codex, ResponsesModel]) -> None:
    agent, model = codex
    (agent.project / "a.txt").write_text("one\n")
    model.turns = [
        {"tool": "checkpoint", "input": {"label": "start"}},
        {"tool": "read_file", "input": {"path": "a.txt", "point": "start"}},
        {"tool": "restore", "input": {"plan_id": "0123456789abcdef"}},
    ]
    assert "all done" in agent.run("do it")
    taken, read, refused = model.outputs()
    assert "checkpoint_id" in taken
    assert "one" in read
    assert "PlanOutdated" in refused
    with mulligan.open(agent.project, create=False) as store:
        found = [s for s in store.sessions() if "start" in s.checkpoints.labels()]
        assert [s.checkpoints.at("start").actor for s in found] == ["mcp"]
