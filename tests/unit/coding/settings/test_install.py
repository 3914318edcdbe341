"""Hooks are merged into settings that belong to others, and taken out without a trace."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mulligan.coding.hook_input import CLAUDE_EVENTS
from mulligan.coding.mcp_input import EVENTS
from mulligan.coding.settings import claude_settings, settings_file
from mulligan.coding.settings.install import (
    AGENTS,
    OF_ONE_USER,
    Installation,
    Scope,
    Target,
    install,
    uninstall,
)
from mulligan.coding.settings.settings_file import SettingsFile
from mulligan.errors import InvalidSettings
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import fail_at

COMMAND = ["/opt/bin/mulligan"]
OTHER: dict[str, Any] = {"hooks": [{"type": "command", "command": "lint"}], "matcher": "Write"}


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """The settings of a project."""
    return made(tmp_path, "project")


def made(home: Path, scope: Scope, agent: str = "claude") -> Target:
    variables = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    return Target(agent, scope, home / "project", variables)


def git(directory: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=directory, capture_output=True, check=True, text=True
    )
    return done.stdout


def write(target: Target, text: str) -> Path:
    target.file.parent.mkdir(parents=True, exist_ok=True)
    target.file.write_text(text)
    return target.file


def test_every_event_gets_a_hook(target: Target) -> None:
    done = install(target, COMMAND)
    settings = json.loads(target.file.read_text())
    assert done == Installation("claude", "project", target.file, done.diff, True, None)
    assert list(settings["hooks"]) == list(CLAUDE_EVENTS)
    (entry,) = settings["hooks"]["PreToolUse"][0]["hooks"]
    assert (entry["command"], entry["args"]) == ("/opt/bin/mulligan", ["hook", "claude"])
    assert target.file.stat().st_mode & 0o777 == 0o600
    assert claude_settings.installed(settings)["Stop"] == ["/opt/bin/mulligan", "hook", "claude"]


@pytest.mark.parametrize("agent", OF_ONE_USER)
def test_git_ignores_hooks_that_name_a_path_of_one_user(tmp_path: Path, agent: str) -> None:
    target = made(tmp_path, "project", agent)
    target = msgspec.structs.replace(target, project=tmp_path / "project" / "a b" / "[id]")
    target.project.mkdir(parents=True)
    git(tmp_path / "project", "init", "-q")
    for _ in range(2):
        install(target, COMMAND)
        assert target.file.is_file()
        assert git(tmp_path / "project", "status", "--porcelain", "-uall") == ""


@pytest.mark.parametrize("agent", OF_ONE_USER)
@pytest.mark.parametrize("before", ["# a comment\n", "*.log", ""])
def test_the_line_for_git_goes_with_the_hooks(tmp_path: Path, agent: str, before: str) -> None:
    target = made(tmp_path, "project", agent)
    target.project.mkdir()
    git(target.project, "init", "-q")
    exclude = target.project / ".git/info/exclude"
    exclude.write_text(before)
    install(target, COMMAND)
    install(target, COMMAND)
    assert exclude.read_text() != before
    uninstall(target, dry_run=True)
    assert exclude.read_text() != before
    uninstall(target)
    assert exclude.read_text() == before
    # A line that a person added behind ours stays, and so does one that was there before.
    install(target, COMMAND)
    line = exclude.read_text().splitlines()[-1]
    with exclude.open("a") as file:
        file.write("*.tmp\n")
    uninstall(target)
    assert exclude.read_text().splitlines() == [*before.splitlines(), "*.tmp"]
    exclude.write_text(f"{line}\n")
    install(target, COMMAND)
    uninstall(target)
    assert exclude.read_text() == f"{line}\n"


@pytest.mark.parametrize("between", ["killed", "deleted", "newer"])
def test_the_line_for_git_goes_after_a_second_installation(target: Target, between: str) -> None:
    """After one that was cut off, after `git clean -fdx`, or in a repository made in between."""
    target.project.mkdir()
    if between == "newer":
        install(target, COMMAND)
    git(target.project, "init", "-q")
    exclude = target.project / ".git/info/exclude"
    before = exclude.read_text()
    if between == "killed":
        with pytest.raises(KeyboardInterrupt):
            install(
                target, COMMAND, failpoint=fail_at(Failpoint.SETTINGS_NOTED, KeyboardInterrupt())
            )
    if between == "deleted":
        install(target, COMMAND)
        target.file.unlink()
    install(target, COMMAND)
    assert exclude.read_text() != before
    uninstall(target)
    assert exclude.read_text() == before


def test_the_line_for_git_stays_while_another_worktree_may_need_it(target: Target) -> None:
    target.project.mkdir()
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    git(target.project, "init", "-q")
    git(target.project, *identity, "commit", "-q", "--allow-empty", "-m", "first")
    git(target.project, "worktree", "add", "-q", "../beside")
    beside = msgspec.structs.replace(target, project=target.project.parent / "beside")
    install(target, COMMAND)
    install(beside, COMMAND)
    uninstall(target)
    assert git(beside.project, "status", "--porcelain", "-uall") == ""


def test_settings_that_git_has_stay_in_git(target: Target) -> None:
    write(target, "{}")
    git(target.project, "init", "-q")
    git(target.project, "add", "-A")
    install(target, COMMAND)
    assert git(target.project, "status", "--porcelain").split() == [
        "AM",
        ".claude/settings.local.json",
    ]


def test_the_hooks_of_a_user_make_stores(tmp_path: Path) -> None:
    target = made(tmp_path, "user")
    install(target, COMMAND)
    assert target.file == tmp_path / ".claude" / "settings.json"
    assert '"--create"' in target.file.read_text()


def test_what_others_wrote_stays_in_its_order(target: Target) -> None:
    settings = {"z": 1.5, "hooks": {"Stop": [OTHER], "Mine": []}, "model": "ö"}
    write(target, json.dumps(settings, indent=4))
    install(target, COMMAND)
    found = json.loads(target.file.read_text())
    assert list(found) == ["z", "hooks", "model"]
    assert (found["z"], found["model"], found["hooks"]["Mine"]) == (1.5, "ö", [])
    assert found["hooks"]["Stop"][0] == OTHER
    assert len(found["hooks"]["Stop"]) == 2
    assert "    " in target.file.read_text(), "it is indented as before"


def test_taking_hooks_out_leaves_the_settings_as_they_were(target: Target) -> None:
    settings = {"a": [1, {"b": None}], "hooks": {"Stop": [OTHER], "Mine": [], "Odd": 7}, "c": ""}
    text = json.dumps(settings, indent=2) + "\n"
    write(target, text)
    install(target, COMMAND)
    assert uninstall(target).is_changed
    assert target.file.read_text() == text
    assert not uninstall(target).is_changed


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini"])
@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,\n   "b": [1,2]}',
        '{"a": 1e5, "b": "\\u00e4", "c": 12345678901234567890123}',
        '{\r\n  "a": 1\r\n}\r\n',
        '{"hooks": {"Stop": [], "PreToolUse": []}}',
        "{}",
        "",
    ],
)
def test_a_file_in_a_form_of_its_own_comes_back_byte_by_byte(
    tmp_path: Path, agent: str, text: str
) -> None:
    target = made(tmp_path, "project", agent)
    write(target, text)
    before = target.file.read_bytes()
    install(target, COMMAND)
    install(target, ["/new/mulligan"])
    assert target.file.read_bytes() != before
    uninstall(target)
    assert target.file.read_bytes() == before


def test_a_second_installation_that_was_cut_off_leaves_the_way_back(target: Target) -> None:
    file = write(target, '{"a":  1}')
    install(target, COMMAND)
    for command in (["/new/mulligan"], ["/newer/mulligan"]):
        hook = fail_at(Failpoint.SETTINGS_NOTED, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            install(target, command, failpoint=hook)
    uninstall(target)
    assert file.read_text() == '{"a":  1}'


def test_what_a_person_changed_after_the_installation_stays(target: Target) -> None:
    write(target, '{"a":1}')
    install(target, COMMAND)
    settings = json.loads(target.file.read_text())
    target.file.write_text(json.dumps({**settings, "a": 2}))
    install(target, ["/new/mulligan"])
    uninstall(target)
    assert json.loads(target.file.read_text()) == {"a": 2}


def test_hooks_alone_leave_no_empty_table(target: Target) -> None:
    write(target, '{"a": 1}')
    install(target, COMMAND)
    uninstall(target)
    assert json.loads(target.file.read_text()) == {"a": 1}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("scope", ["project", "user"])
def test_a_file_that_was_made_is_removed_with_its_directories(
    tmp_path: Path, agent: str, scope: Scope
) -> None:
    target = made(tmp_path, scope, agent)
    target.project.mkdir()
    install(target, COMMAND)
    install(target, ["/new/mulligan"])
    assert uninstall(target, dry_run=True).diff
    assert target.file.exists()
    uninstall(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project", "state"]
    assert not list(target.project.iterdir())
    assert not uninstall(target).is_changed


def test_directories_that_others_use_stay(target: Target) -> None:
    install(target, COMMAND)
    other = target.file.with_name("other.json")
    other.touch()
    uninstall(target)
    assert list(target.file.parent.iterdir()) == [other]


@pytest.mark.parametrize("text", ["{}", "", '{"hooks": {}}'])
def test_a_file_of_a_person_stays_even_if_it_is_empty(target: Target, text: str) -> None:
    install(target, COMMAND)
    uninstall(target)
    write(target, text)
    install(target, COMMAND)
    uninstall(target)
    assert target.file.is_file()


def test_what_a_person_added_to_a_file_that_was_made_stays(target: Target) -> None:
    install(target, COMMAND)
    found = json.loads(target.file.read_text())
    write(target, json.dumps({**found, "model": "x"}))
    uninstall(target)
    assert json.loads(target.file.read_text()) == {"model": "x"}


def test_a_damaged_record_removes_no_directory(target: Target) -> None:
    install(target, COMMAND)
    (record,) = Path(target.variables["XDG_STATE_HOME"]).rglob("added-*")
    odd = '{"is_made": true, "directories": ["/", "/usr", "x"], "switches": [["a", "b"]]}'
    for text in (odd, "[", '{"directories": 1}', "{}"):
        record.write_text(text)
        uninstall(target)
        assert target.file.parent.is_dir()
        assert not record.exists()
        install(target, COMMAND)


GEMINI = {"hooksConfig": {"enabled": True}, "tools": {"enableHooks": True}}


@pytest.mark.parametrize(
    "before",
    [{"a": 1}, {"tools": {"x": 1}}, {"tools": {"enableHooks": False}}, {"tools": {}}, GEMINI],
)
def test_switches_of_others_stay_and_ours_go(tmp_path: Path, before: dict[str, Any]) -> None:
    target = made(tmp_path, "project", "gemini")
    write(target, json.dumps(before))
    install(target, COMMAND)
    install(target, ["/new/mulligan"])
    # A person has saved the file: it is no longer what was written, and is merged with.
    target.file.write_text(target.file.read_text() + "\n")
    uninstall(target)
    left = json.loads(target.file.read_text())
    if before == {"tools": {"enableHooks": False}}:
        before = {"tools": {"enableHooks": True}}  # it was in the way of hooks, and is a person's
    assert left == {key: value for key, value in before.items() if value != {}}


def test_hooks_of_a_user_call_only_a_server_that_is_there_in_all_projects(tmp_path: Path) -> None:
    target = made(tmp_path, "user")
    target.project.mkdir()
    servers: dict[str, Any] = {"mcpServers": {"mulligan": {"command": "mulligan"}}}
    (target.project / ".mcp.json").write_text(json.dumps(servers))
    config = tmp_path / ".claude.json"
    config.write_text(json.dumps({"projects": {str(target.project): servers}}))
    install(target, COMMAND)
    assert "mcp_tool" not in target.file.read_text()
    config.write_text(json.dumps(servers))
    install(target, COMMAND)
    assert "mcp_tool" in target.file.read_text()


def test_installing_again_changes_nothing(target: Target) -> None:
    install(target, COMMAND)
    text = target.file.read_text()
    again = install(target, COMMAND)
    assert (again.diff, again.is_changed) == ("", False)
    assert target.file.read_text() == text


def test_a_new_place_of_the_program_replaces_the_old_one(target: Target) -> None:
    install(target, COMMAND)
    found = json.loads(target.file.read_text())
    ours = found["hooks"]["Stop"][0]
    found["hooks"]["Stop"] = [ours, OTHER, ours]
    write(target, json.dumps(found))
    install(target, ["/new/mulligan"])
    groups = json.loads(target.file.read_text())["hooks"]["Stop"]
    assert [group["hooks"][0]["command"] for group in groups] == ["/new/mulligan", "lint"]


@pytest.mark.parametrize("place", [".mcp.json", "../.claude.json", "in its project"])
def test_hooks_call_the_mcp_server_where_it_is_installed(target: Target, place: str) -> None:
    target.project.mkdir()
    servers: dict[str, Any] = {"mcpServers": {"mulligan": {"command": "mulligan"}}}
    if place == "in its project":
        servers, place = {"projects": {str(target.project): servers}}, "../.claude.json"
    (target.project / place).write_text(json.dumps(servers))
    install(target, COMMAND)
    hooks = json.loads(target.file.read_text())["hooks"]
    (entry,), (beside,) = [group["hooks"] for group in hooks["PostToolBatch"]]
    assert (entry["type"], entry["server"], entry["tool"]) == ("mcp_tool", "mulligan", "hook")
    assert entry["input"]["session_id"] == "${session_id}"
    assert beside["args"] == ["hook", "claude", "--unless-served"]
    (alone,) = [group["hooks"] for group in hooks["SessionStart"]]
    assert [one["args"] for one in alone] == [["hook", "claude"]], "no server is there yet"
    (target.project / place).unlink()
    install(target, COMMAND)
    assert "mcp_tool" not in target.file.read_text()
    uninstall(target)
    assert not target.file.exists()


CALL = {"type": "mcp_tool", "server": "mulligan", "tool": "hook", "input": {"a": "b"}}


def add_server(target: Target) -> Path:
    """Install the MCP server for the project; return the file that says so."""
    target.project.mkdir(exist_ok=True)
    file = target.project / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"mulligan": {"command": "mulligan"}}}))
    return file


def kinds(target: Target, event: str) -> list[str]:
    groups = json.loads(target.file.read_text())["hooks"][event]
    return [entry.get("server") or entry["command"] for g in groups for entry in g["hooks"]]


def test_a_command_beside_the_call_of_the_server_replaces_neither_nor_others(
    target: Target,
) -> None:
    add_server(target)
    own = {"hooks": [CALL]}  # as an earlier version installed it
    shared = {"hooks": [CALL, {"type": "command", "command": "mulligan hook claude"}]}
    foreign = {"hooks": [{**CALL, "tool": "checkpoint"}]}
    write(target, json.dumps({"hooks": {"Stop": [OTHER, own, shared, foreign]}}))
    before = claude_settings.installed(json.loads(target.file.read_text()))
    assert before == {"Stop": []}, "it has no command"
    install(target, COMMAND)
    stop = json.loads(target.file.read_text())["hooks"]["Stop"]
    assert [stop[0], *stop[3:]] == [OTHER, shared, foreign]
    assert kinds(target, "Stop")[1:3] == ["mulligan", *COMMAND]
    assert not install(target, COMMAND).is_changed
    install(target, ["/new/mulligan"])
    assert kinds(target, "Stop")[1:3] == ["mulligan", "/new/mulligan"]
    after = claude_settings.installed(json.loads(target.file.read_text()))
    assert after["Stop"] == ["/new/mulligan", "hook", "claude", "--unless-served"]
    uninstall(target)
    assert json.loads(target.file.read_text()) == {"hooks": {"Stop": [OTHER, shared, foreign]}}


def test_a_server_that_comes_or_goes_changes_both_hooks(target: Target) -> None:
    install(target, COMMAND)
    assert kinds(target, "Stop") == COMMAND
    assert not claude_settings.call_server(json.loads(target.file.read_text()))
    server = add_server(target)
    diff = install(target, COMMAND, dry_run=True).diff
    assert [diff.count(word) for word in ("mcp_tool", "--unless-served")] == [len(EVENTS)] * 2
    install(target, COMMAND)
    assert kinds(target, "Stop") == ["mulligan", *COMMAND]
    assert claude_settings.call_server(json.loads(target.file.read_text()))
    server.unlink()
    install(target, COMMAND)
    assert kinds(target, "Stop") == COMMAND
    assert "--unless-served" not in target.file.read_text()


def test_the_client_of_the_helper_stands_beside_the_server_for_a_user_too(tmp_path: Path) -> None:
    target = made(tmp_path, "user")
    target.project.mkdir()
    servers = {"mcpServers": {"mulligan": {"command": "mulligan"}}}
    (tmp_path / ".claude.json").write_text(json.dumps(servers))
    client = tmp_path / "mulligan/helper/hook"
    install(target, COMMAND, client=client)
    found = claude_settings.installed(json.loads(target.file.read_text()))
    words = [str(client), "claude", "--create"]
    assert (found["SessionEnd"], found["Stop"]) == (words, [*words, "--unless-served"])


def test_a_dry_run_shows_the_diff_and_writes_nothing(target: Target) -> None:
    write(target, '{"a": 1}')
    done = install(target, COMMAND, dry_run=True)
    assert '+      {"hooks": [{"type": "command"' in done.diff
    assert not done.is_changed
    assert target.file.read_text() == '{"a": 1}'


def test_the_file_is_kept_as_it_was(target: Target) -> None:
    write(target, '{"a": 1}')
    done = install(target, COMMAND)
    assert done.backup is not None
    assert done.backup.read_text() == '{"a": 1}'
    assert done.backup.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        '{\n  // a comment\n  "a": 1\n}',
        '{"a": 1,}',
        '{"a": 1, "a": 2}',
        "[1]",
        "{",
        '{"hooks": []}',
        '{"hooks": {"Stop": {}}}',
        "\ufeff{}",
    ],
)
def test_a_file_that_cannot_be_written_back_as_it_was_is_refused(target: Target, text: str) -> None:
    write(target, text)
    with pytest.raises(InvalidSettings):
        install(target, COMMAND)
    assert target.file.read_text() == text


def test_neither_bytes_nor_huge_files_are_read(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(target, "").write_bytes(b"\xff")
    with pytest.raises(InvalidSettings, match="not UTF-8"):
        install(target, COMMAND)
    monkeypatch.setattr(settings_file, "MAX_BYTES", 5)
    write(target, '{"a": 1}')
    with pytest.raises(InvalidSettings, match="longer"):
        install(target, COMMAND)


def test_a_directory_in_the_place_of_the_file_is_named(target: Target) -> None:
    target.file.mkdir(parents=True)
    with pytest.raises(InvalidSettings, match=r"settings\.local\.json cannot be read: Is a dir"):
        install(target, COMMAND)


def test_a_link_to_settings_elsewhere_stays_a_link(target: Target, tmp_path: Path) -> None:
    elsewhere = tmp_path / "dotfiles.json"
    elsewhere.write_text("{}")
    elsewhere.chmod(0o640)
    target.file.parent.mkdir(parents=True)
    target.file.symlink_to(elsewhere)
    install(target, COMMAND)
    assert target.file.is_symlink()
    assert "mulligan" in elsewhere.read_text()
    assert elsewhere.stat().st_mode & 0o777 == 0o640


def test_a_change_of_another_program_is_not_overwritten(target: Target, tmp_path: Path) -> None:
    file = SettingsFile(write(target, '{"a": 1}'))
    write(target, '{"a": 2}')
    with pytest.raises(InvalidSettings, match="another program"):
        file.write({"a": 1, "b": 1}, tmp_path / "backup")
    assert target.file.read_text() == '{"a": 2}'


def test_a_directory_that_cannot_be_written_is_one_sentence(target: Target) -> None:
    target.project.mkdir()
    (target.project / ".claude").write_text("a file")
    with pytest.raises(InvalidSettings, match="cannot be"):
        install(target, COMMAND)


def test_an_unknown_agent_is_refused(target: Target) -> None:
    other = Target("cursor", "project", target.project, target.variables)
    with pytest.raises(InvalidSettings, match="no agent 'cursor'"):
        install(other, COMMAND)
    assert not os.path.lexists(target.project)
