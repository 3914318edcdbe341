"""The demo, as people run it: a process that starts, kills and resumes processes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mulligan

PATIENCE = 100
SOURCES = sorted(Path(mulligan.__file__).parent.glob("cli/demo/*.py"))
DEMO = [sys.executable, "-c", "from mulligan.cli.main import main; main()", "demo"]


def run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a demo without a terminal, its temporary files in a directory of their own."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, "TMPDIR": str(directory)},
    )


def run_demo(*args: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the demo as people do."""
    return run([*DEMO, *args], directory)


def test_the_demo_tells_a_story_that_holds(tmp_path: Path):
    done = run_demo(directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "✗" not in done.stdout
    assert "\x1b" not in done.stdout
    for word in (
        "kill -9",
        "resumes",
        "Roll back",
        "rm -rf src",
        "Fork",
        "prune",
        "drill",
        "Verify",
        "timeline",
    ):
        assert word in done.stdout
    # The logs after the story are as wide as their notes, without a terminal.
    story, _, _ = done.stdout.partition("Verify")
    assert max(map(len, story.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a demo says of itself that keeps its files."""
    done = run_demo("--json", "--keep", directory=tmp_path_factory.mktemp("demo"))
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_facts_of_the_demo_are_in_the_store_it_keeps(facts: dict[str, Any]):
    assert facts["ok"] is True
    assert facts["seconds"] > 0
    assert facts["killed"]["pid"] != facts["resumed"]["pid"]
    assert facts["killed"]["acknowledged"] >= 6
    assert facts["resumed"]["epoch"] == 2
    assert all(check["ok"] for check in facts["checks"])
    assert facts["wrecked"]["paths"] > 10
    assert facts["branches"]["differences"]["files"] > 0
    assert facts["upkeep"]["removed"] > 0
    assert facts["upkeep"]["drilled_files"] > 10
    with mulligan.open(facts["store"], create=False) as store:
        names = {session.name for session in store.sessions()}
        assert names == {*facts["branches"]["sessions"], "demo-team"}
        assert facts["team"]["agent"] != facts["team"]["supervisor"]
        assert store.verify().ok
        session = store.session("demo")
        killed = next(e for e in session.events() if e.seq == facts["killed"]["seq"])
        assert killed.payload["values"][0]["step"] == "2.0"


def test_the_files_of_the_demo_are_whole_in_the_end(facts: dict[str, Any]):
    project = Path(facts["store"])
    branch = project.parent / "rewrite"
    for directory in (project, branch):
        assert (directory / "src/logo.png").read_bytes() == bytes(range(256)) * 64
        assert (directory / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (directory / "current").readlink() == Path("src/login.py")
        assert not (directory / "junk.tmp").exists()
    assert "UTC" in (project / "notes/4.md").read_text()
    assert "session store" in (branch / "notes/4.md").read_text()
    with mulligan.open(project, create=False) as store:
        wreck = store.session("demo").checkpoints.at("before-cleanup")
        assert wreck.coverage is not None
        assert wreck.coverage.files == 13


def test_the_demo_holds_on_a_slow_machine(tmp_path: Path):
    """On a busy machine agents and supervisor are killed long after the event waited for."""
    script = (
        "import sys, time; from mulligan.cli.demo import story as demo_story\n"
        "real = demo_story.wait_for\n"
        "def late(look):\n"
        "    found = real(look)\n"
        "    time.sleep(0.5)\n"
        "    return found\n"
        "demo_story.wait_for = late\n"
        "from mulligan.cli.main import run; sys.exit(run(['demo']))"
    )
    done = run([sys.executable, "-c", script], tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_restore_that_loses_a_byte_fails_the_demo(tmp_path: Path):
    script = (
        "import sys; from mulligan.cli.demo import story as demo_story; real = demo_story.picture\n"
        "def spoil(directory):\n"
        "    file = directory / 'src/logo.png'\n"
        "    if file.exists() and (directory / '.mulligan').exists() and spoil.armed:\n"
        "        file.write_bytes(file.read_bytes()[:-1])\n"
        "    spoil.armed = not file.exists()\n"
        "    return real(directory)\n"
        "spoil.armed = False; demo_story.picture = spoil\n"
        "from mulligan.cli.main import run; sys.exit(run(['demo']))"
    )
    done = run([sys.executable, "-c", script], tmp_path)
    assert done.returncode == 1
    assert "✗ not so: a restore brings all back" in done.stdout


def test_a_check_that_fails_fails_the_demo(tmp_path: Path):
    script = (
        "import sys; from mulligan.cli.demo import story as demo_story; "
        "demo_story.completions = lambda session: {}; "
        "from mulligan.cli.main import run; sys.exit(run(['demo']))"
    )
    done = run([sys.executable, "-c", script], tmp_path)
    assert done.returncode == 1
    assert "✗ not so: each of the 6 tasks" in done.stdout
    assert "This check failed: each of the 6 tasks" in done.stderr


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_the_demo_uses_the_public_api_alone(file: Path):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert not [a.name for a in node.names if a.name.startswith("mulligan.")]
        elif isinstance(node, ast.ImportFrom) and node.module == "mulligan":
            assert {a.name for a in node.names} <= set(mulligan.__all__)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("mulligan."):
            assert str(node.module).startswith("mulligan.cli.")
        elif isinstance(node, ast.Attribute):
            assert node.attr != "internal"
