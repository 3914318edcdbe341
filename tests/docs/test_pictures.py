"""The picture in the README: plain text, small, and of this version's commands."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/rewind.svg"
LARGEST = 60_000
SVG = "{http://www.w3.org/2000/svg}"


def shown() -> list[str]:
    """Return the lines of the terminal in the picture."""
    root = ElementTree.fromstring(PICTURE.read_text())
    return ["".join(line.itertext()) for line in root.iter(f"{SVG}text")]


def test_the_picture_is_small_and_has_its_text_as_text():
    assert PICTURE.stat().st_size < LARGEST
    assert "data:" not in PICTURE.read_text()
    assert len(shown()) > 20


def test_the_readme_shows_it():
    assert "(docs/rewind.svg)" in (ROOT / "README.md").read_text()


def test_it_shows_a_whole_rewind():
    lines = shown()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert [command.split(" -p")[0] for command in commands][1:3] == [
        "mulligan rewind",
        "mulligan rewind --to 3",
    ]
    (resumed,) = [line.strip() for line in lines if re.match(r"  claude --resume ", line)]
    assert any(command.startswith(resumed) for command in commands)
    assert "Undo with `mulligan rewind --undo`." in lines


def test_its_lines_are_those_that_the_command_prints():
    source = (ROOT / "src/mulligan/cli/render/rewind.py").read_text()
    for said in ("The files are back.", "Continue with:", "The other branch stays: "):
        assert said in source
        assert any(said in line for line in shown())
