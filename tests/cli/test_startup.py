"""The help starts fast because nothing heavy is imported for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"blake3", "lmdb", "msgspec", "subprocess", "importlib.metadata"}

SLOW = {"asyncio", "concurrent.futures", "difflib", "importlib.metadata", "logging", "secrets"}
SLOW |= {
    "shutil",
    "subprocess",
    "tomllib",
    "mulligan.check",
    "mulligan.workspace.checkout.checkout",
}
"""What is slow to import, and of no use to somebody who only looks."""


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


def test_help_imports_no_command():
    modules = imported_by("--help")
    ours = {name for name in modules if name.startswith("mulligan.cli.")}
    assert ours == {f"mulligan.cli.{name}" for name in OWN}


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


@pytest.mark.parametrize("command", ["status", "log", "show", "tasks"])
def test_looking_imports_nothing_slow_that_it_does_not_need(store, place, command: str):
    imported_by("--store", str(place), "checkpoint", "--no-files")
    assert not imported_by("--store", str(place), command) & SLOW


def test_a_checkpoint_starts_no_other_program_once_the_store_knows_the_tools(store, place):
    imported_by("--store", str(place), "checkpoint", "--no-files")
    assert "subprocess" not in imported_by("--store", str(place), "checkpoint", "--no-files")
