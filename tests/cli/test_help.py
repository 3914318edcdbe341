"""Help that leads somewhere: commands, guides, and hints that name only what is installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import mulligan
from mulligan.cli.commands.help import GUIDES, for_terminal, guide
from mulligan.cli.main import COMMANDS
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]


def test_help_is_the_help_of_a_command(cli: Cli) -> None:
    assert cli("help", "log").out == cli("log", "--help").out
    assert cli("help", "tasks", "add").out == cli("tasks", "add", "--help").out


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_broken_in_two(cli: Cli, name: str) -> None:
    shown = cli(name, "--help").out
    assert [line for line in shown.splitlines() if re.search(r"\w-$", line)] == []


def test_help_alone_lists_commands_and_guides(cli: Cli) -> None:
    shown = cli("help").out
    assert shown.startswith(cli("--help").out.rstrip())
    for name in GUIDES:
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)


def test_help_for_what_is_not_there(cli: Cli) -> None:
    for topic in (["frob"], ["log", "frob"], ["tasks", "frob"]):
        failed = cli("help", *topic)
        assert failed.code == 2
        assert "There is no command or guide" in failed.err


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_is_shown(cli: Cli, name: str) -> None:
    assert cli("help", name).out.startswith("# ")


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_is_shown_by_the_name_of_its_file(cli: Cli, name: str) -> None:
    """Links in the guides have these names."""
    file = Path(GUIDES[name][0])
    topics = [file.name] if file.stem in COMMANDS else [file.name, file.stem]
    for topic in topics:
        assert cli("help", topic).out == cli("help", name).out


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_on_a_terminal_is_broken_between_words(name: str) -> None:
    text = guide(name)
    shown = for_terminal(text, 72)
    assert shown.split() == text.split()
    prose = re.sub(r"^ *```.*?^ *```", "", shown, flags=re.MULTILINE | re.DOTALL)
    long = [line for line in prose.splitlines() if len(line) > 72 and " " in line.strip()]
    assert [line for line in long if not line.startswith(("|", "#", "<"))] == []


def test_lists_and_code_keep_their_shape_on_a_terminal() -> None:
    lists = "one two\nthree\n\n- four five six\n  seven\n1. eight nine\n"
    assert for_terminal(f"{lists}\n```sh\nten  eleven twelve\n```", 10).split("\n") == [
        "one two",
        "three",
        "",
        "- four",
        "  five six",
        "  seven",
        "1. eight",
        "   nine",
        "",
        "```sh",
        "ten  eleven twelve",
        "```",
    ]


def test_the_wheel_has_the_guides() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"docs": "mulligan/docs"}
    assert all((ROOT / "docs" / file).is_file() for file, _ in GUIDES.values())


def test_every_guide_has_a_name_and_the_readme_lists_them() -> None:
    guides = {file.name for file in (ROOT / "docs").glob("guide-*.md")}
    assert guides <= {file for file, _ in GUIDES.values()}
    listed = re.search(r"or a guide: ([a-z, -]+) \|", (ROOT / "README.md").read_text())
    assert listed
    assert listed[1].split(", ") == list(GUIDES)


def test_no_message_refers_to_a_file_that_is_not_installed() -> None:
    """Docstrings of modules may: they are read in a checkout."""
    package = Path(mulligan.__file__).parent
    texts = {
        file: re.sub(r'\A"""(.|\n)*?"""', "", file.read_text()) for file in package.rglob("*.py")
    }
    found = [file.name for file, text in texts.items() if re.search(r"docs/[\w-]+\.md", text)]
    assert found == []


def test_every_topic_that_a_message_names_is_there() -> None:
    package = Path(mulligan.__file__).parent
    named = {
        topic
        for file in package.rglob("*.py")
        for topic in re.findall(r"`mulligan help ([a-z]+)`", file.read_text())
    }
    assert named
    assert named <= {*GUIDES, *COMMANDS}
