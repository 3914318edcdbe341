"""Parts as they are named in a subdirectory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def inside(store: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A call in ``src``, which has changed since the checkpoint ``one``, as has the rest."""
    (place / "src/deep").mkdir(parents=True)
    for name in ("src/app.py", "src/both.py", "both.py", "top.py", "src/gone.py", "src/memory"):
        (place / name).write_text("one")
    store("state", "set", "memory/x", "1")
    store("checkpoint", "--label", "one")
    store("state", "set", "memory/x", "2")
    for name in ("src/app.py", "src/both.py", "both.py", "top.py", "src/memory"):
        (place / name).write_text("two")
    (place / "src/gone.py").unlink()
    monkeypatch.chdir(place / "src")
    return store


@pytest.mark.parametrize(
    ("named", "part"),
    [
        ("app.py", "workspace/src/app.py"),
        ("./app.py", "workspace/src/app.py"),
        ("src/app.py", "workspace/src/app.py"),
        ("gone.py", "workspace/src/gone.py"),
        ("top.py", "workspace/top.py"),
        ("../top.py", "workspace/top.py"),
        ("./both.py", "workspace/src/both.py"),
        ("workspace/both.py", "workspace/both.py"),
        ("memory", "memory"),
        ("./memory", "workspace/src/memory"),
    ],
)
def test_a_part_in_a_subdirectory(inside: Cli, place: Path, named: str, part: str) -> None:
    done = inside("restore", "one", "--only", named, "--json")
    assert done.code == 0, done.err
    assert done.json["only"] == [part]
    if part.startswith("workspace/"):
        assert (place / part.removeprefix("workspace/")).read_text() == "one"
    else:
        assert inside("state", "get", "memory/x").json == 1


def test_a_file_here_and_at_the_top_is_asked_for(inside: Cli, place: Path) -> None:
    refused = inside("restore", "one", "--only", "both.py")
    assert refused.code == 2
    assert "./both.py or workspace/both.py" in refused.err
    assert (place / "both.py").read_text() == (place / "src/both.py").read_text() == "two"


def test_diff_and_copies_know_parts_in_a_subdirectory(inside: Cli, place: Path) -> None:
    assert inside("diff", "one", "--only", "app.py", "--name-only").out == "src/app.py\n"
    copied = inside("restore", "one", "--only", "gone.py", "--to", "copy")
    assert copied.code == 0, copied.err
    assert (place / "src/copy/src/gone.py").read_text() == "one"


def test_what_is_nowhere_is_named_as_it_was(inside: Cli) -> None:
    missing = inside("restore", "one", "--only", "nothing.py")
    assert missing.code == 42
    assert "'nothing.py'" in missing.err


def test_a_part_that_is_not_there_names_what_all_files_are_called(store):
    store("checkpoint")
    failed = store("restore", "@latest", "--only", "files")
    assert failed.code != 0
    assert "workspace for all files" in failed.err
