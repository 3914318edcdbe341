"""Files in checkpoints and restores: what is held, what is planned, what is left alone."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import mulligan
from mulligan.failpoints import Failpoint
from mulligan.testing.stores import open_store
from mulligan.workspace.restore.swap import Swap
from tests.damage import flip_object
from tests.stores import store_of

Look = dict[str, tuple[int, int, bytes]]


def look(directory: Path) -> Look:
    """Return mode, mtime and content of everything below a directory, stores apart."""
    found: Look = {}
    for root, directories, names in os.walk(directory):
        if ".mulligan" in directories:
            directories.remove(".mulligan")
        for name in (*directories, *names):
            path = Path(root, name)
            status = path.lstat()
            content = b""
            if path.is_symlink():
                content = os.fsencode(path.readlink())
            elif path.is_file():
                content = path.read_bytes()
            found[str(path.relative_to(directory))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def _differs(path: str, before: Look, directory: Path) -> bool:
    return before.get(path) != look(directory).get(path)


@pytest.fixture
def project(store, place: Path):
    """A checkpoint ``one`` of a small project and a goal in the state."""
    (place / "src/deep").mkdir(parents=True)
    (place / "src/app.py").write_text("print('hello')\n")
    (place / "src/deep/data.bin").write_bytes(bytes(range(256)))
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "link").symlink_to("src/app.py")
    (place / "empty").mkdir()
    store("state", "set", "memory/goal", "first")
    assert store("checkpoint", "--label", "one").code == 0
    return store


@pytest.fixture
def wrecked(project, place: Path):
    """The project after an agent's shell command."""
    os.system("rm -rf src && echo oops > run.sh && chmod 644 run.sh && echo junk > junk.txt")
    project("state", "set", "memory/goal", "second")
    return project


class TestCheckpoint:
    def test_holds_the_files_of_the_directory_of_the_store(self, project):
        taken = project("checkpoint", "--json").json
        assert taken["files"] == 4
        assert len(taken["workspace"]) == 64
        assert taken["left_out"] == 1  # the store

    def test_holds_them_from_below_as_well(self, project, place: Path, monkeypatch):
        monkeypatch.chdir(place / "src/deep")
        assert project("checkpoint", "--json").json["files"] == 4

    def test_without_files(self, project):
        taken = project("checkpoint", "--no-files", "--json").json
        assert (taken["files"], taken["workspace"], taken["left_out"]) == (None, None, None)

    def test_saves_what_it_saw_for_the_next_process(self, project, place: Path):
        assert list((store_of(place) / "tmp").glob("index-*"))

    def test_log_and_status_mark_those_that_hold_files(self, project):
        project("checkpoint", "--no-files", "-m", "state alone")
        newest, oldest = project("log").out.splitlines()
        assert "files" not in newest
        assert "4 files" in oldest
        entries = project("log", "--json").json["entries"]
        assert [entry["files"] for entry in entries] == [None, 4]
        header, session = project("status").out.splitlines()[-2:]
        assert "files" in header
        assert "4" not in session.split()
        project("checkpoint")
        assert "4" in project("status").out.splitlines()[-1].split()

    def test_show_names_what_was_left_out_and_by_which_rule(self, project, place: Path):
        (place / ".mulliganignore").write_text("*.log\n")
        for number in range(5):
            (place / f"{number}.log").touch()
        (place / "src/__pycache__").mkdir()
        os.mkfifo(place / "pipe")
        project("checkpoint")
        said = project("show").out
        assert "5 files" in said
        assert "ignored by *.log" in said
        assert "0.log, 1.log, 2.log, …" in said
        assert "ignored by __pycache__/" in said
        assert "FIFO" in said
        assert "ignored by .mulligan\n" not in said
        coverage = project("show", "--json").json["coverage"]
        assert coverage["files"] == 5
        rules = {left["path"]: left["rule"] for left in coverage["left_out"]}
        assert rules["4.log"] == "ignored by *.log"
        assert rules.keys() >= {"pipe", "src/__pycache__", ".mulligan"}

    def test_show_says_when_there_are_no_files(self, store):
        store("checkpoint", "--no-files")
        assert "state alone" in store("show").out
        shown = store("show", "--json").json
        assert (shown["workspace"], shown["coverage"]) == (None, None)

    def test_a_person_is_told_how_many(self, project, place: Path, on_terminal):
        (place / "src/__pycache__").mkdir()
        _, shown = on_terminal("checkpoint")
        assert "4 files" in shown
        assert "1 left out" in shown

    def test_a_store_that_knows_no_project_holds_the_state_alone(self, cli, place: Path):
        with mulligan.open(place / "first") as made:
            made.session("main")
        (place / "first/.mulligan").rename(place / "elsewhere")
        taken = cli("--store", str(place / "elsewhere"), "checkpoint", "--json")
        assert taken.json["files"] is None
        copied = cli("--store", str(place / "elsewhere"), "fork", "@latest", "--to", "x")
        assert copied.code == 80
        assert "knows no project" in copied.err


