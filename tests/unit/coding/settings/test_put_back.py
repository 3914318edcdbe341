"""Hooks that an agent deleted come back, unless they were uninstalled or would be in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mulligan.coding.hooks import run_hook
from mulligan.coding.settings.install import AGENTS, Target, install, uninstall
from mulligan.coding.settings.put_back import FILES
from tests.coding_agent import CodingAgent


class Installed(CodingAgent):
    """An agent with hooks in its project, a git repository, and a prompt that was recorded."""

    def __init__(self, home: Path, *, ignored: bool = True, before: str = "") -> None:
        super().__init__(home)
        self.variables |= {"GIT_CONFIG_GLOBAL": os.devnull}
        self.make_store()
        self.git("init", "-q")
        (self.project / "a.txt").write_text("one\n")
        (self.project / ".gitignore").write_text(".claude/\n" if ignored else "!.claude/**\n")
        self.git("add", "a.txt", ".gitignore")
        self.git("commit", "-qm", "one")
        self.target = Target("claude", "project", self.project, self.variables)
        self.file = self.target.file
        if before:
            self.file.parent.mkdir()
            self.file.write_text(before)
        install(self.target, ["/opt/bin/mulligan"])
        self.text = self.file.read_text()
        self.hook("UserPromptSubmit", prompt="clean up")

    def git(self, *words: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *words], cwd=self.project, env=self.variables, check=True)


@pytest.mark.parametrize("event", ["PostToolBatch", "Stop", "UserPromptSubmit"])
def test_a_repository_that_is_newer_than_the_hooks_ignores_them(tmp_path: Path, event: str) -> None:
    agent = CodingAgent(tmp_path)
    agent.make_store()
    target = Target("claude", "project", agent.project, agent.variables)
    install(target, ["/opt/bin/mulligan"])
    agent.hook("UserPromptSubmit", prompt="start a project")
    (agent.project / "a").write_text("1")
    for command in ("init", "add"):
        words = ["git", command, "-A"] if command == "add" else ["git", command]
        subprocess.run(words, cwd=agent.project, check=True)
        agent.hook(event)
    run = ["git", "status", "--porcelain"]
    shown = subprocess.run(run, cwd=agent.project, check=True, capture_output=True, text=True)
    assert shown.stdout == "A  a\n"
    assert not agent.notes()
    exclude = agent.project / ".git" / "info" / "exclude"
    assert "settings.local.json" in exclude.read_text()
    uninstall(target)
    assert "settings.local.json" not in exclude.read_text()


@pytest.mark.parametrize("event", ["PostToolBatch", "SubagentStop", "Stop"])
def test_they_come_back_right_after_the_command_that_deleted_them(
    tmp_path: Path, event: str
) -> None:
    agent = Installed(tmp_path)
    agent.git("clean", "-fdxq")
    assert not agent.file.exists()
    agent.hook(event, agent_id="sub") if event == "SubagentStop" else agent.hook(event)
    assert agent.file.read_text() == agent.text
    assert agent.file.stat().st_mode & 0o777 == 0o600
    assert agent.notes() == ""
    session = agent.session()
    assert session.files.read("@latest", FILES["claude"]).decode() == agent.text


@pytest.mark.parametrize(
    ("name", "prompt", "end"),
    [
        ("codex", "UserPromptSubmit", "PostToolUse"),
        ("gemini", "BeforeAgent", "AfterTool"),
        ("opencode", "UserPromptSubmit", "PostToolUse"),
    ],
)
def test_those_of_other_agents_come_back(tmp_path: Path, name: str, prompt: str, end: str) -> None:
    agent = Installed(tmp_path)
    (agent.project / ".gitignore").write_text(f".{name}/\n")
    target = Target(name, "project", agent.project, agent.variables)
    install(target, ["/opt/bin/mulligan"])
    text = target.file.read_text()
    tool = {"tool_name": "bash", "tool_input": {}, "tool_response": "ok", "tool_use_id": "t1"}
    run_hook(agent.json(prompt, prompt="clean up"), agent.variables, name)
    agent.git("clean", "-fdxq")
    assert not target.file.exists()
    run_hook(agent.json(end, **tool), agent.variables, name)
    assert target.file.read_text() == text
    assert agent.notes() == ""


def test_what_else_was_in_the_file_comes_back(tmp_path: Path) -> None:
    agent = Installed(tmp_path, before='{"permissions": {"allow": ["Bash"]}}')
    agent.git("clean", "-fdxq")
    agent.batch("t1")
    assert "permissions" in agent.file.read_text()


def test_they_come_back_without_git(tmp_path: Path) -> None:
    agent = Installed(tmp_path)
    shutil.rmtree(agent.project / ".git")
    shutil.rmtree(agent.file.parent)
    agent.batch("t1")
    assert agent.file.read_text() == agent.text


@pytest.mark.parametrize("before", ["", "{}"])
def test_hooks_that_were_uninstalled_stay_away(tmp_path: Path, before: str) -> None:
    agent = Installed(tmp_path, before=before)
    uninstall(agent.target)
    agent.file.unlink(missing_ok=True)
    agent.batch("t1")
    assert not agent.file.exists()


def test_a_file_that_git_does_not_ignore_is_left_to_git(tmp_path: Path) -> None:
    agent = Installed(tmp_path, ignored=False)
    agent.git("checkout", "-qb", "with")
    agent.git("add", "-A")
    agent.git("commit", "-qm", "with")
    agent.git("checkout", "-q", "-")
    agent.batch("t1")
    assert not agent.file.exists()
    agent.git("checkout", "-q", "with")


def test_a_stash_that_has_the_file_can_be_popped(tmp_path: Path) -> None:
    agent = Installed(tmp_path)
    agent.git("stash", "-q", "--all")
    agent.batch("t1")
    assert not agent.file.exists()
    agent.git("stash", "pop", "-q")
    assert agent.file.read_text() == agent.text


def test_a_directory_that_was_emptied_stays_empty(tmp_path: Path) -> None:
    agent = Installed(tmp_path)
    for one in agent.project.iterdir():
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    agent.batch("t1")
    assert not agent.file.parent.exists()
    shutil.rmtree(agent.project)
    agent.batch("t2")
    assert not agent.project.exists()


def test_a_file_where_the_directory_was_disturbs_nothing(tmp_path: Path) -> None:
    agent = Installed(tmp_path)
    shutil.rmtree(agent.file.parent)
    agent.file.parent.touch()
    (agent.project / "b.txt").touch()
    agent.batch("t1")
    assert agent.session().files.read("@latest", "b.txt") == b""


def test_the_files_are_those_that_are_installed(tmp_path: Path) -> None:
    found = {name: module.project_file(tmp_path) for name, module in AGENTS.items()}
    assert found == {name: tmp_path / file for name, file in FILES.items()}


def test_a_file_that_cannot_be_read_costs_no_event(tmp_path: Path) -> None:
    agent = Installed(tmp_path)
    agent.file.write_bytes(b"\xff")
    agent.batch("t1")
    before = len(agent.session().checkpoints())
    agent.file.unlink()
    (agent.project / "a.txt").write_text("two\n")
    agent.batch("t2")
    assert not agent.file.exists()
    assert len(agent.session().checkpoints()) == before + 1
    assert agent.notes() == ""
