"""A restore that was interrupted: commands that look leave it alone, and three ways end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mulligan
from mulligan.failpoints import Failpoint
from mulligan.testing.failpoints import kill_at
from mulligan.testing.stores import open_store
from tests.children import Tell, run_child
from tests.pictures import Picture, picture

FILES = 20
LOOKS = [
    ["status"],
    ["log"],
    ["show"],
    ["events"],
    ["diff", "then"],
    ["diff", "then", "@latest"],
    ["restore", "then", "--dry-run"],
    ["undo", "--dry-run"],
    ["bisect", "--good", "then", "--bad", "@latest", "--", "true"],
]


def write(place: Path, text: str) -> None:
    for number in range(FILES):
        (place / f"{number}.txt").write_text(f"{text} {number}")


@pytest.fixture
def then(store, place: Path) -> Picture:
    """What the checkpoint ``then`` holds."""
    write(place, "then")
    assert store("checkpoint", "--label", "then").code == 0
    return picture(place)


@pytest.fixture
def now(then: Picture, store, place: Path) -> Picture:
    """What was there before the restore."""
    write(place, "now and longer")
    store("state", "set", "goal", "now")
    return picture(place)


def killed(
    place: Path, mode: str = "restore", point: Failpoint = Failpoint.RESTORE_RENAMED
) -> Picture:
    """Kill a restore, an undo or a redo halfway, and return what it left."""

    def body(_: Tell) -> None:
        hook = kill_at(point, FILES // 2)
        with open_store(place, failpoint=hook) as opened:
            session = opened.session("main", workspace=place)
            session.restore("then") if mode == "restore" else getattr(session, mode)()

    assert run_child(body).by_sigkill
    return picture(place)


@pytest.fixture
def half(now: Picture, place: Path) -> Picture:
    """What is there after it was killed."""
    return killed(place)


def head(place: Path) -> int:
    with mulligan.open(place, read_only=True) as opened:
        return opened.session("main", create=False).head.seq


@pytest.mark.parametrize("args", LOOKS, ids=" ".join)
@pytest.mark.parametrize("form", [[], ["--json"], ["--quiet"]], ids=" ".join)
def test_commands_that_look_write_nothing(
    half: Picture, store, place: Path, args: list[str], form: list[str]
) -> None:
    before = head(place)
    done = store(*form, *args)
    assert picture(place) == half
    assert head(place) == before
    assert done.code in (0, 34), done.err


@pytest.mark.parametrize(
    "args", [look for look in LOOKS if look[0] not in ("status", "events", "bisect")], ids=" ".join
)
def test_commands_that_look_name_it_and_how_it_ends(half: Picture, store, args: list[str]) -> None:
    said = store(*args).err
    assert "A restore to main #" in said
    assert "was interrupted: the files in" in said
    for way in ("restore --continue", "undo", "restore --abandon"):
        assert f"`mulligan {way}`" in said


def test_what_it_keeps_beside_the_files_is_no_change_of_theirs(
    now: Picture, store, place: Path
) -> None:
    left = killed(place, point=Failpoint.RESTORE_SWAPPED)
    assert [path for path in left if b".mulligan-draft-" in path]
    for args in (["diff", "then"], ["diff", "then", "--stat"], ["restore", "then", "--dry-run"]):
        shown = store(*args).out
        assert ".mulligan-draft-" not in shown
        assert "that a restore keeps beside others until it ends" in shown
    assert ".mulligan-draft-" not in store("diff", "then", "--name-only").out


def test_the_status_names_it(half: Picture, store, place: Path) -> None:
    said = store("status").words
    assert "are half restored." in said
    assert "`mulligan restore --continue` finishes it" in said
    [session] = store("--json", "status").json["sessions"]
    pending = session["pending"]
    assert (pending["mode"], pending["directory"]) == ("restore", str(place))
    assert pending["to"]["session"] == "main"
    assert pending["is_running"] is False
    assert store("--json", "show", pending["safety"]).json["note"].startswith("before restore")


@pytest.mark.parametrize(
    "args", [["diff", "then"], ["restore", "then", "--dry-run"], ["undo", "--dry-run"], ["log"]]
)
def test_programs_are_told_of_it(half: Picture, store, place: Path, args: list[str]) -> None:
    assert store("--json", *args).json["pending"]["directory"] == str(place)
    assert store("restore", "--continue").code == 0
    if args[0] != "undo":
        assert store("--json", *args).json["pending"] is None


def test_it_can_be_finished(half: Picture, then: Picture, store, place: Path) -> None:
    done = store("--json", "restore", "--continue")
    assert (done.code, done.json["applied"], done.json["mode"]) == (0, True, "restore")
    assert picture(place) == then
    assert store("state", "get", "goal").code == 42
    assert store("undo").code == 0
    assert store("state", "get", "goal", "--raw").out.strip() == "now"


def test_it_can_be_taken_back(half: Picture, now: Picture, store, place: Path) -> None:
    foreseen = store("--json", "undo", "--dry-run").json
    assert 0 < len(foreseen["files"]) < FILES, "only what was done of it is taken back"
    done = store("undo")
    assert done.code == 0
    assert picture(place) == now
    assert store("state", "get", "goal", "--raw").out.strip() == "now"
    assert store("--json", "status").json["sessions"][0]["pending"] is None


def test_it_can_be_abandoned(half: Picture, now: Picture, store, place: Path) -> None:
    done = store("--json", "restore", "--abandon")
    assert (done.code, done.json["applied"]) == (0, False)
    assert done.json["pending"]["mode"] == "restore"
    assert picture(place) == half
    assert store("checkpoint").code == 0
    assert store("undo").code == 0
    assert picture(place) == now


def test_abandoning_says_what_is_left(half: Picture, store) -> None:
    said = store("restore", "--abandon").out
    assert "Files and state stay as they are now" in said
    assert "`mulligan undo` brings back" in said


@pytest.mark.parametrize("way", ["--continue", "--abandon"])
def test_there_is_nothing_to_end_when_nothing_is_pending(now: Picture, store, way: str) -> None:
    done = store("restore", way)
    assert (done.code, "No restore is pending" in done.err) == (32, True)


@pytest.mark.parametrize(
    "args",
    [
        ["then", "--continue"],
        ["--continue", "--abandon"],
        ["--continue", "--dry-run"],
        ["--abandon", "--only", "memory"],
        [],
    ],
    ids=" ".join,
)
def test_choices_that_exclude_each_other(
    half: Picture, store, place: Path, args: list[str]
) -> None:
    assert store("restore", *args).code == 2
    assert picture(place) == half


def test_commands_that_write_finish_it_first(
    half: Picture, then: Picture, store, place: Path
) -> None:
    done = store("checkpoint")
    assert "was finished first" in done.err
    assert picture(place) == then


def test_another_restore_finishes_it_first_but_not_when_it_is_declined(
    half: Picture, then: Picture, store, on_terminal, place: Path
) -> None:
    code, shown = on_terminal("restore", "then", answer="n\n")
    assert (code, "was interrupted" in shown, picture(place)) == (1, True, half)
    done = store("restore", "then")
    assert (done.code, picture(place)) == (0, then)


def test_an_undo_that_was_interrupted_is_taken_back_by_redo(
    now: Picture, then: Picture, store, place: Path
) -> None:
    assert store("restore", "then").code == 0
    half = killed(place, "undo")
    assert "`mulligan redo` takes it back" in store("log").err
    assert store("redo", "--dry-run").code == 0
    assert picture(place) == half
    assert store("redo").code == 0
    assert picture(place) == then


def test_an_undo_that_was_interrupted_and_is_typed_again_goes_no_further(
    now: Picture, then: Picture, store, place: Path
) -> None:
    assert store("restore", "then").code == 0
    write(place, "third")
    assert store("restore", "then").code == 0
    assert store("undo").code == 0
    third = picture(place)
    assert store("redo").code == 0
    killed(place, "undo")
    assert store("undo").code == 0
    assert picture(place) == third


INTERRUPTED = """
import signal, sys
import mulligan.opener
from mulligan.failpoints import Failpoint
from mulligan.cli.main import main

