"""Caches of tools beside files that a restore changes or deletes: they go, nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mulligan
from mulligan import Session
from mulligan.store import Store
from tests.nobody import as_nobody, place_of_nobody
from tests.pictures import Picture, picture

SECOND = 1_700_000_000
CACHES = (b"__pycache__", b".mypy_cache", b".pytest_cache", b".ruff_cache", b".DS_Store")


def fill(work: Path, *paths: str) -> None:
    for path in paths:
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(path)


def source(work: Path, path: str, text: str) -> None:
    """Write a source as two edits in one second leave it: only its content differs."""
    fill(work, path)
    (work / path).write_text(text)
    os.utime(work / path, (SECOND, SECOND))


def python(work: Path, code: str) -> str:
    command = [sys.executable, "-c", code]
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}
    done = subprocess.run(
        command, cwd=work, env=variables, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def paths(work: Path) -> set[str]:
    return {os.fsdecode(path) for path in picture(work)} - {""}


def held(work: Path) -> Picture:
    """Return what checkpoints hold of a directory."""
    return picture(work, skip=CACHES)


# --- what Python does --------------------------------------------------------------------------


def test_python_imports_the_code_that_was_brought_back(session: Session, work: Path) -> None:
    source(work, "pkg/one.py", "VALUE = 1\n")
    source(work, "pkg/other.py", "VALUE = 1\n")
    made = session.checkpoint()
    source(work, "pkg/one.py", "VALUE = 2\n")
    assert python(work, "import pkg.one, pkg.other; print(pkg.one.VALUE)") == "2"
    [compiled] = (work / "pkg/__pycache__").glob("one.*.pyc")
    plan = session.files.plan(made)
    assert plan.caches == (str(compiled.relative_to(work)),)
    assert session.restore(made).problems == ()
    assert python(work, "import pkg.one; print(pkg.one.VALUE)") == "1"
    assert list((work / "pkg/__pycache__").glob("other.*.pyc"))  # of a module that did not change
    assert session.undo().problems == ()
    assert python(work, "import pkg.one; print(pkg.one.VALUE)") == "2"


def test_code_that_was_deleted_meanwhile_is_imported_as_it_was(
    session: Session, work: Path
) -> None:
    source(work, "one.py", "VALUE = 1\n")
    made = session.checkpoint()
    source(work, "one.py", "VALUE = 2\n")
    assert python(work, "import one; print(one.VALUE)") == "2"
    (work / "one.py").unlink()
    assert session.restore(made).problems == ()
    assert python(work, "import one; print(one.VALUE)") == "1"


def test_a_package_that_goes_can_not_be_imported(session: Session, work: Path) -> None:
    source(work, "pkg/one.py", "VALUE = 1\n")
    before, made = held(work), session.checkpoint()
    source(work, "pkg/new/__init__.py", "VALUE = 2\n")
    source(work, "added/deep/one.py", "VALUE = 2\n")
    assert python(work, "import pkg.new, added.deep.one; print('both')") == "both"
    after = held(work)
    plan = session.files.plan(made)
    assert plan.caches == ("added/deep/__pycache__", "pkg/new/__pycache__")
    assert {c.path for c in plan.files if c.kind == "directory"} == {
        "added",
        "added/deep",
        "pkg/new",
    }
    assert session.restore(made).problems == ()
    assert not (work / "added").exists()
    assert held(work) == before
    for module in ("added", "added.deep", "pkg.new"):
        assert "ModuleNotFoundError" in python(work, f"import {module}")
    assert session.undo().problems == ()
    assert held(work) == after
    assert session.redo().problems == ()
    assert held(work) == before


def test_the_cache_goes_when_no_module_is_left_in_it(session: Session, work: Path) -> None:
    source(work, "src/one.py", "VALUE = 1\n")
    before, made = held(work), session.checkpoint()
    source(work, "src/one.py", "VALUE = 2\n")
    fill(work, "src/__pycache__/one.cpython-311.pyc", "src/__pycache__/one.cpython-311.opt-1.pyc")
    assert len(session.files.plan(made).caches) == 2
    assert session.restore(made).problems == ()
    assert not (work / "src/__pycache__").exists()
    assert held(work) == before


def test_parts_of_files_remove_caches_of_their_own(session: Session, work: Path) -> None:
    source(work, "one.py", "VALUE = 1\n")
    source(work, "two.py", "VALUE = 1\n")
    made = session.checkpoint()
    source(work, "one.py", "VALUE = 2\n")
    source(work, "two.py", "VALUE = 2\n")
    fill(work, "__pycache__/one.x.pyc", "__pycache__/two.x.pyc", "__pycache__/on.pyc")
    assert session.files.plan(made, ["one.py"]).caches == ("__pycache__/one.x.pyc",)
    assert session.restore(made, ["one.py"]).problems == ()
    assert {path.name for path in (work / "__pycache__").iterdir()} == {"two.x.pyc", "on.pyc"}


# --- which caches ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.py", "a.pyi", "deep/a.py"])
def test_what_mypy_knows_goes_with_a_source_below_it(
    session: Session, work: Path, name: str
) -> None:
    source(work, f"src/{name}", "x = 1\n")
    (work / "docs").mkdir()
    made = session.checkpoint()
    fill(work, ".mypy_cache/3.12/cache.db", "src/.mypy_cache/cache.db", "docs/.mypy_cache/db")
    source(work, f"src/{name}", "x = 2\n")
    before = held(work)
    assert session.files.plan(made).caches == (".mypy_cache", "src/.mypy_cache")
    session.restore(made, [f"src/{name}"])
    assert not (work / ".mypy_cache").exists()
    assert (work / "docs/.mypy_cache/db").exists()
    assert held(work)[b""] == before[b""]  # its time, too
    session.undo()
    assert held(work) == before


def test_nothing_goes_beside_files_that_no_tool_compiles(session: Session, work: Path) -> None:
    fill(work, "src/a.txt", "src/b.py")
    made = session.checkpoint()
    fill(work, "src/__pycache__/a.x.pyc", ".mypy_cache/db", "src/.pytest_cache/x", ".ruff_cache/x")
    (work / "src/a.txt").write_text("changed")
    os.utime(work / "src/b.py", (1, 1))  # its content is the same
    before = paths(work)
    assert session.files.plan(made).caches == ()
    assert session.restore(made).problems == ()
    assert paths(work) == before


def test_what_decides_nothing_goes_only_with_its_directory(session: Session, work: Path) -> None:
    source(work, "a.py", "x = 1\n")
    made = session.checkpoint()
    source(work, "a.py", "x = 2\n")
    caches = (".pytest_cache/x", ".ruff_cache/x", ".DS_Store")
    fill(work, *caches, "new/a.py", *(f"new/{path}" for path in caches))
    assert session.files.plan(made).caches == (
        "new/.DS_Store",
        "new/.pytest_cache",
        "new/.ruff_cache",
    )
    assert session.restore(made).problems == ()
    assert paths(work) == {"a.py", ".pytest_cache", ".ruff_cache", *caches}


DEAR = [".tox/env/bin/python", ".nox/env/x", ".hypothesis/examples/x", ".opencode/node_modules/a/x"]


@pytest.mark.parametrize("name", DEAR)
def test_what_is_dear_stays_with_its_directory(session: Session, work: Path, name: str) -> None:
    made = session.checkpoint()
    fill(work, "new/a.py", "new/__pycache__/a.x.pyc", f"new/{name}", "new/sub/__pycache__/b.pyc")
    assert session.restore(made).problems == ()
    assert (work / "new" / name).read_text() == f"new/{name}"
    assert not (work / "new/__pycache__").exists()
    assert not (work / "new/sub").exists()


def test_what_the_user_leaves_out_is_never_touched(session: Session, work: Path) -> None:
    fill(work, "a.py", "gen/a.py")
    (work / ".mulliganignore").write_text("*cache*/\nbuild/\nnew/secret\n")
    made = session.checkpoint()
    source(work, "a.py", "x = 2\n")
    mine = {"__pycache__/a.x.pyc", "build/__pycache__/a.x.pyc", ".mypy_cache/db", "new/secret"}
    fill(work, *mine, "new/a.py", "new/.DS_Store")
    plan = session.files.plan(made)
    assert plan.caches == ()
    assert session.restore(made).problems == ()
    assert mine <= paths(work)
    assert "new/.DS_Store" in paths(work)  # its directory stays


def test_what_the_user_takes_in_is_a_file_like_any_other(session: Session, work: Path) -> None:
    (work / ".mulliganignore").write_text("!__pycache__/\n")
    source(work, "a.py", "x = 1\n")
    fill(work, "__pycache__/a.x.pyc")
    before, made = picture(work), session.checkpoint()
    source(work, "a.py", "x = 2\n")
    (work / "__pycache__/a.x.pyc").write_text("other")
    fill(work, "__pycache__/b.x.pyc")
    assert session.files.plan(made).caches == ()
    assert session.restore(made).problems == ()
    assert picture(work) == before


def test_a_watcher_learns_that_caches_are_gone(store: Store, work: Path) -> None:
    session = store.session("run", workspace=work)
    session.internal.watch()
    source(work, "a.py", "x = 1\n")
    source(work, "b/a.py", "x = 1\n")
    made = session.checkpoint()
    source(work, "a.py", "x = 2\n")
    fill(work, "__pycache__/a.x.pyc", ".mypy_cache/db", "b/__pycache__/b.pyc", "new/.DS_Store")
    before = held(work)
    for _ in range(2):
        assert session.restore(made).problems == ()
        taken = session.checkpoint()
        assert taken.coverage is not None
        assert {left.path for left in taken.coverage.left_out} == {"b/__pycache__"}
        session.undo()
        assert held(work) == before
    session.close()


# --- ways to fail ------------------------------------------------------------------------------


def test_no_link_leads_out_of_a_cache(session: Session, work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    fill(outside, "a.x.pyc", "deep/file")
    source(work, "a.py", "x = 1\n")
    source(work, "b/a.py", "x = 1\n")
    made = session.checkpoint()
    source(work, "a.py", "x = 2\n")
    source(work, "b/a.py", "x = 2\n")
    fill(work, "b/__pycache__/x", "new/a.py", "new/__pycache__/x")
    (work / "__pycache__").symlink_to(outside)
    (work / ".mypy_cache").symlink_to(outside)
    (work / "b/__pycache__/a.link.pyc").symlink_to(outside / "a.x.pyc")
    (work / "new/__pycache__/link").symlink_to(outside)
    before = picture(outside)
    assert session.restore(made).problems == ()
    assert picture(outside) == before
    assert paths(work) == {"a.py", "b", "b/a.py", "b/__pycache__", "b/__pycache__/x"}


def test_a_file_takes_the_place_of_a_directory_with_a_cache(session: Session, work: Path) -> None:
    fill(work, "place")
    made = session.checkpoint()
    (work / "place").unlink()
    fill(work, "place/a.py", "place/__pycache__/a.x.pyc")
    assert session.restore(made).problems == ()
    assert (work / "place").read_text() == "place"


@pytest.mark.parametrize("name", [b"n\xe9", b"a b", "ä".encode()])
def test_names_of_directories_are_bytes(session: Session, work: Path, name: bytes) -> None:
    made = session.checkpoint()
    new = work / os.fsdecode(name)
    fill(new, "a.py", "__pycache__/a.x.pyc")
    assert session.restore(made).problems == ()
    assert not new.exists()


def test_a_directory_that_nobody_may_write_to_loses_its_cache() -> None:
    with place_of_nobody() as place:
        as_nobody(lambda: closed_directory(place))


def closed_directory(place: Path) -> None:
    work = place / "work"
    source(work, "src/a.py", "x = 1\n")
    with mulligan.open(place / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        source(work, "src/a.py", "x = 2\n")
        fill(work, ".mypy_cache/db", "src/__pycache__/a.x.pyc")
        work.chmod(0o500)
        (work / "src").chmod(0o700)
        assert session.restore(made, ["src/a.py"]).problems == ()
        assert work.stat().st_mode & 0o777 == 0o500
        assert not (work / ".mypy_cache").exists()
        work.chmod(0o700)


def test_a_cache_that_can_not_be_removed_is_named() -> None:
    with place_of_nobody() as place:
        work = place / "work"
        source(work, "a.py", "x = 1\n")
        fill(work, "__pycache__/a.x.pyc")
        os.chown(work, 65534, 65534)
        os.chown(work / "a.py", 65534, 65534)
        as_nobody(lambda: foreign_cache(place))


def foreign_cache(place: Path) -> None:
    work = place / "work"
    with mulligan.open(place / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        source(work, "a.py", "x = 2\n")
        [problem] = session.restore(made).problems
        assert (problem.where, problem.detail) == ("__pycache__/a.x.pyc", "Permission denied")
        assert (work / "a.py").read_text() == "x = 1\n"
