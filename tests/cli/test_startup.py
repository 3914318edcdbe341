"""The help starts fast because nothing heavy is imported for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"blake3", "lmdb", "msgspec", "rich", "subprocess", "importlib.metadata"}


OWN = {"context", "main", "render", "render.streams", "render.terminal"}
"""What of the command line is there before a command is known."""


def imported_by(*args: str) -> set[str]:
    """Return the modules that a command has imported when it is done."""
    script = (
        "import json, sys; from mulligan.cli.main import run; run(sys.argv[1:]); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_imports_no_command_and_nothing_to_draw_with():
    modules = imported_by("--help")
    ours = {name for name in modules if name.startswith("mulligan.cli.")}
    assert ours == {f"mulligan.cli.{name}" for name in OWN}
    assert "rich" not in modules


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_nothing_of_the_library(option: str):
    modules = imported_by(option)
    library = {name for name in modules if name.startswith("mulligan.")} - {
        "mulligan.errors",
        "mulligan.failpoints",
    }
    assert library == {"mulligan.cli", *(f"mulligan.cli.{name}" for name in OWN)}
    heavy = HEAVY - {"importlib.metadata"} if option == "--version" else HEAVY
    assert not modules & heavy


def test_looking_does_not_import_what_draws_progress(store, place):
    assert "rich" not in imported_by("--store", str(place), "status")
