"""A kill while the client of the helper is written leaves a whole one, the old or the new."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mulligan.failpoints import Failpoint
from mulligan.resident import place
from mulligan.resident.install import client_path, install_client, is_current
from mulligan.testing.failpoints import kill_at
from tests.children import Tell, run_child

POINTS = [point for point in Failpoint if point.name.startswith("CLIENT_")]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("compiler", [None, ""], ids=["C", "Python"])
def test_a_kill_leaves_a_whole_client(
    tmp_path: Path, point: Failpoint, compiler: str | None
) -> None:
    install_client(tmp_path, "1", ["/bin/echo", "old"], compiler=compiler)

    def body(tell: Tell) -> None:
        words = ["/bin/echo", "new"]
        install_client(tmp_path, "2", words, compiler=compiler, failpoint=kill_at(point))

    assert run_child(body).by_sigkill
    said = b"old claude" if point is Failpoint.CLIENT_STAGED else b"new claude"
    assert answer(tmp_path) == said
    assert is_current(tmp_path, "2") == (point is Failpoint.CLIENT_NOTED)
    install_client(tmp_path, "2", ["/bin/echo", "new"], compiler=compiler)
    assert is_current(tmp_path, "2")
    assert answer(tmp_path) == b"new claude"
    assert sorted(os.listdir(place.helper_directory(tmp_path))) == ["hook", "hook.version"]


def answer(state: Path) -> bytes:
    """Run the client without a helper, and return what its command prints."""
    done = subprocess.run([client_path(state)], input=b"{}", capture_output=True, check=True)
    return done.stdout.strip()
