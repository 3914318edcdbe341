"""mulligan purge and mulligan du: the text, the JSON, the questions and the exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.raw_bytes import files_with

SECRET = "sk-live-Zq8vKx03LmPw7RtY"
PATTERN = "sk-live-[A-Za-z0-9]{8,}"


def directory(store: Cli) -> Path:
    return Path(store("status", "--json").json["store"])


@pytest.fixture
def leaked(store: Cli, place: Path) -> Cli:
    """A store that holds a secret in a file, in the state and in a note."""
    (place / ".env").write_text(f"KEY={SECRET}\n")
    (place / "app.py").write_text("print('hello')\n")
    store("state", "set", "memory/key", SECRET)
    store("checkpoint", "-m", f"with {SECRET}", "--label", "one")
    return store


def test_a_dry_run_shows_where_it_is_and_never_what_it_is(leaked: Cli):
    shown = leaked("purge", "--match", PATTERN, "--dry-run")
    assert shown.code == 0
    assert SECRET not in shown.out + shown.err
    assert "file  main  .env" in shown.out
    assert "checkpoint.created  note" in shown.out
    assert "sk… (24 bytes)" in shown.out
    assert "Found in 1 file and 2 events" in shown.out
    assert "The workspace has it in .env" in shown.err
    assert "Nothing was changed." in shown.out
    found = leaked("purge", "--match", PATTERN, "--dry-run", "--json").json
    assert (found["dry_run"], found["chunks"], found["proof"]) == (True, 1, None)
    assert [(one["path"], one["is_present"]) for one in found["files"]] == [(".env", True)]
    assert {one["kind"] for one in found["events"]} == {"state.set", "checkpoint.created"}
    assert SECRET in leaked("state", "get", "memory/key").out


def test_without_a_terminal_it_asks_for_yes(leaked: Cli):
    refused = leaked("purge", ".env")
    assert refused.code == 122
    assert "no terminal to ask on" in refused.err
    assert "--yes removes it" in refused.err
    assert leaked("purge", ".env", "--json").code == 122
    assert leaked("purge", ".env", "--dry-run").code == 0


def test_it_removes_and_proves(leaked: Cli, place: Path):
    done = leaked("purge", "--match", PATTERN, "--reason", "leaked key", "--yes")
    assert done.code == 0, done.err
    assert "Purge 1: purged " in done.out
    assert ": leaked key." in done.out
    assert "✓ proved: " in done.out
    assert "bytes scanned, nothing left." in done.out
    assert files_with(directory(leaked), SECRET.encode()) == []
    assert leaked("verify").code == 0
    assert "leaked key]" in leaked("state", "get", "memory/key").out
    assert "leaked key" in leaked("log").out
    record = leaked("show", "one", "--json").json
    assert [file["path"] for file in record["purged"]] == [".env"]
    assert "purged\n  .env  purged " in leaked("show", "one").out
    events = [json.loads(line) for line in leaked("events", "--json").out.splitlines()]
    assert [e["kind"] for e in events if e["purge"] == 1] == ["state.set", "checkpoint.created"]
    assert events[-1]["kind"] == "upkeep.purged"
    again = leaked("purge", "--match", PATTERN, "--yes")
    assert (again.code, "There is nothing to remove" in again.out) == (0, True)


def test_a_restore_and_a_diff_name_the_purged_file(leaked: Cli, place: Path):
    leaked("purge", ".env", "--yes", "--reason", "leaked")
    (place / "app.py").write_text("print('bye')\n")
    (place / ".env").write_text("KEY=new\n")
    shown = leaked("diff", "one")
    assert shown.code == 0
    assert ".env" in shown.out
    plan = leaked("restore", "one", "--dry-run")
    assert ".env is left as it is: its content was purged " in plan.err
    seen = leaked("restore", "one", "--dry-run", "--json").json
    assert [one["path"] for one in seen["purged"]] == [".env"]
    done = leaked("restore", "one", "--yes")
    assert done.code == 0, done.err
    assert ".env is left as it is: its content was purged " in done.err
    assert (place / "app.py").read_text() == "print('hello')\n"
    assert (place / ".env").read_text() == "KEY=new\n"
    assert leaked("undo", "--json").json["purged"] == []
    found = leaked("restore", "one", "--json").json
    assert [one["path"] for one in found["purged"]] == [".env"]


def test_a_restore_with_nothing_else_to_do_names_it(leaked: Cli, place: Path):
    leaked("purge", ".env", "--yes")
    (place / ".env").unlink()
    done = leaked("restore", "one")
    assert (done.code, "Nothing to restore" in done.out) == (0, True)
    assert ".env is left as it is: its content was purged " in done.err


def test_the_expression_comes_from_standard_input_and_may_be_plain_text(leaked: Cli):
    done = leaked("purge", "--fixed", "--match", "-", "--yes", stdin=f"{SECRET}\n")
    assert done.code == 0, done.err
    assert files_with(directory(leaked), SECRET.encode()) == []


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((), 2, "Give paths or digests"),
        (("x", "--match", "y"), 2, "Give paths or digests"),
        (("--finish", "x"), 2, "Give paths or digests"),
        (("--match", ""), 2, "it is empty"),
        (("--match", "("), 122, "cannot be used"),
        (("--match", "state"), 122, "a word of the store's format"),
        (("--match", "created"), 122, "the name of a kind of event"),
        (("--wait", "-1", "x"), 2, "negative"),
        (("x", "--reason", "y" * 300, "--yes"), 122, "at most 200"),
        (("0123456789abcdef",), 122, "There is no object"),
        (("x", "-s", "nobody", "--dry-run"), 20, "nobody"),
    ],
)
def test_wrong_arguments(leaked: Cli, args: tuple[str, ...], code: int, words: str):
    done = leaked("purge", *args)
    assert (done.code, words in done.err) == (code, True), done.err


def test_what_is_not_there_is_said(leaked: Cli):
    done = leaked("purge", "nowhere/file", "--yes")
    assert done.code == 0
    assert "There is nothing to remove" in done.out


def test_content_that_another_path_has_stays_and_is_named(leaked: Cli, place: Path):
    (place / "backup.env").write_text(f"KEY={SECRET}\n")
    leaked("checkpoint")
    shown = leaked("purge", ".env", "--dry-run")
    assert "Content of .env stays: backup.env has it too. Name both" in shown.err


def test_beside_a_process_that_has_the_store_open_it_stays_unfinished(leaked: Cli, place: Path):
    import mulligan

    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(done[1])
        with mulligan.open(place):
            os.write(ready[1], b"1")
            os.read(done[0], 1)
        os._exit(0)
    os.close(done[0])
    os.read(ready[0], 1)
    left = leaked("purge", "--match", PATTERN, "--yes", "--wait", "0.1")
    assert left.code == 123, left.out
    assert "other processes have it open" in left.err
    assert "is not finished: bytes of it may be left" in leaked("status").out
    assert len(leaked("status", "--json").json["upkeep"]["unfinished_purges"]) == 1
    assert "it is not finished" in leaked("verify").out
    os.close(done[1])
    os.waitpid(child, 0)
    finished = leaked("purge", "--finish", "--json").json
    assert finished["proof"]["is_proved"]
    assert files_with(directory(leaked), SECRET.encode()) == []
    assert leaked("status", "--json").json["upkeep"]["unfinished_purges"] == []


def test_du_shows_where_the_bytes_are(store: Cli, place: Path):
    (place / "large").write_bytes(os.urandom(300_000))
    (place / "small").write_bytes(os.urandom(20_000))
    store("state", "set", "memory/long", "x" * 50_000)
    store("checkpoint", "--label", "one")
    store("fork", "one", "--name", "other")
    store("checkpoint", "-s", "other")
    found = store("du", "--json").json
    kinds = found["kinds"]
    assert found["total_bytes"] == sum(kinds.values())
    assert 320_000 <= kinds["files"] <= 330_000
    assert [one["path"] for one in found["largest_paths"]] == ["large", "small"]
    assert found["largest_paths"][0]["bytes"] >= 300_000
    sessions = {one["session"]: one for one in found["sessions"]}
    # Both hold the same files: they are counted once, as shared.
    assert sessions["main"]["files_bytes"] == sessions["other"]["files_bytes"] == 0
    assert found["shared"]["files_bytes"] == kinds["files"]
    shown = store("du")
    assert "shared by several: files 3" in shown.out
    assert "The next prune would free up to" in shown.out
    assert store("du", "-q").out.strip().isdecimal()
    assert "large" not in store("du", "--paths", "0").out


def test_du_counts_copies_of_events_as_such(store: Cli, place: Path):
    for number in range(3):
        store("state", "set", "memory/long", f"{number}" * 30_000)
        (place / "file").write_bytes(os.urandom(3_000))
        store("checkpoint", "-q")
    kinds = store("du", "--json").json["kinds"]
    assert kinds["copies"] > 0
    # A pack takes whole blocks of the disk.
    assert kinds["garbage"] < 4_096
    assert "  copies " in store("du").out


def test_du_does_not_list_a_deleted_session(store: Cli, place: Path):
    assert store("checkpoint", "-s", "doomed", "--create", "--no-files").code == 0
    assert store("state", "-s", "doomed", "set", "memory/long", "x" * 50_000).code == 0
    assert store("checkpoint", "-s", "doomed", "--no-files", "--label", "one").code == 0
    assert store("fork", "-s", "doomed", "one", "--name", "branch").code == 0
    before = store("du", "--json").json
    assert store("delete", "doomed", "--yes").code == 0
    found = store("du", "--json").json
    names = [one["session"] for one in found["sessions"]]
    assert "branch" in names
    assert [name for name in names if "doomed" in name or "deleted" in name] == []
    # The fork needs what it continues from.
    assert found["kinds"]["state"] == before["kinds"]["state"]


def test_du_says_what_the_next_prune_frees(store: Cli, place: Path):
    for _ in range(5):
        (place / "file").write_bytes(os.urandom(50_000))
        store("checkpoint", "--kind", "routine", "-q")
    plan = store("prune", "--dry-run", "--json").json
    found = store("du", "--json").json["next_prune"]
    assert (found["checkpoints"], found["checkpoint_bytes"]) == (2, plan["bytes_freed"])
