"""`mulligan install` and `mulligan uninstall`: text, JSON and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import mulligan
from tests.cli.conftest import Cli
from tests.contract import documented


@pytest.fixture
def project(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without a store, and a home of its own."""
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    made = place / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def test_install_makes_a_store_and_shows_the_diff(project: Path, cli: Cli) -> None:
    (project / "a.txt").write_text("one")
    done = cli("install", "claude")
    assert done.code == 0
    assert '+      {"hooks": [{"type": "command"' in done.out
    assert done.out.splitlines()[-1].startswith("`mulligan doctor` checks")
    assert (project / ".mulligan").is_file()
    command = json.loads((project / ".claude/settings.local.json").read_text())
    entry = command["hooks"]["Stop"][0]["hooks"][0]
    assert os.path.isabs(entry["command"])
    assert "installed already" in cli("install", "claude").out


def test_a_plugin_is_counted_and_shown_only_when_asked(project: Path, cli: Cli) -> None:
    shown = cli("install", "opencode", "--dry-run", "--verbose").out
    assert "+export const Mulligan" in shown
    count = sum(line.startswith("+") for line in shown.splitlines()) - 1
    done = cli("install", "opencode")
    file = project / ".opencode/plugin/mulligan.js"
    assert f"{file}: {count} lines added; --dry-run --verbose shows them" in done.out
    assert len(done.out.splitlines()) < 6
    assert len(file.read_text().splitlines()) == count
    assert f"{file}: {count} lines removed\n" in cli("uninstall", "opencode").out


def test_install_in_a_subdirectory_is_for_the_project(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("init")
    (project / "src").mkdir()
    monkeypatch.chdir(project / "src")
    assert cli("install", "claude").code == 0
    assert (project / ".claude/settings.local.json").is_file()


def test_install_in_a_part_of_a_repository_says_what_is_not_recorded(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".git").mkdir()
    (project / "src").mkdir()
    monkeypatch.chdir(project / "src")
    said = f"outside of {project / 'src'} are not recorded, nor is {project / '.git'};"
    assert said in cli("install", "claude").out
    monkeypatch.chdir(project)
    assert "not recorded" not in cli("install", "claude").out


def test_a_dry_run_changes_nothing(project: Path, cli: Cli) -> None:
    done = cli("install", "claude", "--dry-run")
    assert "Nothing was changed" in done.out
    assert list(project.iterdir()) == []


def test_install_for_a_user_makes_no_store(project: Path, cli: Cli) -> None:
    assert cli("install", "claude", "--user").code == 0
    assert (project.parent / "home/.claude/settings.json").is_file()
    assert list(project.iterdir()) == []


def test_uninstall_takes_everything_out(project: Path, cli: Cli) -> None:
    cli("install", "claude")
    assert "Removed the hooks" in cli("uninstall", "claude").out
    assert not (project / ".claude").exists()
    assert "There are no hooks" in cli("uninstall", "claude").out


def test_uninstall_names_hooks_in_the_other_settings(project: Path, cli: Cli) -> None:
    cli("install", "claude", "--user")
    told = cli("uninstall", "claude").words
    assert "`mulligan uninstall claude --user` removes those in" in told
    assert "mulligan uninstall" not in cli("uninstall", "claude", "--user").words
    assert "mulligan uninstall" not in cli("uninstall", "claude").words
    cli("install", "claude")
    assert (
        "`mulligan uninstall claude` removes those in" in cli("uninstall", "claude", "--user").words
    )


def test_the_json_has_the_documented_fields(project: Path, cli: Cli) -> None:
    done = cli("install", "claude", "--json").json
    assert set(done) == documented("install")
    assert (done["changed"], done["backup"]) == (True, None)
    again = cli("uninstall", "claude", "--json").json
    assert set(again) == documented("install")
    assert Path(again["backup"]).is_file()


def test_settings_with_comments_are_refused(project: Path, cli: Cli) -> None:
    (project / ".claude").mkdir()
    (project / ".claude/settings.local.json").write_text("{} // mine")
    done = cli("install", "claude")
    assert done.code == 104
    assert "comments" in done.err
    assert not (project / ".mulligan").exists()


def test_an_unknown_agent_is_refused(project: Path, cli: Cli) -> None:
    done = cli("install", "cursor")
    assert done.code == 104
    assert "Known agents: claude" in done.err


def test_the_home_directory_is_refused(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert cli("install", "claude").code == 80
    assert not (project / ".claude").exists()


def test_hooks_run_the_client_of_the_helper_unless_it_is_not_wanted(
    project: Path, cli: Cli
) -> None:
    file = project / ".claude/settings.local.json"

    def command() -> list[str]:
        entry = json.loads(file.read_text())["hooks"]["Stop"][0]["hooks"][0]
        return [entry["command"], *entry["args"]]

    shown = cli("install", "claude", "--dry-run").out
    cli("install", "claude")
    client, *words = command()
    assert client in shown
    assert os.access(client, os.X_OK)
    assert words == ["claude"]
    cli("install", "claude", "--no-helper")
    assert command()[-2:] == ["hook", "claude"]
    cli("install", "claude")
    assert command() == [client, "claude"]
    cli("uninstall", "claude")
    assert not file.exists()


def test_install_says_that_a_program_made_the_store_inside_the_project(
    project: Path, cli: Cli
) -> None:
    mulligan.open(".").close()
    told = cli("install", "claude", "--no-helper")
    assert "inside the project, where `git clean -ffdx` deletes it" in told.words
    assert "`mulligan move-store --outside`" in told.words
    assert json.loads(cli("install", "claude", "--no-helper", "--json").out)["store"]
