"""Shell completion: commands, points, labels and sessions."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from mulligan.cli.main import group
from tests.cli.conftest import Cli


def offered(*args: str, start: str = "") -> list[str]:
    completion = BashComplete(group, {}, "mulligan", "_MULLIGAN_COMPLETE")
    return [str(item.value) for item in completion.get_completions(list(args), start)]


@pytest.fixture
def used(store: Cli) -> list[str]:
    """A store with two checkpoints, newest first, one of them labelled."""
    first = store("checkpoint", "--label", "tests-green").out.strip()
    store("checkpoint", "--label", "two words")
    store("checkpoint", "-s", "nightly", "--create", "--label", "elsewhere")
    return [store("checkpoint").out.strip(), first]


@pytest.mark.parametrize(
    "args",
    [
        ["show"],
        ["restore"],
        ["fork"],
        ["mark"],
        ["diff"],
        ["diff", "@latest"],
        ["events", "--since"],
        ["bisect", "--good"],
        ["drill"],
        ["resume", "--from"],
        ["state", "get", "--at"],
    ],
    ids=" ".join,
)
def test_points(used: list[str], args: list[str]) -> None:
    found = offered(*args)
    assert {"@latest", "@good", "@bad", "tests-green", used[0][:12]} <= {*found}
    assert "two words" not in found
    assert offered(*args, start="tes") == ["tests-green"]
    assert used[1][:12] in offered(*args, start=used[1][:4])


def test_points_of_the_session_that_is_named(used: list[str]) -> None:
    assert offered("show", "-s", "nightly", start="el") == ["elsewhere"]
    assert offered("-s", "nightly", "show", start="el") == ["elsewhere"]


def test_sessions_and_labels(used: list[str]) -> None:
    for args in (["log", "-s"], ["-s"], ["log", "--session"], ["resume"]):
        assert offered(*args, start="n") == ["nightly"]
    assert offered("label", "--drop") == ["tests-green"]


def test_tasks_agents_and_topics(used: list[str], store) -> None:
    store("tasks", "add", "write it", "--id", "write-it")
    for command in ("claim", "complete", "fail", "retry"):
        assert offered("tasks", command, start="wr") == ["write-it"]
    for command in ("install", "uninstall", "doctor"):
        assert offered(command, start="c") == ["claude", "codex"]
    assert offered("help", start="rew") == ["rewind", "rewinding"]


def test_commands(place: Path) -> None:
    assert offered(start="che") == ["checkpoint"]


def test_without_a_store_nothing_is_offered_and_nothing_is_said(place: Path, capfd) -> None:
    assert offered("show") == []
    assert offered("log", "-s") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_a_label(used: list[str], place: Path, path_with_mulligan: str) -> None:
    script = (
        'eval "$(_MULLIGAN_COMPLETE=bash_source mulligan)"; COMP_WORDS=(mulligan restore tes); '
        'COMP_CWORD=2; _mulligan_completion mulligan; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env={**os.environ, "PATH": path_with_mulligan},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("tests-green\n", "")


@pytest.mark.parametrize(("shell", "said"), [("zsh", "#compdef mulligan"), ("fish", "complete ")])
def test_the_other_shells_have_a_script(process, shell: str, said: str) -> None:
    started = process(env={**os.environ, "_MULLIGAN_COMPLETE": f"{shell}_source"})
    out, _ = started.communicate()
    assert said in out
