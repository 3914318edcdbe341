"""A kill while hooks are installed leaves the settings as they were, or as they will be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mulligan.coding.settings.install import Target, install, uninstall
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import kill_at
from tests.children import Tell, run_child

POINTS = [point for point in Failpoint if point.name.startswith("SETTINGS_")]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_the_old_settings_or_the_new_ones(tmp_path: Path, point: Failpoint) -> None:
    variables = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    target = Target("claude", "project", tmp_path, variables)
    target.file.parent.mkdir()
    target.file.write_text('{"a": 1}')

    def body(tell: Tell) -> None:
        install(target, ["mulligan"], failpoint=kill_at(point))

    assert run_child(body).by_sigkill
    settings = json.loads(target.file.read_text())
    assert settings["a"] == 1
    assert ("hooks" in settings) is (point is Failpoint.SETTINGS_WRITTEN)
    install(target, ["mulligan"])
    assert "hooks" in json.loads(target.file.read_text())


@pytest.mark.parametrize("point", [p for p in POINTS if p is not Failpoint.SETTINGS_BACKED_UP])
def test_a_file_that_a_killed_installation_made_is_removed_again(
    tmp_path: Path, point: Failpoint
) -> None:
    variables = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    target = Target("claude", "project", tmp_path / "project", variables)
    target.project.mkdir()
    assert run_child(
        lambda tell: install(target, ["mulligan"], failpoint=kill_at(point))
    ).by_sigkill
    install(target, ["mulligan"])
    killed = run_child(lambda tell: uninstall(target, failpoint=kill_at(point)))
    assert killed.by_sigkill == (point is Failpoint.SETTINGS_WRITTEN)
    uninstall(target)
    assert not list(target.project.iterdir())
