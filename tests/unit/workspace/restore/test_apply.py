"""Restoring files: exactly what was there, nothing lost, nothing touched that is not covered."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan import Session
from mulligan.errors import (
    MulliganError,
    PathNotFound,
    RestoreBusy,
    UnknownPoint,
    UnsafeName,
    UnsafeWorkspace,
)
from mulligan.failpoints import Failpoint
from mulligan.model import Checkpoint, Digest, ObjectKind, Restored
from mulligan.store import Store
from mulligan.testing.stores import open_store
from mulligan.workspace.locks import lock_name
from mulligan.workspace.restore.swap import TEMPORARY_PREFIX
from tests.nobody import as_nobody, place_of_nobody
from tests.pictures import Picture, picture, without_times
from tests.trees import checkpoint_of


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "src").mkdir(parents=True)
    (made / "src" / "app.py").write_text("print('one')\n")
    (made / "src" / "run.sh").write_text("#!/bin/sh\n")
    (made / "src" / "run.sh").chmod(0o755)
    (made / "notes.txt").write_text("notes\n")
    (made / "empty").mkdir()
    (made / "link").symlink_to("notes.txt")
    return made


def wreck(work: Path) -> None:
    """Do what a shell command of an agent might do."""
    (work / "src" / "app.py").write_text("garbage")
    (work / "src" / "run.sh").chmod(0o600)
    (work / "notes.txt").unlink()
    (work / "link").unlink()
    (work / "link").mkdir()
    (work / "link" / "in").write_text("new")
    (work / "empty").rmdir()
    (work / "empty").write_text("a file now")
    (work / "new" / "deep").mkdir(parents=True)
    (work / "new" / "deep" / "file").write_text("new")


def drafts(work: Path) -> list[str]:
    return [
        str(path) for path in work.rglob("*") if path.name.encode().startswith(TEMPORARY_PREFIX)
    ]


def details(done: Restored) -> dict[str, str]:
    return {problem.where: problem.detail for problem in done.problems}


# --- there and back --------------------------------------------------------------------------


def test_files_and_state_come_back_together_and_undo_takes_both_back(
    session: Session, work: Path
) -> None:
    session.state.set("memory", {"step": 1})
    then, made = picture(work), session.checkpoint()
    wreck(work)
    session.state.set("memory", {"step": 2})
    wrecked = picture(work)
    done = session.restore(made)
    assert done.problems == ()
    assert done.files > 0
    assert (picture(work), session.state.get("memory/step")) == (then, 1)
    session.undo()
    assert (picture(work), session.state.get("memory/step")) == (wrecked, 2)
    session.redo()
    assert (picture(work), session.state.get("memory/step")) == (then, 1)


def test_the_safety_checkpoint_holds_the_present(
    session: Session, work: Path, tmp_path: Path
) -> None:
    made = session.checkpoint()
    wreck(work)
    wrecked = picture(work)
    done = session.restore(made)
    assert done.safety.safety
    assert session.files.copy(done.safety, tmp_path / "copy") == []
    assert picture(tmp_path / "copy") == wrecked


def test_twenty_steps_of_files_and_state_are_walked_back_and_forth_exactly(
    session: Session, work: Path
) -> None:
    rng = random.Random(7)
    points = []
    for step in range(5):
        change_something(work, rng, step)
        session.state.set("step", step)
        points.append((session.checkpoint(), picture(work)))
    shown: list[tuple[Picture, Any]] = []
    for step in range(20):
        change_something(work, rng, 100 + step)
        session.state.set("step", 100 + step)
        shown.append((picture(work), session.state.get("step")))
        made, then = rng.choice(points)
        assert session.restore(made).problems == ()
        assert picture(work) == then
    last = (picture(work), session.state.get("step"))
    for before in reversed(shown):
        assert session.undo().problems == ()
        assert (picture(work), session.state.get("step")) == before
    for _ in shown:
        assert session.redo().problems == ()
    assert (picture(work), session.state.get("step")) == last


def change_something(work: Path, rng: random.Random, number: int) -> None:
    (work / f"file-{rng.randrange(6)}").write_bytes(rng.randbytes(rng.randrange(2000)))
    (work / f"dir-{rng.randrange(3)}" / str(number)).mkdir(parents=True)
    victim = work / f"file-{rng.randrange(6)}"
    if victim.exists():
        victim.chmod(rng.choice((0o600, 0o644, 0o755)))
        os.utime(victim, ns=(1, rng.randrange(2 * 10**18)))
    gone = work / f"dir-{rng.randrange(3)}"
    if gone.exists() and rng.random() < 0.5:
        shutil.rmtree(gone)


def as_file(path: Path) -> None:
    path.write_text("a file")


def as_directory(path: Path) -> None:
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "file").write_text("in a directory")


def as_empty_directory(path: Path) -> None:
    path.mkdir()


def as_link(path: Path) -> None:
    path.symlink_to("src")


def as_nothing(path: Path) -> None:
    pass


KINDS = [as_file, as_directory, as_empty_directory, as_link, as_nothing]


@pytest.mark.parametrize("other", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("one", KINDS, ids=lambda kind: kind.__name__)
def test_one_kind_takes_the_place_of_another(
    session: Session, work: Path, one: Callable[[Path], None], other: Callable[[Path], None]
) -> None:
    path = work / "src" / "it"
    one(path)
    then, made = picture(work), session.checkpoint()
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    other(path)
    now = picture(work)
    assert session.restore(made).problems == ()
    assert picture(work) == then
    assert session.undo().problems == ()
    assert picture(work) == now


def test_a_restore_of_what_is_there_already_touches_nothing(session: Session, work: Path) -> None:
    made = session.checkpoint()
    before = {path: os.lstat(path) for path in [work, *work.rglob("*")]}
    done = session.restore(made)
    assert (done.files, done.problems) == (0, ())
    after = {path: os.lstat(path) for path in [work, *work.rglob("*")]}
    assert {p: (s.st_ino, s.st_ctime_ns) for p, s in before.items()} == {
        p: (s.st_ino, s.st_ctime_ns) for p, s in after.items()
    }


def test_unchanged_files_are_not_written_again(session: Session, work: Path) -> None:
    made = session.checkpoint()
    kept = os.lstat(work / "src" / "run.sh")
    (work / "src" / "app.py").write_text("changed")
    session.restore(made)
    now = os.lstat(work / "src" / "run.sh")
    assert (kept.st_ino, kept.st_ctime_ns) == (now.st_ino, now.st_ctime_ns)


def test_hard_linked_files_are_all_brought_back(session: Session, work: Path) -> None:
    names = ["one", "two", "src/three"]
    (work / "one").write_text("shared")
    for name in names[1:]:
        os.link(work / "one", work / name)
    then, made = picture(work), session.checkpoint()
    (work / "one").write_text("changed under every name")
    (work / "one").chmod(0o600)
    now = picture(work)
    assert session.restore(made).problems == ()
    assert picture(work) == then
    assert session.undo().problems == ()
    assert picture(work) == now
    for name in names:
        (work / name).unlink()
    assert session.restore(made).problems == ()
    assert picture(work) == then


def test_a_session_without_its_directory_restores_state_alone(
    store: Store, session: Session, work: Path
) -> None:
    session.state.set("a", 1)
    made = session.checkpoint()
    (work / "notes.txt").write_text("later")
    session.state.set("a", 2)
    done = store.session("run").restore(made)
    assert done.files == 0
    assert store.session("run").state.get("a") == 1
    assert (work / "notes.txt").read_text() == "later"


# --- plans -----------------------------------------------------------------------------------


def test_a_point_between_checkpoints_has_the_files_of_the_one_before(
    session: Session, work: Path
) -> None:
    then = picture(work)
    session.checkpoint()
    session.state.set("a", 1)
    between = session.head
    wreck(work)
    session.checkpoint()
    session.restore(between)
    assert picture(work) == then
    assert session.state.get("a") == 1


def test_a_point_before_all_files_restores_state_alone(session: Session, work: Path) -> None:
    session.state.set("a", 1)
    before = session.head
    session.checkpoint()
    (work / "notes.txt").write_text("later")
    session.state.set("a", 2)
    now = picture(work)
    session.restore(before)
    assert (session.state.get("a"), picture(work)) == (1, now)
    with pytest.raises(UnknownPoint, match="holds files"):
        session.restore(before, only=["workspace"])


# --- parts -----------------------------------------------------------------------------------


def test_only_the_workspace(session: Session, work: Path) -> None:
    session.state.set("memory", 1)
    then, made = picture(work), session.checkpoint()
    wreck(work)
    session.state.set("memory", 2)
    now = picture(work)
    session.restore(made, only=["workspace"])
    assert (picture(work), session.state.get("memory")) == (then, 2)
    session.undo()
    assert (picture(work), session.state.get("memory")) == (now, 2)


def test_only_a_part_of_the_state(session: Session, work: Path) -> None:
    session.state.set("memory", 1)
    made = session.checkpoint()
    wreck(work)
    session.state.set("memory", 2)
    now = picture(work)
    session.restore(made, only=["memory"])
    assert (picture(work), session.state.get("memory")) == (now, 1)


@pytest.mark.parametrize("part", ["src/app.py", "./src/app.py", "workspace/src/app.py"])
def test_only_one_file(session: Session, work: Path, part: str) -> None:
    session.state.set("memory", 1)
    then, made = picture(work), session.checkpoint()
    wreck(work)
    (work / "src").chmod(0o711)
    session.state.set("memory", 2)
    now = picture(work)
    done = session.restore(made, only=[part])
    assert done.problems == ()
    after = picture(work)
    assert after.pop(b"src/app.py") == then[b"src/app.py"]
    expected = {path: seen for path, seen in now.items() if path != b"src/app.py"}
    assert without_times(after) == without_times(expected)
    assert session.state.get("memory") == 2
    session.undo()
    assert picture(work) == now


@pytest.mark.parametrize("part", ["src", "src/"])
def test_only_a_directory(session: Session, work: Path, part: str) -> None:
    then, made = picture(work), session.checkpoint()
    wreck(work)
    (work / "src" / "extra").write_text("goes")
    now = picture(work)
    session.restore(made, only=[part])
    after = picture(work)
    inside = {path for path in {*then, *after} if path.split(b"/")[0] == b"src"}
    assert {p: after.get(p) for p in inside} == {p: then.get(p) for p in inside}
    assert without_times({p: s for p, s in after.items() if p not in inside}) == without_times(
        {p: s for p, s in now.items() if p.split(b"/")[0] != b"src"}
    )
    session.undo()
    assert picture(work) == now


def test_files_and_state_can_be_mixed(session: Session, work: Path) -> None:
    session.state.set("", {"memory": {"a": 1}, "todo": [1]})
    made = session.checkpoint()
    wreck(work)
    session.state.set("", {"memory": {"a": 2}, "todo": [1, 2]})
    now = picture(work)
    session.restore(made, only=["notes.txt", "memory/a", "src/run.sh"])
    assert session.state.get("") == {"memory": {"a": 1}, "todo": [1, 2]}
    assert (work / "notes.txt").read_text() == "notes\n"
    assert os.access(work / "src" / "run.sh", os.X_OK)
    assert (work / "src" / "app.py").read_text() == "garbage"
    session.undo()
    assert session.state.get("") == {"memory": {"a": 2}, "todo": [1, 2]}
    assert picture(work) == now


def test_a_file_comes_back_with_the_directories_on_its_way_and_undo_takes_them(
    session: Session, work: Path
) -> None:
    (work / "a" / "b").mkdir(parents=True)
    (work / "a" / "b" / "file").write_text("deep")
    (work / "a" / "other").write_text("not asked for")
    made = session.checkpoint()
    shutil.rmtree(work / "a")
    now = picture(work)
    session.restore(made, only=["a/b/file"])
    assert (work / "a" / "b" / "file").read_text() == "deep"
    assert not (work / "a" / "other").exists()
    session.undo()
    assert picture(work) == now


def test_a_file_that_was_not_there_goes_when_it_is_named(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "src" / "new.py").write_text("new")
    session.restore(made, only=["src/new.py"])
    assert not (work / "src" / "new.py").exists()
    session.undo()
    assert (work / "src" / "new.py").read_text() == "new"


@pytest.mark.parametrize("name", [b"it~1s", b"~0", b"caf\xe9", b"new\nline", b"-x", b"workspace"])
def test_a_file_of_any_name_can_be_named(session: Session, work: Path, name: bytes) -> None:
    path = os.fsencode(work) + b"/src/" + name
    with open(path, "wb") as file:
        file.write(b"1")
    made = session.checkpoint()
    with open(path, "wb") as file:
        file.write(b"2")
    session.restore(made, only=["src/" + os.fsdecode(name)])
    with open(path, "rb") as file:
        assert file.read() == b"1"


@pytest.mark.parametrize(
    "only",
    [
        ["nope"],
        ["workspace/nope"],
        ["src/nope.py"],
        ["notes.txt", "nope"],
        ["nope", "workspace"],
        ["../work/notes.txt"],
        ["workspace/../work/notes.txt"],
        ["src/../notes.txt"],
    ],
    ids=" + ".join,
)
def test_a_part_that_is_nowhere_is_refused_before_anything_is_touched(
    session: Session, store: Store, work: Path, only: list[str]
) -> None:
    session.state.set("memory", 1)
    made = session.checkpoint()
    wreck(work)
    now, head = picture(work), session.head
    for attempt in (session.restore, session.files.plan):
        with pytest.raises(PathNotFound):
            attempt(made, only=only)
    assert (picture(work), session.head) == (now, head)
    # Nothing is pending that the next handle would stumble over.
    assert store.session("run", workspace=work).internal.recovered is None


# --- nothing is lost -------------------------------------------------------------------------


def test_what_no_checkpoint_covers_stays_in_directories_that_go(
    session: Session, work: Path
) -> None:
    (work / ".mulliganignore").write_text("*.log\n")
    made = session.checkpoint()
    for place in ("fresh", "fresh/deep"):
        (work / place).mkdir()
        (work / place / "covered").write_text("goes")
    (work / "fresh" / "deep" / "kept.log").write_text("stays")
    os.mkfifo(work / "fresh" / "fifo")
    now = picture(work)
    plan = session.files.plan(made)
    assert [change.path for change in plan.files] == ["fresh/covered", "fresh/deep/covered"]
    assert {left.path for left in plan.left_alone} == {"fresh/deep/kept.log", "fresh/fifo"}
    done = session.restore(made)
    assert done.problems == ()
    assert {path for path in picture(work) if path.startswith(b"fresh")} == {
        b"fresh",
        b"fresh/deep",
        b"fresh/deep/kept.log",
        b"fresh/fifo",
    }
    session.undo()
    assert without_times(picture(work)) == without_times(now)


def test_a_fifo_where_a_file_was_is_left_alone_and_named(session: Session, work: Path) -> None:
    made = session.checkpoint()
    (work / "notes.txt").unlink()
    os.mkfifo(work / "notes.txt")
    (work / "src" / "app.py").write_text("changed")
    assert [change.path for change in session.files.plan(made).files] == ["src/app.py"]
    done = session.restore(made)
    assert details(done) == {
        "notes.txt": "it is left alone, no checkpoint holds it: it is a FIFO",
    }
    assert picture(work)[b"notes.txt"].kind == "fifo"
    assert (work / "src" / "app.py").read_text() == "print('one')\n"


def test_a_directory_that_must_stay_does_not_give_way_to_a_file(
    session: Session, work: Path
) -> None:
    (work / ".mulliganignore").write_text("*.log\n")
    made = session.checkpoint()
    (work / "notes.txt").unlink()
    (work / "notes.txt").mkdir()
    (work / "notes.txt" / "kept.log").write_text("stays")
    done = session.restore(made)
    assert details(done) == {"notes.txt": "something is there that no checkpoint holds"}
    assert (work / "notes.txt" / "kept.log").read_text() == "stays"
    assert drafts(work) == []


def test_what_changes_between_safety_checkpoint_and_restore_is_left_as_it_is(
    tmp_path: Path, work: Path
) -> None:
    later = {
        "src/app.py": lambda: (work / "src" / "app.py").write_text("changed under our feet"),
        "notes.txt": lambda: (work / "notes.txt").write_text("came up under our feet"),
        "new": lambda: (work / "new").write_text("grew under our feet"),
    }
    first = iter([True])

    def failpoint(point: Failpoint) -> None:
        if point is Failpoint.RESTORE_RENAMED and next(first, False):
            for change in later.values():
                change()

    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        (work / "aaa").write_text("written first")
        os.utime(work / "aaa", ns=(1, 1))
        made = session.checkpoint()
        for name in ("aaa", "src/app.py"):
            (work / name).write_text("now")
        (work / "notes.txt").unlink()
        (work / "new").write_text("new")
        done = session.restore(made)
    reasons = details(done)
    for name in later:
        changed = "under our feet" in (work / name).read_text() if (work / name).exists() else False
        assert changed == (name in reasons), f"{name} is lost or passed over: {reasons}"
    assert reasons.get("new") == "it was changed while the restore was under way"


# --- what cannot be done is said -------------------------------------------------------------


@pytest.fixture
def immutable(work: Path) -> Iterator[Path]:
    file = work / "src" / "run.sh"
    done = subprocess.run(["chattr", "+i", file], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("files cannot be made immutable here")
    try:
        yield file
    finally:
        subprocess.run(["chattr", "-i", file], check=True)


def test_a_file_that_cannot_be_written_is_named_and_the_rest_is_done(
    session: Session, work: Path, immutable: Path
) -> None:
    subprocess.run(["chattr", "-i", immutable], check=True)
    then, made = picture(work), session.checkpoint()
    immutable.write_text("other")
    wreck(work)
    subprocess.run(["chattr", "+i", immutable], check=True)
    done = session.restore(made)
    assert details(done) == {"src/run.sh": "Operation not permitted"}
    after = picture(work)
    assert after.pop(b"src/run.sh").content != then[b"src/run.sh"].content
    assert after == {path: seen for path, seen in then.items() if path != b"src/run.sh"}
    assert drafts(work) == []
    # With the obstacle gone, restoring again completes it.
    subprocess.run(["chattr", "-i", immutable], check=True)
    assert session.restore(made).problems == ()
    assert picture(work) == then


@pytest.fixture
def read_only_mount(work: Path) -> Iterator[Path]:
    place = work / "mounted"
    place.mkdir()
    (place / "file").write_text("one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], capture_output=True, check=False)


def test_a_read_only_mount_is_named_and_the_rest_is_done(
    session: Session, work: Path, read_only_mount: Path
) -> None:
    then, made = picture(work), session.checkpoint()
    (read_only_mount / "file").write_text("two")
    wreck(work)
    for options in (["--bind", read_only_mount, read_only_mount], ["-o", "remount,ro,bind"]):
        command = ["mount", *options, *([] if "--bind" in options else [read_only_mount])]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting is not permitted here")
    done = session.restore(made)
    assert details(done)["mounted/file"] == "Read-only file system"
    assert set(details(done)) <= {"mounted/file", "mounted"}
    rest = {path: seen for path, seen in picture(work).items() if not path.startswith(b"mounted")}
    expected = {path: seen for path, seen in then.items() if not path.startswith(b"mounted")}
    assert rest == expected


def test_read_only_files_and_directories_are_restored_by_their_owner() -> None:
    with place_of_nobody() as place:

        def body() -> None:
            work = place / "work"
            (work / "closed" / "deep").mkdir(parents=True)
            (work / "closed" / "file").write_text("one")
            (work / "closed" / "deep" / "file").write_text("one")
            (work / "closed" / "unchanged").write_text("same")
            (work / "plain").write_text("one")
            (work / "plain").chmod(0o400)
            (work / "closed" / "deep").chmod(0o500)
            (work / "closed").chmod(0o500)
            with mulligan.open(place / "store") as store:
                session = store.session("run", workspace=work)
                then, made = picture(work), session.checkpoint()
                change(work)
                now = picture(work)
                assert session.restore(made).problems == ()
                assert picture(work) == then
                assert session.undo().problems == ()
                assert picture(work) == now
                assert session.redo().problems == ()
                assert picture(work) == then
                assert session.files.copy(made, place / "copy") == []
                assert picture(place / "copy") == then

        def change(work: Path) -> None:
            for directory in (work / "closed", work / "closed" / "deep"):
                directory.chmod(0o700)
            (work / "closed" / "file").write_text("two")
            (work / "closed" / "deep" / "file").unlink()
            (work / "closed" / "deep" / "new").write_text("new")
            (work / "plain").chmod(0o600)
            (work / "plain").write_text("two")
            (work / "plain").chmod(0o200 | 0o400)
            (work / "more" / "inside").mkdir(parents=True)
            (work / "more" / "inside" / "file").write_text("new")
            for directory in ("closed/deep", "closed", "more/inside", "more"):
                (work / directory).chmod(0o555)
            work.chmod(0o555)

        as_nobody(body)


def test_a_read_only_directory_that_has_to_stay_is_closed_again() -> None:
    with place_of_nobody() as place:

        def body() -> None:
            work = place / "work"
            work.mkdir()
            (work / ".mulliganignore").write_text("*.log\n")
            with mulligan.open(place / "store") as store:
                session = store.session("run", workspace=work)
                made = session.checkpoint()
                (work / "closed").mkdir()
                (work / "closed" / "file").write_text("goes")
                (work / "closed" / "kept.log").write_text("stays")
                (work / "closed").chmod(0o500)
                assert session.restore(made).problems == ()
                assert sorted(os.listdir(work / "closed")) == ["kept.log"]
                assert (work / "closed").stat().st_mode & 0o777 == 0o500

        as_nobody(body)


def test_attributes_of_a_file_that_may_not_be_opened_are_restored() -> None:
    with place_of_nobody() as place:

        def body() -> None:
            work = place / "work"
            work.mkdir()
            (work / "file").write_text("same")
            (work / "file").chmod(0o600)
            with mulligan.open(place / "store") as store:
                session = store.session("run", workspace=work)
                then, made = picture(work), session.checkpoint()
                (work / "file").chmod(0o444)
                os.utime(work / "file", ns=(1, 1))
                assert session.restore(made).problems == ()
                assert picture(work) == then

        as_nobody(body)


def test_what_may_not_be_read_now_is_not_written_over() -> None:
    with place_of_nobody() as place:

        def body() -> None:
            work = place / "work"
            work.mkdir()
            (work / "file").write_text("one")
            with mulligan.open(place / "store") as store:
                session = store.session("run", workspace=work)
                made = session.checkpoint()
                (work / "file").write_text("in no checkpoint")
                (work / "fresh").mkdir()
                (work / "fresh" / "secret").write_text("in no checkpoint")
                (work / "fresh" / "covered").write_text("goes")
                for name in ("file", "fresh/secret"):
                    (work / name).chmod(0)
                assert list(details(session.restore(made))) == ["file"]
                assert os.listdir(work / "fresh") == ["secret"]
                for name in ("file", "fresh/secret"):
                    (work / name).chmod(0o600)
                    assert (work / name).read_text() == "in no checkpoint"

        as_nobody(body)


def test_extended_attributes_that_cannot_be_set_do_not_cost_the_file(
    session: Session, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        os.setxattr(work / "notes.txt", "user.a", b"1")
    except OSError:
        pytest.skip("this filesystem has no extended attributes")
    made = session.checkpoint()
    (work / "notes.txt").unlink()

    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    done = session.restore(made)
    assert details(done) == {"notes.txt": "extended attributes: Operation not supported"}
    assert (work / "notes.txt").read_text() == "notes\n"


def test_only_one_process_restores_at_a_time(session: Session, store: Store, work: Path) -> None:
    made = session.checkpoint()
    assert store.path is not None
    with (Path(store.path) / "locks" / lock_name(work)).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RestoreBusy):
            session.restore(made)
    assert session.restore(made).problems == ()


# --- hostile trees ---------------------------------------------------------------------------


FILE = ["f", 0o644, 0, 4]


def forge(session: Session, tree: dict[str, Any]) -> Checkpoint:
    """Put a tree into the store that no capture has made, and a checkpoint that names it."""

    def made(put: Callable[[int, bytes], Digest]) -> Any:
        chunk = put(ObjectKind.CHUNK, b"evil")

        def filled(node: Any) -> Any:
            if isinstance(node, dict):
                return {"": ["d", 0o755, 0], **{key: filled(value) for key, value in node.items()}}
            return [*node, chunk] if node == FILE else node

        return filled(tree)

    return checkpoint_of(session, made)


@pytest.mark.parametrize(
    "tree",
    [
        {"..": {"outside": FILE}},
        {"src": {"..": {"..": {"outside": FILE}}}},
        {".": {"file": FILE}},
        {"../outside": FILE},
        {"/etc/evil": FILE},
        {"a/b": FILE},
        {"nul\x00in": FILE},
        {"\x00": FILE},
        {"\x00..": {"outside": FILE}},
        {"\x00plain": FILE},
        {"\x00\u1234": FILE},
        {"src": {"": FILE, "../../outside": FILE}},
    ],
    ids=repr,
)
def test_a_tree_with_names_that_lead_out_is_refused_and_nothing_is_written(
    session: Session, store: Store, work: Path, tmp_path: Path, tree: dict[str, Any]
) -> None:
    made = forge(session, tree)
    before, head = picture(tmp_path, skip=(b"store",)), session.head
    for attempt in (
        lambda: session.files.plan(made),
        lambda: session.restore(made),
        lambda: session.restore(made, only=["workspace"]),
        lambda: session.files.copy(made, tmp_path / "copy"),
        lambda: session.fork(made, workspace=tmp_path / "fork"),
        lambda: session.diff(made),
    ):
        with pytest.raises(UnsafeName):
            attempt()
    for made_empty in ("copy", "fork"):
        if (tmp_path / made_empty).exists():
            (tmp_path / made_empty).rmdir()
    after = picture(tmp_path, skip=(b"store",))
    assert {p: s for p, s in after.items() if p} == {p: s for p, s in before.items() if p}
    assert session.head == head
    # The session can be opened and used as before.
    again = store.session("run", workspace=work)
    assert again.internal.recovered is None
    again.checkpoint()


def test_a_forged_name_cannot_be_asked_for_either(
    session: Session, work: Path, tmp_path: Path
) -> None:
    made = forge(session, {"..": {"outside": FILE}})
    for part in ("../outside", "workspace/../outside"):
        with pytest.raises((PathNotFound, UnsafeName)):
            session.restore(made, only=[part])
        with pytest.raises((PathNotFound, UnsafeName)):
            session.files.copy(made, tmp_path / "copy", only=[part])
    assert not (tmp_path / "outside").exists()


def test_a_directory_swapped_for_a_symlink_before_the_restore(
    session: Session, work: Path, tmp_path: Path
) -> None:
    then, made = picture(work), session.checkpoint()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "app.py").write_text("not yours")
    (outside / "own").write_text("not yours")
    untouched = picture(outside)
    shutil.rmtree(work / "src")
    (work / "src").symlink_to(outside)
    now = picture(work)
    assert session.restore(made).problems == ()
    assert (picture(work), picture(outside)) == (then, untouched)
    session.undo()
    assert (picture(work), picture(outside)) == (now, untouched)


@pytest.mark.parametrize("point", ["before the first file", "after the first file"])
@pytest.mark.parametrize("target", ["a directory", "nothing", "the root"])
def test_a_directory_swapped_for_a_symlink_while_a_restore_is_under_way(
    tmp_path: Path, work: Path, point: str, target: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("app.py", "new.py", "file-3"):
        (outside / name).write_text("not yours")
    places = {"a directory": outside, "nothing": tmp_path / "missing", "the root": Path("/")}
    wanted = {
        "before the first file": Failpoint.JOURNAL_COMMITTED,
        "after the first file": Failpoint.RESTORE_RENAMED,
    }[point]
    armed = False

    def failpoint(reached: Failpoint) -> None:
        nonlocal armed
        if armed and reached is wanted:
            armed = False
            (work / "src").rename(tmp_path / "moved")
            (work / "src").symlink_to(places[target])

    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        for number in range(6):
            (work / "src" / f"file-{number}").write_text(str(number))
        made = session.checkpoint()
        for number in range(5):
            (work / "src" / f"file-{number}").write_text("changed")
        (work / "src" / "new.py").write_text("to be deleted")
        (work / "src" / "file-5").unlink()
        (work / "src" / "sub").mkdir()
        untouched = picture(outside)
        armed = True
        done = session.restore(made)
        assert not armed
    assert picture(outside) == untouched
    assert not (tmp_path / "missing").exists()
    if point == "before the first file":
        assert done.problems, "what could not be done is said"


def test_a_workspace_of_another_directory_does_not_finish_what_was_begun_elsewhere(
    store: Store, session: Session, work: Path, tmp_path: Path
) -> None:
    made = session.checkpoint()
    wreck(work)
    hook = interrupt(Failpoint.RESTORE_RENAMED)
    with (
        open_store(tmp_path / "store", failpoint=hook) as other,
        pytest.raises(KeyboardInterrupt),
    ):
        other.session("run", workspace=work).restore(made)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own").write_text("own")
    before = picture(elsewhere)
    assert store.session("run", workspace=elsewhere).internal.recovered is None
    assert picture(elsewhere) == before
    finished = store.session("run", workspace=work).internal.recovered
    assert finished is not None
    assert finished.problems == ()


def interrupt(point: Failpoint) -> Callable[[Failpoint], None]:
    def failpoint(reached: Failpoint) -> None:
        if reached is point:
            raise KeyboardInterrupt

    return failpoint


# --- interrupted, in this process ------------------------------------------------------------


RESTORE_POINTS = [point for point in Failpoint if point.name.startswith("RESTORE_")]


@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_an_interrupted_restore_is_finished_by_the_next_call_and_undone_by_undo(
    tmp_path: Path, work: Path, point: Failpoint
) -> None:
    armed = True

    def failpoint(reached: Failpoint) -> None:
        nonlocal armed
        if armed and reached is point:
            armed = False
            raise KeyboardInterrupt

    with open_store(tmp_path / "store", failpoint=failpoint) as store:
        session = store.session("run", workspace=work)
        session.state.set("a", 1)
        then, made = picture(work), session.checkpoint()
        wreck(work)
        session.state.set("a", 2)
        now = picture(work)
        with pytest.raises(KeyboardInterrupt):
            session.restore(made)
        assert drafts(work) == []
        # A restore of state alone does not make it forgotten.
        store.session("run").restore(made, only=["a"])
        finished = session.files.recover()
        assert finished is not None
        assert finished.problems == ()
        assert (picture(work), session.state.get("a")) == (then, 1)
        session.undo()
        assert picture(work) == now
        session.undo()
        assert session.state.get("a") == 2
        assert session.files.recover() is None


def test_undo_right_after_an_interrupted_restore_takes_it_back(tmp_path: Path, work: Path) -> None:
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        wreck(work)
        now = picture(work)
    with open_store(tmp_path / "store", failpoint=interrupt(Failpoint.RESTORE_WRITTEN)) as store:
        with pytest.raises(KeyboardInterrupt):
            store.session("run", workspace=work).restore(made)
        assert picture(work) != now
    with mulligan.open(tmp_path / "store") as store:
        session = store.session("run", workspace=work)
        session.undo()
        assert picture(work) == now


def test_a_fork_does_not_inherit_a_restore_under_way(tmp_path: Path, work: Path) -> None:
    with open_store(tmp_path / "store", failpoint=interrupt(Failpoint.RESTORE_RENAMED)) as store:
        session = store.session("run", workspace=work)
        made = session.checkpoint()
        wreck(work)
        with pytest.raises(KeyboardInterrupt):
            session.restore(made)
        head = session.head
    with mulligan.open(tmp_path / "store") as store:
        forked = store.session("run").fork(head, name="fork")
        now = picture(work)
        assert store.session("fork", workspace=work).internal.recovered is None
        assert picture(work) == now
        assert forked.head.seq > 0
        assert store.verify().ok


def test_a_moved_directory_is_finished_where_it_is_now(tmp_path: Path, work: Path) -> None:
    with open_store(tmp_path / "store", failpoint=interrupt(Failpoint.RESTORE_RENAMED)) as store:
        session = store.session("run", workspace=work)
        then, made = picture(work), session.checkpoint()
        wreck(work)
        with pytest.raises(KeyboardInterrupt):
            session.restore(made)
    work.rename(tmp_path / "moved")
    with mulligan.open(tmp_path / "store") as store:
        finished = store.session("run", workspace=tmp_path / "moved").internal.recovered
        assert finished is not None
    assert picture(tmp_path / "moved") == then


def test_copies_go_into_new_or_empty_directories_only(
    session: Session, work: Path, tmp_path: Path
) -> None:
    made = session.checkpoint()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "own").touch()
    (tmp_path / "file").touch()
    for place in ("full", "file", "work"):
        with pytest.raises(UnsafeWorkspace, match="not an empty directory"):
            session.files.copy(made, tmp_path / place)
    assert session.files.copy(made, tmp_path / "copy", only=["src", "link"]) == []
    assert set(picture(tmp_path / "copy")) == {b"", b"src", b"src/app.py", b"src/run.sh", b"link"}
    with pytest.raises(PathNotFound):
        session.files.copy(made, tmp_path / "other", only=["nope"])


def test_a_directory_is_no_file_to_read(session: Session) -> None:
    made = session.checkpoint()
    assert session.files.read(made, "src/app.py") == b"print('one')\n"
    assert session.files.read(made, "link") == b"notes.txt"
    for path in ("src", "src/", "", "nope", "src/app.py/x", "..", "link/x"):
        with pytest.raises(PathNotFound):
            session.files.read(made, path)


def test_undo_without_the_directory_does_not_take_half_of_a_restore_back(
    store: Store, session: Session, work: Path
) -> None:
    session.state.set("a", 1)
    then, made = picture(work), session.checkpoint()
    wreck(work)
    session.state.set("a", 2)
    session.restore(made)
    with pytest.raises(MulliganError):
        store.session("run").undo()
    assert (picture(work), session.state.get("a")) == (then, 1)
