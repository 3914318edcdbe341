"""`mulligan doctor`: one sentence for everything that it checks, and an exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import mulligan
from mulligan.coding import doctor
from mulligan.coding.hook_input import CODEX_EVENTS
from mulligan.coding.hooks import run_hook
from mulligan.coding.settings.install import AGENTS
from mulligan.resident.install import install_client
from tests.cli.conftest import Cli
from tests.contract import documented
from tests.disks import disk_of
from tests.nobody import NOBODY, as_nobody, place_of_nobody


@pytest.fixture
def project(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without a store, and a home of its own."""
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    # A busy machine makes hooks slow; a test that is about slow hooks says so itself.
    monkeypatch.setattr(doctor, "SLOW_SECONDS", doctor.LIMIT_SECONDS)
    made = place / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def trust(project: Path) -> None:
    """Trust the hooks of Codex in a project, as Codex itself notes it when a person says so."""
    file = project / ".codex/hooks.json"
    home = Path(os.environ["HOME"]) / ".codex"
    home.mkdir(parents=True, exist_ok=True)
    events = [re.sub("(?<!^)(?=[A-Z])", "_", event).lower() for event in CODEX_EVENTS]
    noted = [f'[hooks.state."{file}:{event}:0:0"]\ntrusted_hash = "sha256:00"' for event in events]
    (home / "config.toml").write_text("\n".join(noted))


def test_without_a_store_and_hooks_it_says_what_to_do(project: Path, cli: Cli) -> None:
    done = cli("doctor")
    assert done.code == 105
    assert "✗ There is no store" in done.out
    assert "✗ No hooks of a coding agent are installed here." in done.out
    assert "`mulligan install claude|codex|gemini|opencode` installs them." in done.out
    named = cli("doctor", "gemini")
    assert "✗ No hooks of gemini are installed here." in named.out
    assert "`mulligan install gemini` installs them." in named.out


def test_hooks_of_a_user_need_no_store_yet(project: Path, cli: Cli) -> None:
    cli("install", "claude", "--user")
    done = cli("doctor")
    assert done.code == 0, done.out
    assert "✓ There is no store here yet" in done.out


@pytest.mark.parametrize("agent", AGENTS)
def test_it_runs_a_hook_and_leaves_no_session(project: Path, cli: Cli, agent: str) -> None:
    (project / "a").write_text("1")
    cli("install", agent)
    trust(project)
    done = cli("doctor", agent)
    assert done.code == 0, done.out
    assert "✓ A hook was run and recorded a checkpoint." in done.out
    assert "ms here." in done.out
    sessions = cli("status", "--json").json["sessions"]
    assert [session["name"] for session in sessions] == ["main"]
    assert cli("doctor", agent, "--quiet").out == ""


