"""Views know neither terminal nor environment, and the command line builds no JSON of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mulligan

SOURCE = Path(mulligan.__file__).parent
VIEWS = sorted((SOURCE / "views").glob("*.py"))
COMMAND_LINE = sorted((SOURCE / "cli").rglob("*.py"))

OF_A_PROGRAM = {"click", "rich", "sys", "getpass", "readline", "signal", "subprocess", "termios"}
"""Modules that only a program needs which has a terminal, arguments and an environment."""

OWN_SHAPES = {"commands/demo.py"}
"""What the demo did is of interest to the command line alone."""


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text()))


@pytest.mark.parametrize("file", VIEWS, ids=named)
def test_a_view_knows_no_terminal(file: Path) -> None:
    for node in nodes(file):
        if isinstance(node, ast.Import):
            imported = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported = {(node.module or "").split(".")[0]}
        else:
            imported = set()
        assert not imported & OF_A_PROGRAM
        used = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        assert used not in ("isatty", "environ", "getenv", "get_terminal_size", "input", "print")


@pytest.mark.parametrize("file", VIEWS, ids=named)
def test_a_view_is_a_function_that_returns_plain_data(file: Path) -> None:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.endswith(("_view", "_views")):
            assert node.returns is not None
            returned = ast.unparse(node.returns)
            assert returned.startswith(("dict[str, Any]", "list[")), f"{node.name}: {returned}"


@pytest.mark.parametrize("file", COMMAND_LINE, ids=named)
def test_the_command_line_prints_views(file: Path) -> None:
    if str(file.relative_to(SOURCE / "cli")) in OWN_SHAPES:
        return
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef):
            assert not node.name.endswith("_fields"), f"{file}:{node.lineno}"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print_json":
            assert not isinstance(node.args[0], ast.Dict), f"{file}:{node.lineno}"