class TestPlan:
    def test_says_what_would_happen_to_each_file(self, wrecked, place: Path):
        said = wrecked("restore", "one", "--dry-run").out.splitlines()
        assert said[0] == "the present → main #3  1 change of the state"
        assert '~ memory/goal  "second" → "first"' in said
        assert f"files in {place}  2 to create, 1 to delete, 1 to update" in said
        assert "- junk.txt           5 bytes" in said
        assert "~ run.sh             5 bytes → 10 bytes, mode 644 → 755" in said
        assert "+ src/app.py         15 bytes" in said
        assert said[-1] == "Nothing was changed: this was a dry run."

    def test_changes_nothing_when_it_is_dry(self, wrecked, place: Path):
        before, events = look(place), wrecked("events", "--json").out
        for more in ([], ["--json"], ["--only", "src"], ["--to", "copy"], ["-q"]):
            assert wrecked("restore", "one", "--dry-run", *more).code == 0
        assert look(place) == before
        assert wrecked("events", "--json").out == events

    def test_as_json(self, wrecked, place: Path):
        plan = wrecked("restore", "one", "--dry-run", "--json").json
        assert (plan["applied"], plan["safety"], plan["problems"]) == (False, None, [])
        assert plan["directory"] == str(place)
        changes = {change["path"]: change for change in plan["files"]}
        assert changes["junk.txt"]["change"] == "removed"
        assert changes["src"]["kind"] == "directory"
        assert changes["run.sh"] == {
            "path": "run.sh",
            "change": "changed",
            "kind": "file",
            "old_path": None,
            "old_mode": "644",
            "mode": "755",
            "old_size": 5,
            "size": 10,
        }
        assert plan["left_alone"] == [{"path": ".mulligan", "rule": "ignored by .mulligan"}]
        assert plan["conflicts"] == []
        assert plan["caches"] == []

    def test_is_shortened_unless_it_is_all_there_is(self, project, place: Path):
        for number in range(50):
            (place / f"new-{number:02}").touch()
        assert "… and 30 more" in project("restore", "one").out
        project("undo")
        assert "new-49" in project("restore", "one", "--dry-run").out

    def test_does_not_list_what_git_keeps_nor_mere_times(self, project, place: Path):
        (place / ".git/objects").mkdir(parents=True)
        (place / ".git/HEAD").write_text("ref: refs/heads/main\n")
        project("checkpoint", "--label", "git")
        (place / ".git/HEAD").write_text("ref: refs/heads/other\n")
        os.utime(place / "src/app.py", ns=(1, 1))
        said = project("restore", "git", "--dry-run").out
        assert ".git/HEAD" not in said
        assert "and 1 path in .git" in said
        assert "and 1 file with other times or extended attributes only" in said
        assert len(project("restore", "git", "--dry-run", "--json").json["files"]) == 2

    def test_names_what_is_left_alone(self, wrecked, place: Path):
        (place / ".mulliganignore").write_text("*.log\n")
        (place / "debug.log").write_text("precious")
        said = wrecked("restore", "one").out
        assert "left alone, because no checkpoint holds it:" in said
        assert "ignored by *.log  1  debug.log" in said
        assert (place / "debug.log").read_text() == "precious"

    def test_names_the_caches_that_go(self, wrecked, place: Path):
        (place / "src/__pycache__").mkdir(parents=True)
        (place / "src/__pycache__/app.cpython-311.pyc").write_text("stale")
        cache = "src/__pycache__/app.cpython-311.pyc"
        assert wrecked("restore", "one", "--dry-run", "--json").json["caches"] == [cache]
        said = f"1 path of caches to remove, which their tools make again: {cache}"
        assert said in wrecked("restore", "one").out
        assert not (place / "src/__pycache__").exists()
        assert wrecked("undo", "--dry-run", "--json").json["caches"] == []
        assert wrecked("undo", "--json").json["caches"] is None

    def test_says_that_builds_may_look_up_to_date(self, project, place: Path):
        (place / ".mulliganignore").write_text("build/\n")
        project("checkpoint", "--label", "two")
        (place / "build").mkdir()
        then = (place / "run.sh").stat().st_mtime_ns
        (place / "run.sh").write_text("changed")
        hint = "left alone: build/ (ignored); builds may look up to date. --touch gives"
        assert hint in project("restore", "two", "--dry-run").out
        assert "--touch" not in project("restore", "two", "--dry-run", "--touch").out
        assert project("restore", "two", "--dry-run", "--json").json["builds"] == ["build"]
        assert project("restore", "two", "--touch").code == 0
        assert (place / "run.sh").stat().st_mtime_ns > then
        assert hint in project("undo", "--dry-run").out
        for command in ("undo", "redo"):
            before = (place / "run.sh").stat().st_mtime_ns
            assert project(command, "--touch").code == 0
            assert (place / "run.sh").stat().st_mtime_ns > before
        for more in (["--to", "copy"], ["--no-files"]):
            assert project("restore", "two", "--touch", *more).code == 2

    def test_names_programs_that_write_to_what_is_replaced(self, wrecked, place: Path):
        with subprocess.Popen(["cat"], stdin=-1, stdout=(place / "junk.txt").open("a")) as cat:
            [found] = wrecked("restore", "one", "--dry-run", "--json").json["open_files"]
            assert found == {"pid": cat.pid, "command": "cat", "path": "junk.txt", "mode": "write"}
            said = wrecked("restore", "one", "--dry-run").err
            assert f"Warning: process {cat.pid} (cat) writes to junk.txt: what it writes" in said
            done = wrecked("restore", "one")  # in a script it goes on
            assert done.code == 0
            assert f"process {cat.pid} (cat)" in done.err
        assert not (place / "junk.txt").exists()
        assert wrecked("undo", "--json").json["open_files"] == []

    @pytest.mark.parametrize("command", [["restore", "one"], ["undo"], ["redo"]], ids=" ".join)
    def test_asks_on_a_terminal_whether_programs_may_lose_what_they_write(
        self, wrecked, place: Path, on_terminal, command: list[str]
    ):
        (place / "run.sh").write_text("in use")
        if command != ["restore", "one"]:
            wrecked("restore", "one")
        if command == ["redo"]:
            wrecked("undo")
        before = (place / "run.sh").read_bytes()
        with subprocess.Popen(["cat"], stdin=-1, stdout=(place / "run.sh").open("a")):
            code, shown = on_terminal(*command, answer="\n")
            assert code == 1
            assert "(cat) writes to run.sh" in shown
            assert "? [y/N]" in shown
            assert "Nothing was changed." in shown
            assert (place / "run.sh").read_bytes() == before
            code, shown = on_terminal(*command, "--yes")
            assert code == 0
            assert "(cat) writes to run.sh" in shown
            assert "? [" not in shown
        assert (place / "run.sh").read_bytes() != before

    def test_says_when_the_point_has_no_files(self, store, place: Path):
        store("state", "set", "a", "1")
        store("checkpoint", "--no-files", "--label", "bare")
        store("state", "set", "a", "2")
        (place / "kept.txt").write_text("kept")
        done = store("restore", "bare")
        assert done.code == 0
        assert "holds no files; they stay as they are" in done.err
        assert (place / "kept.txt").exists()
        assert store("state", "get", "a").json == 1

    def test_says_whose_files_count_when_the_checkpoint_has_none(self, project, place: Path):
        project("checkpoint", "--no-files", "--label", "bare")
        (place / "junk").touch()
        done = project("restore", "bare")
        assert "#4 of main holds no files; those of #3 (" in done.err
        assert not (place / "junk").exists()

    def test_warns_of_another_session_in_the_same_directory(self, project, place: Path):
        (place / "other.txt").write_text("of the other")
        project("checkpoint", "-s", "other", "--create")
        warned = project("restore", "one", "--dry-run")
        assert "Warning:" in warned.err
        assert "other" in warned.err
        assert len(project("restore", "one", "--dry-run", "--json").json["conflicts"]) == 1

    def test_does_not_warn_of_others_when_there_is_nothing_to_restore(self, project, place: Path):
        (place / "other.txt").write_text("of the other")
        project("checkpoint", "-s", "other", "--create")
        project("restore", "one")
        again = project("restore", "one")
        assert "Nothing to restore" in again.out
        assert again.err == ""

    def test_an_undo_warns_of_another_session_in_the_same_directory(self, project, place: Path):
        (place / "junk").touch()
        project("restore", "one")
        (place / "other.txt").write_text("of the other")
        project("checkpoint", "-s", "other", "--create")
        warned = project("undo", "--yes")
        assert "Warning:" in warned.err
        assert "other" in warned.err