def test_what_a_killed_check_left_is_removed(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("install", "gemini")
    with mulligan.open(cli("status", "--json").json["store"]) as store:
        for name in ("gemini-doctor-0123abcd", "codex-doctor-89abcdef", "gemini-doctor-mine"):
            store.session(name).checkpoint()
    assert cli("doctor", "gemini").code == 0
    sessions = cli("status", "--all", "--json").json["sessions"]
    assert len(sessions) == 4, "they may be of checks that run now"
    monkeypatch.setattr(doctor, "LEFT_AFTER", timedelta(0))
    assert cli("doctor", "gemini").code == 0
    sessions = cli("status", "--all", "--json").json["sessions"]
    assert {session["name"] for session in sessions} == {"main", "gemini-doctor-mine"}


def test_without_a_name_it_checks_the_agents_that_have_hooks_here(project: Path, cli: Cli) -> None:
    cli("install", "codex")
    trust(project)
    done = cli("doctor")
    assert done.code == 0, done.out
    assert "✓ The hooks of codex are installed." in done.out
    assert "claude" not in done.out
    cli("install", "gemini")
    both = cli("doctor").out
    assert "✓ The hooks of codex are installed." in both
    assert "✓ The hooks of gemini are installed." in both
    assert both.count("is sound") == both.count("No hook has failed") == 1
    assert both.count("recorded a checkpoint") == 2
    assert "codex" not in cli("doctor", "gemini").out


def test_hooks_that_codex_does_not_trust_yet_are_named(project: Path, cli: Cli) -> None:
    cli("install", "codex")
    done = cli("doctor")
    assert done.code == 105
    assert "✗ codex does not run the hooks in" in done.out
    assert "open /hooks in it once" in done.out
    trust(project)
    assert cli("doctor").code == 0
    file = project / ".codex/hooks.json"
    hooks = json.loads(file.read_text())
    hooks["hooks"]["Stop"].insert(0, {"hooks": [{"type": "command", "command": "lint"}]})
    file.write_text(json.dumps(hooks))
    assert "not trusted yet" in cli("doctor").out, "trust is by place"


def test_settings_that_the_agent_reads_with_comments_are_read(project: Path, cli: Cli) -> None:
    cli("install", "gemini")
    file = project / ".gemini/settings.json"
    # Such as `"//": "/*"`: what is in a text is no comment.
    text = file.read_text().replace("{", '{ /* ours */ "//": "/*", "a": "\\"//", // this\n', 1)
    file.write_text(text)
    done = cli("doctor")
    assert done.code == 0, done.out
    assert "✓ The hooks of gemini are installed." in done.out
    assert cli("install", "gemini").code == 0, "there is nothing to change"
    refused = cli("uninstall", "gemini")
    assert (refused.code, "has comments" in refused.err) == (104, True)
    assert file.read_text() == text


def test_settings_that_cannot_be_read_are_named_for_every_agent(project: Path, cli: Cli) -> None:
    cli("install", "codex")
    (project / ".codex/hooks.json").write_text("{ // mine\n}")
    done = cli("doctor")
    assert done.code == 105
    assert ".codex/hooks.json is not plain JSON" in done.out


def test_a_store_that_is_gone_is_not_made_again(project: Path, cli: Cli) -> None:
    cli("install", "claude", "--user")
    cli("init")
    shutil.rmtree(cli("status", "--json").json["store"])
    done = cli("doctor")
    assert done.code == 105
    assert "which does not exist" in done.out
    assert "`mulligan stores` lists all stores" in done.out


def test_the_json_has_the_documented_fields(project: Path, cli: Cli) -> None:
    cli("install", "claude")
    done = cli("doctor", "--json")
    assert set(done.json) == documented("doctor")
    assert done.json["ok"] is True
    assert [check["name"] for check in done.json["checks"]] == [
        "hooks",
        "store",
        "run",
        "time",
        "log",
    ]


def test_it_shows_what_hooks_noted(project: Path, cli: Cli) -> None:
    cli("install", "claude")
    run_hook(b"{", dict(os.environ))
    done = cli("doctor")
    assert done.code == 105
    assert "✗ A hook failed in the last 24 hours" in done.out
    assert "cannot be read" in done.out


def test_what_hooks_noted_in_another_project_is_only_mentioned(project: Path, cli: Cli) -> None:
    cli("install", "claude")
    other = {"hook_event_name": "Stop", "session_id": "s", "cwd": str(project.parent / "other")}
    run_hook(json.dumps(other).encode(), dict(os.environ))
    done = cli("doctor")
    assert done.code == 0, done.out
    assert "No hook has failed here in the last 24 hours, but 1 elsewhere." in done.out
    below = other | {"cwd": str(project / "src"), "hook_event_name": "UserPromptSubmit"}
    shutil.rmtree(cli("status", "--json").json["store"])
    run_hook(json.dumps(below).encode(), dict(os.environ))
    assert "✗ A hook failed in the last 24 hours" in cli("doctor").out


def test_a_copy_of_a_project_is_told_how_to_get_a_store(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("install", "claude")
    shutil.copytree(project, project.parent / "copy")
    monkeypatch.chdir(project.parent / "copy")
    done = cli("doctor")
    assert done.code == 105
    assert f"which holds the files of {project}" in done.out
    assert "delete its .mulligan and run `mulligan init`" in done.out


def change(project: Path, **settings: object) -> None:
    file = project / ".claude/settings.local.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def test_hooks_that_are_missing_disabled_or_cannot_run_are_named(project: Path, cli: Cli) -> None:
    cli("install", "claude", "--no-helper")
    file = project / ".claude/settings.local.json"
    text = file.read_text()
    change(project, disableAllHooks=True)
    assert "disableAllHooks: no hook runs" in cli("doctor").out
    hooks = json.loads(text)["hooks"]
    del hooks["PreToolUse"]
    change(project, disableAllHooks=False, hooks=hooks)
    assert "Hooks are missing for PreToolUse." in cli("doctor").out
    command = json.loads(text)["hooks"]["Stop"][0]["hooks"][0]["command"]
    file.write_text(text.replace(command, "/nowhere/mulligan"))
    assert "/nowhere/mulligan, which cannot be run" in cli("doctor").out
    file.write_text("{ // mine\n}")
    assert "comments" in cli("doctor").out


def test_a_hook_that_records_nothing_is_named(project: Path, cli: Cli) -> None:
    cli("install", "claude", "--no-helper")
    script = project.parent / "mulligan"
    script.write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n")
    script.chmod(0o755)
    file = project / ".claude/settings.local.json"
    text = file.read_text()
    command = json.loads(text)["hooks"]["Stop"][0]["hooks"][0]["command"]
    file.write_text(text.replace(command, str(script)))
    done = cli("doctor")
    assert done.code == 105
    assert "exit code 3, and recorded nothing: it is broken" in done.out


def test_hooks_that_start_a_removed_mulligan_are_named(project: Path, cli: Cli) -> None:
    cli("install", "claude")
    state = project.parent / "state/mulligan"
    install_client(state, "0", ["/nowhere/mulligan", "hook"])
    with open(state / "hooks.log", "a") as log:
        log.write("2026-01-01T00:00:00Z claude: something old\n")
    done = cli("doctor")
    assert done.code == 105
    assert "recorded nothing; it gave no reason." in done.out
    assert "`mulligan install claude` makes hooks start this Mulligan" in done.out
    cli("install", "claude")
    assert cli("doctor").code == 0


def test_a_store_that_cannot_be_opened_is_named(project: Path, cli: Cli) -> None:
    cli("install", "claude")
    store = Path(cli("status", "--json").json["store"])
    (store / "config.toml").write_text("broken")
    done = cli("doctor")
    assert done.code == 105
    assert "config.toml" in done.out


def test_a_damaged_store_is_named(project: Path, cli: Cli) -> None:
    cli("install", "claude")
    store = Path(cli("status", "--json").json["store"])
    (store / "FORMAT").write_text("{}")
    assert "FORMAT" in cli("doctor").out


def test_a_store_of_another_user_is_named(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("install", "claude")
    monkeypatch.setattr(doctor.os, "getuid", lambda: 4711)
    done = cli("doctor")
    assert "belongs to the user" in done.out
    assert "A hook" not in done.out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a store of another user")
def test_a_private_store_of_another_user_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place_of_nobody() as place:
        monkeypatch.setenv("HOME", str(place / "home"))
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        project = place / "project"
        project.mkdir()
        monkeypatch.chdir(project)
        assert cli("install", "claude", "--no-helper").code == 0
        store = cli("status", "--json").json["store"]
        assert "is sound" in cli("doctor").out

        def examine() -> None:
            variables = dict(os.environ)
            found = list(doctor.examine("claude", project, variables, open_reading))
            said = [check.said for check in found if check.name == "store"]
            assert said == [f"{store} belongs to the user root: hooks record nothing."]

        for path in (project / ".mulligan", project / ".claude/settings.local.json"):
            path.chmod(0o644)
        # Its owner alone can look into the store, as always; the directories above are open.
        for directory in Path(store).parents[:2]:
            directory.chmod(0o755)
        as_nobody(examine)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_store_that_cannot_be_written_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with place_of_nobody() as place:
        monkeypatch.setenv("HOME", str(place / "home"))
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        project = place / "project"
        project.mkdir()
        monkeypatch.chdir(project)
        assert cli("install", "claude", "--no-helper").code == 0
        store = Path(cli("status", "--json").json["store"])
        assert "is sound" in cli("doctor").out
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        for path in (store, *store.rglob("*")):
            path.chmod(path.stat().st_mode & 0o555)

        def examine() -> None:
            variables = dict(os.environ)
            found = doctor.examine("claude", project, variables, open_reading)
            said = [check.said for check in found if check.name == "store"]
            assert said == [f"The store {store} cannot be written: hooks record nothing."]

        as_nobody(examine)


def open_reading(path: Path) -> mulligan.Store:
    return mulligan.open(path, False)


def test_a_full_disk_is_named(project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk_of(6, project.parent / "disk") as disk:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        assert cli("install", "claude", "--no-helper").code == 0
        (project / "new").write_bytes(os.urandom(400_000))
        fill(disk / "noise", shutil.disk_usage(disk).free - 300_000)
        done = cli("doctor")
        assert done.code == 105
        assert "recorded a checkpoint without files: the disk of the store would have" in done.out
        fill(disk / "more", shutil.disk_usage(disk).free)
        done = cli("doctor")
        assert done.code == 105
        assert "The disk of the store" in done.out
        assert "is full: hooks record nothing" in done.out


def fill(path: Path, size: int) -> None:
    path.write_bytes(os.urandom(size))


def through_server(project: Path, cli: Cli, **server: object) -> None:
    """Install hooks that call an MCP server, which is started like that."""
    shared = project / ".mcp.json"
    shared.write_text(json.dumps({"mcpServers": {"mulligan": server}}))
    cli("install", "claude", "--no-helper")


def test_a_hook_is_sent_through_the_server_that_hooks_call(project: Path, cli: Cli) -> None:
    through_server(project, cli, command=sys.executable, args=["-m", "mulligan", "mcp"])
    done = cli("doctor")
    assert done.code == 0, done.out
    assert "✓ The MCP server was started, and a hook recorded through it." in done.out
    sessions = cli("status", "--json").json["sessions"]
    assert [session["name"] for session in sessions] == ["main"]


def test_a_server_that_does_not_start_or_is_another_one_is_named(project: Path, cli: Cli) -> None:
    through_server(project, cli, command="/nowhere/mulligan", args=["mcp"])
    done = cli("doctor")
    assert done.code == 105
    assert "✗ The MCP server could not be run" in done.out
    assert "Hooks do their work without it, slower." in done.out
    through_server(project, cli, command="sh", args=["-c", "echo it is broken >&2; cat >/dev/null"])
    assert "a hook that called it recorded nothing: it is broken" in cli("doctor").out


@pytest.mark.parametrize("where", ["settings", "agent"])
def test_a_server_that_is_turned_off_is_named(project: Path, cli: Cli, where: str) -> None:
    through_server(project, cli, command=sys.executable, args=["-m", "mulligan", "mcp"])
    if where == "settings":
        change(project, disabledMcpjsonServers=["mulligan"])
    else:
        home = Path(os.environ["HOME"])
        home.mkdir(exist_ok=True)
        off = {"projects": {str(project): {"disabledMcpServers": ["mulligan"]}}}
        (home / ".claude.json").write_text(json.dumps(off))
    done = cli("doctor")
    assert done.code == 105
    assert "which is not installed, or turned off, here: they do their work" in done.out
    assert "A hook was run and recorded a checkpoint." in done.out
    cli("install", "claude", "--no-helper")
    assert cli("doctor").code == 0, "the hooks do without it"


def test_hooks_that_only_call_the_server_are_named(project: Path, cli: Cli) -> None:
    """An earlier version installed such."""
    through_server(project, cli, command=sys.executable, args=["-m", "mulligan", "mcp"])
    file = project / ".claude/settings.local.json"
    settings = json.loads(file.read_text())
    settings["hooks"] = {event: groups[:1] for event, groups in settings["hooks"].items()}
    file.write_text(json.dumps(settings))
    done = cli("doctor")
    assert (done.code, "without it, they record nothing" in done.out) == (105, True), done.out
    cli("install", "claude", "--no-helper")
    assert cli("doctor").code == 0


def test_a_slow_hook_is_named(project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("install", "claude")
    monkeypatch.setattr(doctor, "SLOW_SECONDS", 0.0)
    done = cli("doctor")
    assert done.code == 105
    assert ".mulliganignore" in done.out
