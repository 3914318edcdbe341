"""Ctrl-C while the command line is still being imported: quiet, and exit code 130."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import os, signal, sys

def interrupt(event, given):  # whichever way the module is found and loaded
    if event == "exec" and given[0].co_filename.endswith({files!r}):
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
sys.argv = ["mulligan", "status"]
from mulligan.cli.entry import main
main()
"""
"""Starts a command as the console script does, and interrupts it at the import of a module."""

EARLY = ["mulligan.cli.overview", "typing", "mulligan.cli.main", "click", "mulligan.cli.context"]


@pytest.mark.parametrize("module", EARLY)
def test_an_import_that_is_interrupted_says_nothing(place: Path, module: str) -> None:
    done = _start(place, module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("module", ["mulligan.cli.render.pending", "mulligan.locate.find"])
def test_a_command_that_is_interrupted_says_so_in_a_sentence(place: Path, module: str) -> None:
    done = _start(place, module)
    assert done.returncode == 130
    assert done.stderr.startswith("Error: Interrupted.")
    assert "Traceback" not in done.stderr


def test_tests_of_ctrl_c_pass_where_it_is_ignored(tmp_path: Path) -> None:
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-m", "pytest"]
    test = f"{__file__}::{test_an_import_that_is_interrupted_says_nothing.__name__}"
    options = ["-n0", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*ignoring, *options, test], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_way_in_takes_this_door() -> None:
    root = Path(__file__).parents[2]
    assert 'mulligan = "mulligan.cli.entry:main"' in (root / "pyproject.toml").read_text()
    assert "from mulligan.cli.entry import main" in (root / "src/mulligan/__main__.py").read_text()


def _start(place: Path, module: str) -> subprocess.CompletedProcess[str]:
    path = "/" + module.replace(".", "/")
    files = (f"{path}.py", f"{path}/__init__.py")
    return subprocess.run(
        [sys.executable, "-c", START.format(files=files)],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