class TestRestore:
    def test_brings_back_every_byte_mode_and_time(self, project, place: Path):
        before = look(place)
        os.system("rm -rf src link && chmod 600 run.sh && rmdir empty && mkdir src && touch src/x")
        done = project("restore", "one", "--json").json
        assert look(place) == before
        assert (done["applied"], done["problems"], done["only"]) == (True, [], None)
        assert done["restored_files"] > 5

    @pytest.mark.parametrize(
        "part", [[], ["--only", "src/app.py"], ["--only", "memory"], ["--no-files"]]
    )
    def test_a_dry_run_of_undo_and_redo_shows_what_they_do(self, wrecked, place: Path, part):
        wrecked("restore", "one", *part)
        for mode in ("undo", "redo"):
            here, seq = look(place), wrecked("status", "--json").json["sessions"][0]["seq"]
            plan = wrecked(mode, "--dry-run", "--json").json
            assert (plan["applied"], plan["mode"], plan["safety"]) == (False, mode, None)
            wanted = wrecked("diff", "#1", "--json").json  # of everything there is to see
            assert look(place) == here
            assert wrecked("status", "--json").json["sessions"][0]["seq"] == seq
            done = wrecked(mode, "--json").json
            assert (done["to"], done["only"]) == (plan["to"], plan["only"])
            changed = {change["path"] for change in plan["files"]}
            assert {path for path in look(place) | here if _differs(path, here, place)} == changed
            found = wrecked("diff", "#1", "--json").json
            assert (found["state"] != wanted["state"]) == bool(plan["changes"])

    def test_a_dry_run_of_undo_for_people(self, wrecked):
        wrecked("restore", "one")
        said = wrecked("undo", "--dry-run").out.splitlines()
        assert '~ memory/goal  "first" → "second"' in said
        assert any(re.fullmatch(r"\+ junk.txt +5 bytes", line) for line in said)
        assert said[-1] == "Nothing was changed: this was a dry run."
        assert wrecked("undo", "--dry-run", "-q").out == ""
        assert "There is no restore to redo" in wrecked("redo", "--dry-run").err

    def test_undo_and_redo_walk_over_files_and_state(self, wrecked, place: Path):
        wreck = look(place)
        wrecked("restore", "one")
        restored = look(place)
        undone = wrecked("undo", "--json").json
        assert look(place) == wreck
        assert undone["directory"] == str(place)
        assert undone["restored_files"] > 3
        assert wrecked("state", "get", "memory/goal").json == "second"
        assert "state, files as they were at" in wrecked("redo").out
        assert look(place) == restored
        assert wrecked("state", "get", "memory/goal").json == "first"

    @pytest.mark.parametrize("name", ["src/app.py", "./src/app.py", "workspace/src/app.py"])
    def test_of_one_file(self, wrecked, place: Path, name: str):
        done = wrecked("restore", "one", "--only", name, "--json").json
        assert done["only"] == ["workspace/src/app.py"]
        assert (place / "src/app.py").read_text() == "print('hello')\n"
        assert not (place / "src/deep").exists()
        assert (place / "junk.txt").exists()
        assert wrecked("state", "get", "memory/goal").json == "second"
        assert "only workspace/src" in wrecked("log").out  # the directory is what an undo looks at
        wrecked("undo")
        assert not (place / "src").exists()

    def test_of_all_files_leaves_the_state(self, wrecked, place: Path):
        done = wrecked("restore", "one", "--only", "workspace", "--json").json
        assert done["only"] == ["workspace"]
        assert done["changes"] == []
        assert not (place / "junk.txt").exists()
        assert wrecked("state", "get", "memory/goal").json == "second"

    def test_of_state_leaves_the_files(self, wrecked, place: Path):
        before = look(place)
        for parts in (["--only", "memory"], ["--no-files"]):
            wrecked("restore", "one", *parts)
            assert look(place) == before
            assert wrecked("state", "get", "memory/goal").json == "first"
            wrecked("undo")

    def test_of_files_and_state_mixed(self, wrecked, place: Path):
        done = wrecked("restore", "one", "--only", "memory", "--only", "run.sh", "--json").json
        assert done["only"] == ["memory", "workspace/run.sh"]
        assert (place / "run.sh").stat().st_mode & 0o777 == 0o755
        assert not (place / "src").exists()
        assert wrecked("state", "get", "memory/goal").json == "first"

    def test_of_what_is_there_already(self, project):
        events = project("events", "--json").out
        assert "Nothing to restore" in project("restore", "one").out
        assert project("restore", "one", "--json").json["applied"] is False
        assert project("events", "--json").out == events

    def test_with_nothing_else_to_do_names_what_is_in_the_way(self, project, place: Path):
        (place / "run.sh").unlink()
        os.mkfifo(place / "run.sh")
        shown = project("restore", "one", "--dry-run")
        assert shown.code == 0
        assert "Warning: 1 path cannot be restored" in shown.err
        done = project("restore", "one")
        assert done.code == 83
        assert "everything already matches" not in done.out
        assert "run.sh: it is left alone" in done.err
        assert "Move these out of the way" in done.err
        told = project("restore", "one", "--json")
        assert (told.code, told.json["applied"]) == (83, False)
        assert [problem["where"] for problem in told.json["problems"]] == ["run.sh"]

    def test_that_cannot_be_complete_says_so_and_exits_with_83(self, project, place: Path):
        (place / "run.sh").unlink()
        os.mkfifo(place / "run.sh")
        (place / "src/app.py").write_text("broken")
        failed = project("restore", "one")
        assert failed.code == 83
        assert "1 path could not be restored:" in failed.err
        assert "  run.sh: " in failed.err
        assert "safety checkpoint" in failed.out
        assert (place / "src/app.py").read_text() == "print('hello')\n"

    def test_of_content_that_is_damaged_names_the_repair(self, project, place: Path):
        content = os.urandom(50_000)
        (place / "large.bin").write_bytes(content)
        project("checkpoint", "--label", "large")
        (place / "large.bin").unlink()
        with open_store(store_of(place), create=False) as store:
            flip_object(store._engine, content)
        failed = project("restore", "large")
        assert failed.code == 83
        assert "  large.bin: " in failed.err
        assert "`mulligan verify --repair`" in failed.err

    def test_over_a_database_in_use_says_to_end_the_program(self, project, place: Path):
        (store_of(place) / "config.toml").write_text('[workspace.snapshot]\nsqlite = ["*.db"]\n')
        with closing(sqlite3.connect(place / "app.db")) as database:
            database.execute("pragma journal_mode = wal")
            database.execute("create table t (n)")
            project("checkpoint", "--label", "empty")
            database.execute("insert into t values (1)")
            database.commit()
            refused = project("restore", "empty")
        assert refused.code == 83
        assert "app.db: it is left alone" in refused.err
        assert "Close the programs that have these open, then do it again." in refused.err

    def test_beside_a_program_that_changes_files_says_to_let_it_finish(
        self, project, place: Path, monkeypatch: pytest.MonkeyPatch
    ):
        (place / "src/app.py").write_text("broken")
        real = Swap.put

        def changed(*arguments: Any) -> None:
            (place / "src/app.py").write_text("changed by somebody else")
            real(*arguments)

        monkeypatch.setattr(Swap, "put", changed)
        failed = project("restore", "one")
        assert failed.code == 83
        assert "src/app.py: it was changed while the restore was under way" in failed.err
        assert "Wait for the programs that change these, then do it again." in failed.err

    def test_that_cannot_be_complete_as_json(self, project, place: Path):
        (place / "run.sh").unlink()
        os.mkfifo(place / "run.sh")
        (place / "src/app.py").write_text("broken")
        failed = project("restore", "one", "--json")
        assert (failed.code, failed.err) == (83, "")
        assert failed.json["applied"] is True
        (problem,) = failed.json["problems"]
        assert problem["where"] == "run.sh"
        assert set(problem) == {"what", "where", "detail"}

    def test_that_was_interrupted_is_named_then_finished_and_told(self, wrecked, place: Path):
        class Died(Exception):
            pass

        def die(point: Failpoint) -> None:
            if point is Failpoint.RESTORE_WRITTEN:
                raise Died

        with open_store(place, failpoint=die) as opened, pytest.raises(Died):
            opened.session("main", workspace=place).restore("one")
        assert (place / "junk.txt").exists()
        looked = wrecked("diff", "one", "--json")
        assert looked.code == 0
        assert "was interrupted" in looked.err
        assert "junk.txt" in [change["path"] for change in looked.json["files"]]
        assert (place / "junk.txt").exists()
        told = wrecked("checkpoint")
        assert "had been interrupted and was finished first" in told.err
        assert not (place / "junk.txt").exists()
        assert "interrupted" not in wrecked("diff", "one").err


