"""A kill while hooks are installed leaves the settings as they were, or as they will be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mulligan.coding.install import Target, install
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
