"""Ctrl-C while the command line is still being imported: quiet, and exit code 130."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

# A shell that started this in the background may have left the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["mulligan", "status"]
from mulligan.cli.entry import main
main()
"""


@pytest.mark.parametrize("module", ["mulligan.cli.main", "click", "mulligan.cli.context"])
def test_an_import_that_is_interrupted_says_nothing(place: Path, module: str) -> None:
    done = _start(place, module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("module", ["mulligan.cli.commands.status", "mulligan.locate.find"])
def test_a_command_that_is_interrupted_says_so_in_a_sentence(place: Path, module: str) -> None:
    done = _start(place, module)
    assert done.returncode == 130
    assert done.stderr.startswith("Error: Interrupted.")
    assert "Traceback" not in done.stderr


def test_every_way_in_takes_this_door() -> None:
    root = Path(__file__).parents[2]
    assert 'mulligan = "mulligan.cli.entry:main"' in (root / "pyproject.toml").read_text()
    assert "from mulligan.cli.entry import main" in (root / "src/mulligan/__main__.py").read_text()


def _start(place: Path, module: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START.format(module=module)],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