class TestCopy:
    def test_writes_elsewhere_and_touches_nothing(self, wrecked, place: Path):
        before, events = look(place), wrecked("events", "--json").out
        target = place.parent / f"{place.name}-copy"
        done = wrecked("restore", "one", "--to", str(target))
        assert done.code == 0
        assert f"4 files of main #3 written to {target}." in done.out
        assert (target / "src/deep/data.bin").read_bytes() == bytes(range(256))
        assert (target / "run.sh").stat().st_mode & 0o777 == 0o755
        assert look(place) == before
        assert wrecked("events", "--json").out == events

    def test_of_parts_as_json(self, wrecked, place: Path):
        copied = wrecked("restore", "one", "--to", "copy", "--only", "src/deep", "--json").json
        assert (copied["applied"], copied["mode"], copied["seq"]) == (True, "copy", None)
        assert copied["directory"] == str(place / "copy")
        assert copied["restored_files"] == len(copied["files"]) > 1
        assert [c["path"] for c in copied["files"] if c["kind"] == "file"] == ["src/deep/data.bin"]
        assert (place / "copy/src/deep/data.bin").exists()
        assert not (place / "copy/run.sh").exists()

    def test_dry_makes_no_directory(self, project, place: Path):
        dry = project("restore", "one", "--to", "copy", "--dry-run")
        assert "4 files of main #3 would be written to copy." in dry.out
        assert not (place / "copy").exists()

    def test_refuses_a_directory_that_holds_something(self, project, place: Path):
        refused = project("restore", "one", "--to", "src")
        assert refused.code == 80
        assert "empty directory" in refused.err
        assert "written" not in refused.out
        assert sorted(p.name for p in (place / "src").iterdir()) == ["app.py", "deep"]

    def test_of_a_file_that_never_was(self, project, place: Path):
        assert project("restore", "one", "--to", "copy", "--only", "nothing").code == 42
        assert not (place / "copy").exists()

    def test_needs_no_workspace(self, project, place: Path, monkeypatch):
        monkeypatch.setenv("HOME", str(place))
        assert project("restore", "one", "--to", "copy").code == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["restore", "one", "--to", "x", "--no-files"], 2, "exclude each other"),
        (["restore", "one", "--only", "workspace", "--no-files"], 2, "exclude each other"),
        (["restore", "one", "--only", "workspace/src", "--no-files"], 2, "exclude each other"),
        (["restore", "one", "--only", "srv"], 42, "'srv'"),
        (["restore", "one", "--only", "workspace/srv"], 42, "'srv'"),
        (["restore", "#1", "--only", "workspace"], 30, "holds files"),
        (["restore", "#1", "--to", "x"], 30, "holds files"),
        (["restore", "nowhere"], 30, "'nowhere'"),
        (["restore", "one", "--to"], 2, "--to"),
        (["fork", "#1", "--to", "../x"], 30, "holds files"),
    ],
)
def test_what_cannot_be_is_refused(project, place: Path, args: list[str], code: int, said: str):
    before = look(place)
    refused = project(*args)
    assert refused.code == code
    assert refused.out == ""
    assert said in refused.err
    assert "Hint:" in refused.err
    assert look(place) == before


