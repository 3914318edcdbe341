"""The examples in the documentation run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, code in enumerate(
            re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)
        ):
            found.append((f"{page.name}-{number}", code))
    return found


@pytest.mark.parametrize(("name", "code"), blocks("python"), ids=lambda x: x[:30])
def test_python_examples_run(name: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{name}: {done.stderr}"


@pytest.mark.parametrize(("name", "code"), blocks("python agent"), ids=lambda x: x[:30])
def test_agents_run_under_the_supervisor(name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(code)
    mulligan = [sys.executable, "-m", "mulligan"]
    for arguments in (["init"], ["run", "--restart", "never", "--", sys.executable, "agent.py"]):
        done = subprocess.run(
            [*mulligan, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"


@pytest.mark.parametrize(("name", "code"), blocks("console"), ids=lambda x: x[:30])
def test_console_examples_run(name: str, code: str, tmp_path: Path) -> None:
    commands = [line[2:] for line in code.splitlines() if line.startswith("$ ")]
    assert commands, f"{name} has no commands"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {command}: {done.stderr}"


@pytest.mark.parametrize(("name", "code"), blocks("console"), ids=lambda x: x[:30])
def test_console_examples_run_in_one_shell(name: str, code: str, tmp_path: Path) -> None:
    """As people copy them: every command follows the one before it."""
    commands = [line[2:] for line in code.splitlines() if line.startswith("$ ")]
    done = subprocess.run(
        ["/bin/sh", "-e"],
        input="\n".join(commands),
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{name}: {done.stderr}"


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_test_and_module_that_is_named_exists() -> None:
    """FORMAT names a test for each MUST: one that was moved or deleted would hold nothing."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = {
        (page.name, path)
        for page in pages
        if page.name != "CHANGELOG.md"
        for path in re.findall(r"(?:tests|src/mulligan)/[\w/]*\w(?:\.py|\.json)?", page.read_text())
    }
    assert len(named) > 20
    missing = [pair for pair in named if not (ROOT / pair[1]).exists()]
    assert sorted(missing) == []
