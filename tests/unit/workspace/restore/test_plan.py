"""Plans: what a restore would do is what it does; other sessions' later changes are shown."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from mulligan import Session
from mulligan.model import Checkpoint, FileChange, Plan
from mulligan.store import Store
from mulligan.testing.clock import FakeClock
from mulligan.testing.stores import open_store
from tests.pictures import Picture, picture
from tests.trees import plain_tree


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(tick=1.0)


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    with open_store(tmp_path / "store", clock=clock) as opened:
        yield opened


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "src").mkdir(parents=True)
    (made / "src" / "app.py").write_text("print('one')\n")
    (made / "notes.txt").write_text("notes\n")
    (made / "tool").write_text("#!/bin/sh\n")
    return made


def by_path(plan: Plan) -> dict[str, FileChange]:
    return {change.path: change for change in plan.files}


def test_a_plan_names_every_kind_of_change(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "src" / "app.py").write_text("print('changed')\n")
    (work / "notes.txt").rename(work / "src" / "moved.txt")
    (work / "tool").chmod(0o755)
    (work / "new").mkdir()
    (work / "new" / "file").write_text("new")
    (work / "dangling").symlink_to("nowhere")
    plan = session.files.plan(made)
    assert plan
    assert plan.point.checkpoint == made.id
    shown = by_path(plan)
    assert {path: (change.change, change.kind) for path, change in shown.items()} == {
        "src/app.py": ("changed", "file"),
        "notes.txt": ("renamed", "file"),
        "tool": ("attributes", "file"),
        "new": ("removed", "directory"),
        "new/file": ("removed", "file"),
        "dangling": ("removed", "symlink"),
    }
    assert shown["notes.txt"].old_path == "src/moved.txt"
    assert (shown["tool"].old_mode, shown["tool"].mode) == (0o755, 0o644)
    assert (shown["src/app.py"].old_size, shown["src/app.py"].size) == (17, 13)


def test_a_plan_changes_nothing(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "src" / "app.py").write_text("changed")
    (work / "new").write_text("new")
    before, head, marks = picture(work), session.head, session.checkpoints()
    stats = {path: os.lstat(path).st_ctime_ns for path in work.rglob("*")}
    for _ in range(3):
        assert len(session.files.plan(made).files) == 2
    assert (picture(work), session.head, session.checkpoints()) == (before, head, marks)
    assert {path: os.lstat(path).st_ctime_ns for path in work.rglob("*")} == stats


def test_there_is_nothing_to_plan_where_nothing_differs(session: Session, work: Path) -> None:
    made = session.checkpoint()
    plan = session.files.plan(made)
    assert not plan
    assert plan.conflicts == ()


@pytest.mark.parametrize("seed", range(8))
def test_what_a_plan_says_is_what_a_restore_does(session: Session, work: Path, seed: int) -> None:
    rng = random.Random(seed)
    (work / ".mulliganignore").write_text("*.log\n")
    for _ in range(12):
        mutate(work, rng)
    made = session.checkpoint()
    for _ in range(8):
        mutate(work, rng)
    before = picture(work)
    plan = session.files.plan(made)
    done = session.restore(made)
    assert done.problems == ()
    assert paths(plan) == differing(before, picture(work))


def mutate(work: Path, rng: random.Random) -> None:
    place = work / rng.choice(("a", "b", "c")) / rng.choice(("a", "b", "c"))
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{rng.randrange(4)}{rng.choice(('.txt', '.txt', '.log'))}"
    roll = rng.random()
    if roll < 0.6:
        file.write_bytes(rng.randbytes(8))
    elif roll < 0.75 and file.exists():
        file.chmod(rng.choice((0o600, 0o700)))
    elif roll < 0.9:
        file.unlink(missing_ok=True)
    elif not any(place.rglob("*.log")):
        shutil.rmtree(place)


def paths(plan: Plan) -> set[bytes]:
    """Return what a plan touches; of a rename both ends."""
    found = {os.fsencode(change.path) for change in plan.files}
    return found | {os.fsencode(c.old_path) for c in plan.files if c.old_path is not None}


def differing(before: Picture, after: Picture) -> set[bytes]:
    """Return the paths that differ, apart from the times of directories."""
    found = set()
    for path in {*before, *after}:
        one, other = before.get(path), after.get(path)
        if one and other and one.kind == other.kind == "directory":
            one, other = one._replace(mtime=0), other._replace(mtime=0)
        if one != other:
            found.add(path)
    return found


def test_a_plan_of_parts_names_only_them(session: Session, work: Path) -> None:
    session.state.set("memory", 1)
    made = session.checkpoint()
    (work / "src" / "app.py").write_text("changed")
    (work / "notes.txt").write_text("changed")
    assert set(by_path(session.files.plan(made, only=["src"]))) == {"src/app.py"}
    assert set(by_path(session.files.plan(made, only=["notes.txt"]))) == {"notes.txt"}
    assert set(by_path(session.files.plan(made, only=["workspace"]))) == {"src/app.py", "notes.txt"}
    assert not session.files.plan(made, only=["memory"])


# --- two sessions on one directory -----------------------------------------------------------


def test_other_sessions_later_changes_are_shown(store: Store, session: Session, work: Path) -> None:
    made = session.checkpoint()
    other = store.session("other", workspace=work)
    first = other.checkpoint()
    (work / "src" / "app.py").write_text("by the other")
    (work / "src" / "more.py").write_text("by the other")
    second = other.checkpoint()
    [conflict] = session.files.plan(made).conflicts
    assert "session 'other' changed 2 paths" in conflict
    assert second.id[:12] in conflict
    assert first.id[:12] not in conflict, "it changed nothing"
    assert second.time.astimezone().isoformat(" ", "seconds") in conflict, "local, as in the log"


def test_a_session_is_one_line_however_many_checkpoints_it_took(
    store: Store, session: Session, work: Path
) -> None:
    made = session.checkpoint()
    for name in ("other", "third"):
        other = store.session(name, workspace=work)
        for number in range(3):
            (work / f"{name}-{number}").write_text(name)
            last = other.checkpoint()
    first, second = session.files.plan(made).conflicts
    changed = "session 'third' changed 6 paths after that point, up to its checkpoint"
    assert "session 'other' changed 3 paths after that point" in first
    assert f"{changed} {last.id[:12]}" in second
    assert second.endswith("; a restore takes that back, too")


def test_what_the_other_did_before_the_point_is_no_conflict(
    store: Store, session: Session, work: Path
) -> None:
    other = store.session("other", workspace=work)
    (work / "notes.txt").write_text("by the other")
    other.checkpoint()
    made = session.checkpoint()
    (work / "notes.txt").write_text("changed")
    assert session.files.plan(made).conflicts == ()


def test_sessions_of_other_directories_and_without_files_are_no_conflict(
    store: Store, session: Session, work: Path, tmp_path: Path
) -> None:
    made = session.checkpoint()
    (tmp_path / "else").mkdir()
    elsewhere = store.session("elsewhere", workspace=tmp_path / "else")
    (tmp_path / "else" / "file").write_text("1")
    elsewhere.checkpoint()
    plain = store.session("plain")
    plain.state.set("a", 1)
    plain.checkpoint()
    fork = session.fork(made, workspace=tmp_path / "fork")
    (tmp_path / "fork" / "file").write_text("1")
    fork.checkpoint()
    (work / "notes.txt").write_text("changed by ourselves")
    session.checkpoint()
    assert session.files.plan(made).conflicts == ()


def test_a_fork_that_works_in_the_same_directory_is_a_conflict(
    store: Store, session: Session, work: Path, clock: FakeClock
) -> None:
    (work / "notes.txt").write_text("two")
    made = session.checkpoint()
    session.fork(made, name="fork")
    clock.advance(timedelta(hours=1).total_seconds())
    fork = store.session("fork", workspace=work)
    (work / "notes.txt").write_text("by the fork")
    fork.checkpoint()
    [conflict] = session.files.plan(made).conflicts
    assert "session 'fork' changed 1 path" in conflict


def test_restoring_another_sessions_point_shows_what_it_did_since(
    store: Store, session: Session, work: Path
) -> None:
    other = store.session("other", workspace=work)
    made = other.checkpoint()
    (work / "notes.txt").write_text("by the other")
    other.checkpoint()
    [conflict] = session.files.plan(made).conflicts
    assert "session 'other' changed 1 path" in conflict


def test_a_large_directory_is_compared_by_what_differs_in_it(session: Session, work: Path) -> None:
    """It grows from a few names to many, to very many, and back again."""
    source = random.Random(3)
    made = [session.checkpoint()]
    for count in (30, 70, 90, 1500, 1600, 1500, 90, 80, 40):
        for number in range(1600):
            path = work / "src" / f"name-{number}"
            if number < count and (not path.exists() or source.random() < 0.02):
                path.write_bytes(source.randbytes(source.choice([0, 4])))
            elif number >= count:
                path.unlink(missing_ok=True)
        made.append(session.checkpoint())
        for older in made[-3:-1]:
            differing = {change.path: change for change in session.diff(older, made[-1]).files}
            assert differing.keys() == apart(session, older, made[-1])


def apart(session: Session, one: Checkpoint, other: Checkpoint) -> set[str]:
    """Return the files that differ, by looking at each; a moved one is named by its new place."""
    before, after = entries(session, one), entries(session, other)
    return {f"src/{name}" for name in before.keys() | after if before.get(name) != after.get(name)}


def entries(session: Session, made: Checkpoint) -> dict[str, object]:
    found: dict[str, object] = plain_tree(session._engine.load, made.workspace)["src"]
    return {name: entry for name, entry in found.items() if name}
