"""The store survives what agents do to their directory: with real git and real deletions."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

import mulligan
from tests.nobody import as_nobody, place_of_nobody
from tests.pictures import picture
from tests.stores import store_of

IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]


def git(*args: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(project: Path) -> dict[bytes, object]:
    """Return all files but the objects of git, which no restore deletes."""
    return {
        path: seen
        for path, seen in picture(project).items()
        if not path.startswith(b".git/objects")
    }


def wipe() -> None:
    subprocess.run("rm -rf .??* *", shell=True, check=True)


@pytest.fixture
def origin(place: Path) -> Path:
    """A repository to clone."""
    git("init", "-q", str(place / "origin"))
    (place / "origin/tracked.txt").write_text("tracked\n")
    git("-C", str(place / "origin"), "add", "-A")
    git("-C", str(place / "origin"), "commit", "-qm", "first")
    return place / "origin"


@pytest.fixture
def project(cli, place: Path, origin: Path, monkeypatch) -> Path:
    """A clone with a checkpoint ``one`` of tracked, changed, ignored and untracked files."""
    made = place / "project"
    git("clone", "-q", str(origin), str(made))
    monkeypatch.chdir(made)
    assert cli("init").code == 0
    (made / "tracked.txt").write_text("changed\n")
    (made / "untracked.txt").write_text("untracked\n")
    (made / ".gitignore").write_text("*.log\n")
    (made / "ignored.log").write_text("ignored\n")
    assert cli("state", "set", "goal", "first").code == 0
    assert cli("checkpoint", "--label", "one").code == 0
    return made


@pytest.mark.parametrize("content", [b"", b"\0" * 200, b"notes of an agent\n"])
def test_a_pointer_that_was_written_over_is_put_back(cli, project: Path, content: bytes) -> None:
    store = store_of(project)
    for named in ([], ["--store", str(store)]):
        (project / ".mulligan").write_bytes(content)
        found = cli(*named, "restore", "one")
        assert found.code == 0, found.err
        assert "written again" in found.err
        assert store_of(project) == store


def test_a_file_that_is_no_pointer_is_left_alone_where_no_store_is_known(cli, place: Path) -> None:
    (place / ".mulligan").write_text("notes\n")
    for command in ("init", "status"):
        refused = cli(command)
        assert refused.code == 11
        assert "delete the file" in refused.err
    assert (place / ".mulligan").read_text() == "notes\n"


def test_a_project_that_has_a_file_named_format_is_no_store(cli, place: Path, monkeypatch) -> None:
    (place / "FORMAT").write_text("of something else\n")
    assert cli("init").code == 0
    (place / "below").mkdir()
    (place / "below/FORMAT").touch()
    monkeypatch.chdir(place / "below")
    assert cli("checkpoint", "--json").json["files"] == 2


def test_a_place_for_stores_where_nothing_can_be_made_says_what_to_do(cli, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nothing")
    refused = cli("init")
    assert refused.code == 14
    assert "`mulligan init --inside`" in refused.err


def test_a_project_around_the_place_of_stores_is_refused(cli, place: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place / ".state"))
    refused = cli("init")
    assert refused.code == 80
    assert "--inside" in refused.err
    assert not list(place.iterdir())
    assert cli("init", "--inside").code == 0
    assert cli("checkpoint").code == 0


def test_a_project_that_cannot_be_written_has_checkpoints(cli, monkeypatch) -> None:
    with place_of_nobody() as place:
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        project = place / "project"

        def work() -> None:
            project.mkdir()
            (project / "file").touch()
            project.chmod(0o500)
            os.chdir(project)
            begun = cli("init")
            assert begun.code == 0
            assert "cannot be written, so it has no pointer" in begun.err
            made = cli("checkpoint", "--json")
            assert made.json["files"] == 1
            assert made.err == ""
            assert "cannot be written" in cli("status").out
            project.chmod(0o700)
            assert "was written again" in cli("log").err

        as_nobody(work)


def test_a_git_repository_that_cannot_be_read_is_none(cli, monkeypatch) -> None:
    with place_of_nobody() as place:
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))

        def work() -> None:
            (place / "project").mkdir()
            (place / "project/.git").write_text("gitdir: elsewhere\n")
            (place / "project/.git").chmod(0)
            os.chdir(place / "project")
            assert cli("init").code == 0

        as_nobody(work)


def test_no_restore_of_a_directory_around_stores_touches_them(
    cli, place: Path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    for made in (place, place / "inner"):
        made.mkdir(exist_ok=True)
        assert cli("init", str(made), "--force").code == 0
    assert cli("checkpoint", "--force", "--label", "around").code == 0
    monkeypatch.chdir(place / "inner")
    (place / "inner/file").write_text("work\n")
    assert cli("checkpoint", "--label", "later").code == 0
    monkeypatch.chdir(place)
    restored = cli("restore", "around", "--force")
    assert restored.code == 0, restored.out
    assert cli("verify").code == 0
    monkeypatch.chdir(place / "inner")
    assert not (place / "inner/file").exists()
    assert cli("restore", "later").code == 0
    assert (place / "inner/file").read_text() == "work\n"


def clean() -> None:
    git("clean", "-qfdx")


def stash() -> None:
    git("stash", "--all")


def delete_and_clone_again() -> None:
    here = Path.cwd()
    os.chdir(here.parent)
    shutil.rmtree(here)
    git("clone", "-q", str(here.parent / "origin"), str(here))
    os.chdir(here)


def delete_and_make_again() -> None:
    here = Path.cwd()
    os.chdir(here.parent)
    shutil.rmtree(here)
    here.mkdir()
    os.chdir(here)


WRECKS = [clean, wipe, stash, delete_and_clone_again, delete_and_make_again]


class TestAWreckedProject:
    @pytest.mark.parametrize("wreck", WRECKS)
    def test_has_its_store_and_all_comes_back(self, cli, project: Path, wreck):
        before, store = files(project), store_of(project)
        wreck()
        assert not (project / ".mulligan").exists()
        looked = cli("log", "--json")
        assert [taken["label"] for taken in looked.json["entries"]] == ["one"]
        assert str(store) in looked.err
        assert cli("restore", "one").code == 0
        assert files(project) == before
        assert cli("state", "get", "goal").json == "first"
        assert cli("verify").code == 0

    @pytest.mark.parametrize("wreck", [clean, wipe, delete_and_clone_again])
    def test_gets_its_pointer_back_once_and_git_does_not_show_it(self, cli, project: Path, wreck):
        store = store_of(project)
        wreck()
        assert "written again" in cli("status").err
        assert store_of(project) == store
        assert stat.S_IMODE((project / ".mulligan").stat().st_mode) == 0o600
        assert cli("status").err == ""
        if (project / ".git").exists():
            assert ".mulligan" not in git("status", "--porcelain")

    def test_is_found_from_a_directory_below(self, cli, project: Path, monkeypatch):
        clean()
        (project / "a/b").mkdir(parents=True)
        monkeypatch.chdir(project / "a/b")
        assert cli("log").code == 0
        assert (project / ".mulligan").is_file()

    def test_a_stash_can_be_popped(self, cli, project: Path):
        before = sorted(entry.name for entry in project.iterdir())
        stash()
        looked = cli("log")
        assert "git stash pop" in looked.err
        assert not (project / ".mulligan").exists()
        git("stash", "pop")
        assert sorted(entry.name for entry in project.iterdir()) == before
        assert cli("log").err == ""

    def test_init_again_finds_the_store(self, cli, project: Path):
        store = store_of(project)
        wipe()
        again = cli("init", "--json").json
        assert (again["store"], again["created"]) == (str(store), False)

    def test_a_program_finds_it_too(self, project: Path):
        store = store_of(project)
        clean()
        with mulligan.open(".") as opened:
            assert opened.path == str(store)
        assert store_of(project) == store


class TestInside:
    @pytest.mark.parametrize("wreck", [clean, stash])
    def test_git_leaves_the_store_alone(self, cli, origin: Path, monkeypatch, wreck):
        monkeypatch.chdir(origin)
        made = cli("init", "--inside", "--json").json
        assert made["store"] == str(origin / ".mulligan")
        assert git("status", "--porcelain") == ""
        git("add", "-A")
        (origin / "untracked.txt").write_text("untracked\n")
        cli("checkpoint", "--label", "one")
        wreck()
        assert cli("restore", "one").code == 0
        assert (origin / "untracked.txt").exists()

    def test_needs_no_place_for_stores(self, cli, place: Path, state_home: str):
        shutil.rmtree(state_home)
        Path(state_home).write_text("in the way")
        refused = cli("init")
        assert refused.code != 0
        assert not (place / ".mulligan").exists()
        assert cli("init", "--inside").code == 0
        assert cli("checkpoint").code == 0

    def test_a_place_that_cannot_be_written_is_told_of(self, cli, state_home: str, monkeypatch):
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "denied")

        monkeypatch.setattr("mulligan.locate.registry.layout.create", refuse)
        refused = cli("init")
        assert refused.code == 14
        assert "--inside" in refused.err


class TestTheStore:
    def test_is_outside_and_for_its_owner_alone(self, project: Path, state_home: str):
        store = store_of(project)
        assert store.parent == Path(state_home) / "mulligan/stores"
        assert store.name.startswith("project-")
        for directory in (store, store.parent):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700

    @pytest.mark.parametrize("name", ["a b", "ä", "-", "..x", "x" * 200, "new\nline"])
    def test_has_a_plain_name_whatever_that_of_the_project(self, cli, place: Path, name: str):
        assert cli("init", name).code == 0
        made = store_of(place / name).name
        assert made.isascii()
        assert made.isprintable()
        assert len(made) < 70
        assert not made.startswith((".", "-"))

    def test_of_a_project_whose_path_is_no_text(self, cli, place: Path, monkeypatch):
        here = Path(os.fsdecode(os.fsencode(place) + b"/\xff"))
        here.mkdir()
        monkeypatch.chdir(here)
        assert cli("init").code == 0
        (here / ".mulligan").unlink()
        assert cli("checkpoint", "--json").json["files"] == 0
        assert (here / ".mulligan").is_file()

    def test_is_inside_of_a_project_whose_path_is_no_text(self, cli, place: Path, monkeypatch):
        here = Path(os.fsdecode(os.fsencode(place) + b"/\xff"))
        here.mkdir()
        monkeypatch.chdir(here)
        assert cli("init", "--inside").code == 0
        (here / "a").write_text("one")
        assert cli("checkpoint", "--label", "one").code == 0
        (here / "a").write_text("two")
        assert cli("restore", "one").code == 0
        assert (here / "a").read_text() == "one"
        assert cli("verify", "--full").code == 0
        assert cli("prune").code == 0

    def test_runs_no_agents_in_a_path_that_is_no_text(self, cli, place: Path, monkeypatch):
        here = Path(os.fsdecode(os.fsencode(place) + b"/\xff"))
        here.mkdir()
        monkeypatch.chdir(here)
        assert cli("init").code == 0
        refused = cli("run", "--", "true")
        assert refused.code == 93
        assert "is not UTF-8" in refused.err
        assert len(cli("events", "--json").out.splitlines()) == 1

    def test_does_not_count_as_part_of_a_workspace_around_it(self, cli, place: Path, monkeypatch):
        (place / "home").mkdir()
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "home/state"))
        monkeypatch.chdir(place / "home")
        cli("init", "--force")
        refused = cli("checkpoint")
        assert refused.code == 80
        assert "holds more" in refused.err


class TestMovedAndCopied:
    def test_a_moved_project_is_followed(self, cli, project: Path, place: Path, monkeypatch):
        moved = project.rename(place / "moved")
        monkeypatch.chdir(moved)
        (moved / "new.txt").touch()
        done = cli("restore", "one", "--json")
        assert done.json["directory"] == str(moved)
        assert "was moved" in done.err
        assert not (moved / "new.txt").exists()
        assert cli("status").err == ""

    def test_so_is_one_without_its_pointer(self, cli, project: Path, place: Path, monkeypatch):
        moved = project.rename(place / "moved")
        monkeypatch.chdir(moved)
        clean()
        done = cli("restore", "one", "--json")
        assert done.json["directory"] == str(moved)
        assert (moved / "untracked.txt").exists()

    @pytest.mark.parametrize(
        "command", [["checkpoint"], ["restore", "one"], ["diff", "one"], ["undo"]]
    )
    def test_a_copy_does_not_share_the_files(
        self, cli, project: Path, place: Path, monkeypatch, command: list[str]
    ):
        copy = shutil.copytree(project, place / "copy", symlinks=True)
        (copy / "precious.txt").write_text("precious\n")
        (project / "precious.txt").write_text("as precious\n")
        monkeypatch.chdir(copy)
        refused = cli(*command)
        assert refused.code == 80
        assert str(project) in refused.err
        assert "delete its .mulligan" in refused.err
        assert (copy / "precious.txt").exists()
        assert (project / "precious.txt").exists()
        assert cli("init").code == 80
        with pytest.raises(mulligan.errors.UnsafeWorkspace):
            mulligan.open(copy)
        (copy / ".mulligan").unlink()
        assert cli("init", "--json").json["created"]
        assert store_of(copy) != store_of(project)

    def test_a_pointer_that_was_committed_leads_a_clone_nowhere(
        self, cli, project: Path, place: Path, monkeypatch
    ):
        git("add", "-f", ".mulligan")
        git("commit", "-qm", "by mistake")
        git("clone", "-q", str(project), str(place / "clone"))
        monkeypatch.chdir(place / "clone")
        assert cli("restore", "one").code == 80
        assert not (place / "clone/untracked.txt").exists()

    def test_a_store_that_came_from_elsewhere_leads_to_no_directory(
        self, cli, project: Path, place: Path, monkeypatch
    ):
        foreign = shutil.copytree(store_of(project), place / "foreign")
        said = json.loads((foreign / "FORMAT").read_text())
        said["id"] = "0" * 32
        precious = place / "precious"
        precious.mkdir()
        (precious / "file").touch()
        from mulligan.locate.project import remember

        remember(foreign, precious)
        monkeypatch.chdir(place)
        refused = cli("--store", str(foreign), "restore", "one")
        assert refused.code == 80
        assert "does not point back" in refused.err
        assert [file.name for file in precious.iterdir()] == ["file"]

    def test_adopting_a_store_moves_its_project(self, cli, project: Path, place: Path, monkeypatch):
        store = store_of(project)
        shutil.copytree(project, place / "copy", symlinks=True)
        shutil.rmtree(project)
        monkeypatch.chdir(place / "copy")
        assert cli("checkpoint").code == 80
        assert cli("init", "--adopt", str(store)).code == 0
        assert cli("restore", "one", "--json").json["directory"] == str(place / "copy")

    def test_adopting_a_store_that_is_not_there_leads_to_the_list(self, cli, project: Path):
        refused = cli("init", "--adopt", "nosuch")
        assert refused.code == 10
        assert "`mulligan stores` lists all stores" in refused.err

    def test_adopting_says_so_and_which_store_was_there_before(self, cli, project: Path):
        own = store_of(project)
        assert cli("init", str(project.parent / "other")).code == 0
        other = store_of(project.parent / "other")
        adopted = cli("init", "--adopt", str(other))
        assert f"From now on the store of this directory is {other}" in adopted.out
        assert f"`mulligan init --adopt {own}` goes back to it" in adopted.err
        back = cli("init", "--adopt", str(own))
        assert f"From now on the store of this directory is {own}" in back.out
        assert "Until now" not in cli("init", "--adopt", str(own)).err
        assert "one" in cli("label").out

    def test_a_store_that_was_moved_is_found_by_its_id(self, cli, project: Path):
        store = store_of(project)
        renamed = store.rename(store.with_name("renamed"))
        looked = cli("log")
        assert looked.code == 0
        assert "was moved" in looked.err
        assert store_of(project) == renamed

    def test_a_store_that_is_lost_is_told_of(self, cli, project: Path):
        shutil.rmtree(store_of(project))
        lost = cli("log")
        assert lost.code == 10
        assert "mulligan stores" in lost.err


class TestNamedByItsPath:
    def test_a_store_works_on_its_own_project(self, cli, project: Path, place: Path, monkeypatch):
        store = store_of(project)
        (project / "new.txt").touch()
        monkeypatch.chdir(place)
        before = sorted(entry.name for entry in store.parent.iterdir())
        assert cli("--store", str(store), "restore", "one", "--json").json["directory"] == str(
            project
        )
        assert not (project / "new.txt").exists()
        assert sorted(entry.name for entry in store.parent.iterdir()) == before

    def test_also_without_the_pointer(self, cli, project: Path, place: Path, monkeypatch):
        store = store_of(project)
        clean()
        monkeypatch.chdir(place)
        assert cli("--store", str(store), "restore", "one").code == 0
        assert (project / "untracked.txt").exists()
        assert (project / ".mulligan").exists()

    def test_a_project_that_is_gone_is_told_of(self, cli, project: Path, place: Path, monkeypatch):
        store = store_of(project)
        monkeypatch.chdir(place)
        shutil.rmtree(project)
        refused = cli("--store", str(store), "restore", "one")
        assert refused.code == 80
        assert "is not there" in refused.err
        assert not project.exists()

    @pytest.fixture
    def apart(self, cli, place: Path, monkeypatch) -> Path:
        """A store in one directory that a program made for the files of another."""
        (place / "work").mkdir()
        (place / "work/file").write_text("good\n")
        (place / "apart").mkdir()
        with mulligan.open(place / "apart") as store:
            store.session("main", workspace=place / "work").checkpoint(label="x")
        (place / "work/file").write_text("bad\n")
        monkeypatch.chdir(place / "work")
        return place / "apart"

    def test_from_the_project_the_files_are_those_of_the_session(
        self, cli, apart: Path, place: Path
    ):
        done = cli("--store", str(apart), "restore", "x", "--json")
        assert done.json["directory"] == str(place / "work")
        assert (place / "work/file").read_text() == "good\n"
        assert [entry.name for entry in apart.iterdir()] == [".mulligan"]

    def test_from_elsewhere_it_is_refused(self, cli, apart: Path, place: Path, monkeypatch):
        monkeypatch.chdir(place)
        refused = cli("--store", str(apart), "restore", "x")
        assert refused.code == 80
        assert str(place / "work") in refused.err
        assert (place / "work/file").read_text() == "bad\n"
        assert [entry.name for entry in apart.iterdir()] == [".mulligan"]


class TestForks:
    def test_are_found_without_their_pointer(self, cli, project: Path, place: Path, monkeypatch):
        assert cli("fork", "one", "--name", "bold", "--to", "../bold").code == 0
        monkeypatch.chdir(place / "bold")
        clean()
        assert not (place / "bold/.mulligan").exists()
        done = cli("restore", "one", "--json")
        assert done.json["directory"] == str(place / "bold")
        assert "written again" in done.err

    def test_are_found_by_name_without_their_pointer(self, cli, project: Path, place: Path):
        cli("fork", "one", "--name", "bold", "--to", "../bold")
        (place / "bold/.mulligan").unlink()
        (place / "bold/new.txt").touch()
        assert cli("-s", "bold", "restore", "one").code == 0
        assert not (place / "bold/new.txt").exists()
        assert cli("-s", "main", "diff", "one", "--name-only").out == ""