left = [10]

def failpoint(point):
    if point is Failpoint.RESTORE_RENAMED:
        left[0] -= 1
        if left[0] == 0:
            print("HALF", file=sys.stderr, flush=True)
            signal.pause()

real = mulligan.opener.open_store
def open_store(path, variables, create, keep_env, clock, _, *rest, **more):
    return real(path, variables, create, keep_env, clock, failpoint, *rest, **more)
mulligan.opener.open_store = open_store
main()
"""


def test_ctrl_c_says_what_is_half_done_and_what_to_type(
    now: Picture, then: Picture, store, place: Path
) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, "restore", "then"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    while "HALF" not in started.stderr.readline():
        pass
    [session] = store("--json", "status").json["sessions"]
    assert session["pending"]["is_running"] is True
    assert "is under way" in store("status").words
    started.send_signal(signal.SIGINT)
    err = started.stderr.read()
    assert started.wait(60) == 130
    started.stderr.close()
    assert f"Interrupted: the files in {place} are half restored." in err
    assert "Nothing is lost. `mulligan restore --continue` finishes it" in err
    assert "Traceback" not in err
    assert picture(place) not in (now, then)
    assert store("restore", "--continue").code == 0
    assert picture(place) == then


def test_a_full_disk_says_what_is_half_done_and_what_to_type(cli, place: Path) -> None:
    disk = place / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        project = disk / "project"
        assert cli("init", str(project)).code == 0
        (project / "large").write_bytes(os.urandom(2 << 20))
        cli("--store", str(project), "checkpoint", "--label", "then")
        (project / "large").unlink()
        (project / "other").write_bytes(os.urandom(2 << 20))
        full = cli("--store", str(project), "restore", "then")
        assert full.code == 15
        assert "There is no space left" in full.err
        assert f"The files in {project} are half restored" in full.err
        assert "`mulligan undo` takes it back" in full.err
        assert cli("--store", str(project), "undo").code == 0
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_ctrl_c_in_a_copy_says_that_it_is_not_complete(then: Picture, store, place: Path) -> None:
    copy = place.parent / "copy"
    script = INTERRUPTED.replace("RESTORE_RENAMED", "RESTORE_TEMPORARY_WRITTEN")
    started = subprocess.Popen(
        [sys.executable, "-c", script, "restore", "then", "--to", str(copy)],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    while "HALF" not in started.stderr.readline():
        pass
    started.send_signal(signal.SIGINT)
    err = started.stderr.read()
    assert started.wait(60) == 130
    started.stderr.close()
    assert f"Interrupted: {copy} holds only a part of the files." in err
    assert 0 < len(list(copy.iterdir())) < FILES


def test_opening_only_to_look_leaves_it_alone(half: Picture, then: Picture, place: Path) -> None:
    with mulligan.open(place) as opened:
        session = opened.session("main", workspace=place, recover=False)
        assert (session.internal.recovered, picture(place)) == (None, half)
        assert session.files.pending is not None
        assert session.files.recover() is not None
        assert picture(place) == then
