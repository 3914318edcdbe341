"""Listing stores, and moving them into their project and out of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mulligan
from mulligan.cli.main import run
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from tests.children import Tell, run_child
from tests.nobody import as_nobody, place_of_nobody
from tests.stores import store_of


@pytest.fixture
def project(cli, place: Path, monkeypatch) -> Path:
    made = place / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    subprocess.run(["git", "init", "-q"], check=True)
    cli("init")
    (made / "file").write_text("one\n")
    assert cli("checkpoint", "--label", "one").code == 0
    return made


def statuses(cli) -> dict[str, str]:
    found = cli("stores", "--json").json["stores"]
    return {Path(store["project"]).name: store["project_status"] for store in found}


class TestStores:
    def test_without_any(self, cli):
        assert cli("stores", "--json").json == {"stores": [], "damaged": []}
        assert "mulligan init" in cli("stores").err

    def test_that_may_not_be_looked_at_are_not_called_none(self, place: Path):
        with place_of_nobody() as state:

            def body() -> None:
                closed = state / "mulligan" / "stores"
                closed.mkdir(parents=True)
                closed.chmod(0)
                os.environ["XDG_STATE_HOME"] = str(state)
                os.dup2(os.open(state / "said", os.O_WRONLY | os.O_CREAT), 2)
                sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
                assert run(["stores"]) == 74
                said = (state / "said").read_text()
                assert "Permission denied" in said
                assert f"ls -ld {closed}" in said

            as_nobody(body)

    def test_says_of_each_what_it_is_for(self, cli, project: Path):
        [store] = cli("stores", "--json").json["stores"]
        assert store["store"] == str(store_of(project))
        assert (store["project"], store["inside"]) == (str(project), False)
        assert store["size_bytes"] > 0
        assert store["last_used"].startswith("20")
        assert str(project) in cli("stores").out
        assert cli("stores", "-q").out == f"{store_of(project)}\n"

    def test_a_store_without_its_journal_hides_no_other(self, cli, project: Path):
        shutil.rmtree(store_of(project) / "journal")
        assert statuses(cli) == {"project": "here"}
        assert cli("log").code == 63

    def test_names_a_store_whose_format_cannot_be_read(self, cli, project: Path):
        store = store_of(project)
        (store / "FORMAT").write_bytes(b"\xff")
        said = cli("stores")
        assert f"The FORMAT file of {store} cannot be read" in said.err
        assert "init" not in said.err
        [damaged] = cli("stores", "--json").json["damaged"]
        assert damaged["store"] == str(store)
        assert "back from a copy" in cli("status").err

    def test_says_whose_project_is_gone_or_another_one(self, cli, project: Path, place: Path):
        for name in ("inside", "gone", "again"):
            (place / name).mkdir()
            assert cli("init", str(place / name), *["--inside"] * (name == "inside")).code == 0
        for name in ("gone", "again"):
            shutil.rmtree(place / name)
        (place / "again").mkdir()
        assert statuses(cli) == {
            "project": "here",
            "inside": "here",
            "gone": "gone",
            "again": "renewed",
        }
        assert "not there any more" in cli("stores").out


class TestMoveStore:
    def test_there_and_back(self, cli, project: Path):
        outside = store_of(project)
        moved = cli("move-store", "--inside", "--json").json
        assert moved == {"store": str(project / ".mulligan"), "from": str(outside), "moved": True}
        assert not outside.exists()
        assert subprocess.run(["git", "clean", "-qfdx"], check=True)
        assert cli("restore", "one").code == 0
        assert (project / "file").read_text() == "one\n"
        assert statuses(cli) == {"project": "here"}
        assert cli("move-store").out == f"Moved the store to {outside}\n"
        assert store_of(project) == outside
        assert not list(project.glob(".mulligan.*"))
        assert cli("verify").code == 0
        assert cli("move-store", "--json").json["moved"] is False
        both = cli("move-store", "--inside", "--outside")
        assert both.code == 2
        assert "exclude each other" in both.err
        assert "`mulligan move-store --inside` moves it in" in cli("init", "--inside").err
        (project / "file").unlink()
        assert cli("restore", "one").code == 0
        assert (project / "file").exists()

    def test_a_store_of_an_earlier_version_is_moved_out(self, cli, place: Path):
        with mulligan.open(place) as store:
            store.session("main", workspace=place).checkpoint(label="old")
        assert cli("move-store").code == 0
        assert store_of(place).is_dir()
        assert cli("log").code == 0
        assert cli("checkpoint", "--json").json["files"] == 0

    def test_the_stores_of_a_project_and_its_copy_stay_apart(
        self, cli, project: Path, place: Path, monkeypatch
    ):
        assert cli("move-store", "--inside").code == 0
        copy = place / "backup" / "project"
        shutil.copytree(project, copy)
        assert cli("move-store").code == 0
        assert cli("checkpoint", "--label", "later").code == 0
        monkeypatch.chdir(copy)
        assert cli("move-store").code == 0
        assert store_of(copy) != store_of(project)
        assert cli("show", "later").code != 0
        monkeypatch.chdir(project)
        assert cli("show", "later").code == 0

    def test_also_where_tmp_was_deleted(self, cli, project: Path, place: Path):
        store = store_of(project)
        for way in ("--inside", "--outside"):
            shutil.rmtree(store / "tmp")
            assert cli("fork", "one", "--to", str(place / way)).code == 0
            shutil.rmtree(store / "tmp")
            store = Path(cli("move-store", way, "--json").json["store"])
        assert cli("verify").code == 0

    def test_a_fork_goes_on_finding_it(self, cli, project: Path, place: Path, monkeypatch):
        cli("fork", "one", "--name", "bold", "--to", "../bold")
        assert cli("move-store", "--inside").code == 0
        monkeypatch.chdir(place / "bold")
        (place / "bold/file").write_text("two\n")
        assert cli("checkpoint", "--json").json["session"] == "bold"
        assert cli("restore", "one").code == 0
        assert (place / "bold/file").read_text() == "one\n"

    def test_a_store_that_is_open_elsewhere_is_refused(self, cli, process, project: Path):
        following = process("--store", str(project), "events", "--follow")
        assert following.stdout is not None
        assert following.stdout.readline()
        refused = cli("move-store", "--inside")
        assert refused.code == 24
        assert "Nothing was changed" in refused.err
        following.kill()
        following.communicate()
        assert cli("move-store", "--inside").code == 0

    def test_a_store_with_a_pending_restore_is_refused(self, cli, project: Path):
        (project / "file").write_text("two\n")
        store = store_of(project)

        def die(_: Tell) -> None:
            failpoint = kill_at(Failpoint.RESTORE_TEMPORARY_WRITTEN)
            with open_store(store, failpoint=failpoint) as opened:
                opened.session("main", workspace=project).restore("one")

        assert run_child(die).by_sigkill
        refused = cli("move-store", "--inside")
        assert refused.code == 84
        assert store_of(project) == store
        assert cli("undo").code == 0
