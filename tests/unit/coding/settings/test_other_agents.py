"""Codex, Gemini CLI and opencode: what they send, what they are told, and their settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.coding.hook_input import EVENTS, HookKind, ToolUse, parse
from mulligan.coding.hooks import run_hook
from mulligan.coding.settings import opencode_settings
from mulligan.coding.settings.install import AGENTS, Target, install, settings_module, uninstall
from mulligan.coding.settings.settings_file import SettingsFile
from mulligan.errors import InvalidSettings
from tests.coding_agent import CodingAgent

COMMAND = ["/opt/my tools/mulligan"]
OTHERS = ("codex", "gemini", "opencode")

ENDS = {"codex": "PostToolUse", "gemini": "AfterTool", "opencode": "PostToolUse"}
STARTS = {"codex": "PreToolUse", "gemini": "BeforeTool", "opencode": "PreToolUse"}
PROMPTS = {"codex": "UserPromptSubmit", "gemini": "BeforeAgent", "opencode": "UserPromptSubmit"}


def hook(event: str, **fields: Any) -> bytes:
    base = {"session_id": "s-1", "cwd": "/p", "hook_event_name": event}
    return json.dumps({**base, **fields}).encode()


@pytest.mark.parametrize("agent", OTHERS)
def test_each_call_is_a_batch_of_its_own(agent: str) -> None:
    given = hook(ENDS[agent], tool_name="Bash", tool_input={"command": "ls"}, tool_response="a")
    event = parse(given, agent)
    assert event.kind is HookKind.BATCH_END
    assert event.calls == (ToolUse("Bash", {"command": "ls"}, response="a"),)


def test_a_turn_of_codex_is_its_prompt() -> None:
    assert parse(hook("UserPromptSubmit", prompt="go", turn_id="t-9"), "codex").prompt_id == "t-9"


def test_a_compression_that_may_not_happen_is_not_recorded() -> None:
    assert "PreCompress" not in EVENTS["gemini"]


@pytest.mark.parametrize("agent", OTHERS)
def test_a_turn_is_recorded(agent: str, tmp_path: Path) -> None:
    project = CodingAgent(tmp_path)
    place = project.make_store()

    def say(event: str, **fields: Any) -> bytes:
        data = json.loads(hook(event, **fields))
        given = json.dumps({**data, "cwd": str(project.project)}).encode()
        return run_hook(given, project.variables, agent)

    say(PROMPTS[agent], prompt="make a file")
    call = {"tool_name": "write", "tool_input": {"file_path": "a"}}
    assert say(STARTS[agent], **call) == b""
    (project.project / "a").write_text("made")
    say(ENDS[agent], **call, tool_response="done")
    assert project.notes() == ""
    with mulligan.open(place, create=False) as store:
        session = store.session(f"{agent}-s-1", create=False)
        assert [c.kind for c in session.checkpoints()] == ["prompt", "tools"]
        assert session.files.read("@latest", "a") == b"made"
        assert [c.status for c in session.tools.list()] == ["returned"]


@pytest.mark.parametrize("agent", OTHERS)
@pytest.mark.parametrize("approval", ["ask", "deny"])
def test_a_call_that_needs_approval_is_denied(agent: str, approval: str, tmp_path: Path) -> None:
    project = CodingAgent(tmp_path)
    rules = f'[[effects.rules]]\nname = "Bash(git push*)"\napproval = "{approval}"\n'
    (project.make_store() / "config.toml").write_text(rules)
    data = json.loads(hook(STARTS[agent], tool_name="Bash", tool_input={"command": "git push"}))
    given = json.dumps({**data, "cwd": str(project.project)}).encode()
    reply = json.loads(run_hook(given, project.variables, agent))
    if agent == "gemini":
        assert reply["decision"] == "deny"
    else:
        assert reply["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert ("a person has to do it" in json.dumps(reply)) == (approval == "ask")


def target(agent: str, home: Path) -> Target:
    variables = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    return Target(agent, "project", home / "project", variables)


@pytest.mark.parametrize("agent", OTHERS)
def test_hooks_are_installed_once_and_removed_without_a_trace(agent: str, tmp_path: Path) -> None:
    place = target(agent, tmp_path)
    assert install(place, COMMAND).is_changed
    assert not install(place, COMMAND).is_changed
    module = settings_module(agent)
    file = getattr(module, "FILE", SettingsFile)(place.file)
    words = [*COMMAND, "hook", agent]
    assert module.installed(file.settings) == dict.fromkeys(EVENTS[agent], words)
    assert uninstall(place).is_changed
    file = getattr(module, "FILE", SettingsFile)(place.file)
    assert module.installed(file.settings) == {}


def test_settings_of_gemini_turn_hooks_on_and_keep_the_rest(tmp_path: Path) -> None:
    place = target("gemini", tmp_path)
    place.file.parent.mkdir(parents=True)
    place.file.write_text('{"tools": {"sandbox": false}, "theme": "x"}')
    install(place, COMMAND)
    found = json.loads(place.file.read_text())
    assert found["tools"] == {"sandbox": False, "enableHooks": True}
    assert found["hooksConfig"] == {"enabled": True}
    assert found["theme"] == "x"
    assert found["hooks"]["BeforeTool"][0]["hooks"][0]["timeout"] == 30_000


def test_a_plugin_of_others_is_not_replaced(tmp_path: Path) -> None:
    place = target("opencode", tmp_path)
    place.file.parent.mkdir(parents=True)
    place.file.write_text("export const Mine = 1\n")
    for change in (lambda: install(place, COMMAND), lambda: uninstall(place)):
        with pytest.raises(InvalidSettings, match="belongs to another program"):
            change()
    assert place.file.read_text() == "export const Mine = 1\n"


def test_an_uninstalled_plugin_is_gone_and_kept_as_a_backup(tmp_path: Path) -> None:
    place = target("opencode", tmp_path)
    install(place, COMMAND)
    done = uninstall(place)
    assert not place.file.exists()
    assert done.backup is not None
    assert opencode_settings.installed({"text": done.backup.read_text()})


def test_every_agent_whose_hooks_are_known_can_be_installed() -> None:
    assert set(AGENTS) == set(EVENTS)