class TestUnsafeDirectories:
    @pytest.fixture
    def home(self, place: Path, monkeypatch) -> Path:
        monkeypatch.setenv("HOME", str(place))
        return place

    def test_init_refuses_the_home_directory(self, cli, home: Path):
        refused = cli("init")
        assert refused.code == 80
        assert "home directory" in refused.err
        assert "mulligan init DIR" in refused.err
        assert not (home / ".mulligan").exists()
        assert cli("init", "project").code == 0

    def test_init_refuses_the_root(self, cli):
        refused = cli("init", "/", "--json")
        assert refused.code == 80
        assert refused.error["error"] == "UnsafeWorkspace"

    def test_a_forced_store_there_wants_to_be_told_each_time(self, cli, home: Path):
        assert cli("init", "--force").code == 0
        assert cli("init").code == 0  # it is there already
        (home / "a.txt").touch()
        for command in (["checkpoint"], ["diff", "#1"], ["restore", "#1"], ["undo"], ["redo"]):
            refused = cli(*command)
            assert refused.code == 80
            assert "--no-files" in refused.err
            assert "--force" in refused.err
        assert cli("checkpoint", "--no-files", "--json").json["files"] is None
        assert cli("checkpoint", "--force", "--json").json["files"] == 1
        for reader in (["log"], ["show"], ["status"], ["events"], ["verify"], ["state", "get"]):
            assert cli(*reader).code == 0


def test_text_from_a_file_or_its_name_cannot_command_the_terminal(project, place: Path):
    (place / "\x1b[2Jbad\nname").write_text("\x1b]0;title\x07\n")
    (place / ".mulliganignore").write_text("*.\x1b[31m\n")
    (place / "x.\x1b[31m").touch()
    project("checkpoint", "--label", "two")
    for command in (
        ["diff", "one"],
        ["diff", "one", "--stat"],
        ["diff", "one", "--name-only"],
        ["show"],
        ["restore", "one", "--dry-run"],
    ):
        said = project(*command).out
        assert "\x1b" not in said
        assert "\x07" not in said
