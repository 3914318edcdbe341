"""Failures: one sentence, a hint, the exit code of the class, and never a traceback."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import mulligan
from mulligan.cli import errors as cli_errors
from mulligan.cli.context import CliContext
from mulligan.cli.errors import OF_A_SESSION
from mulligan.cli.render.restored import print_problems
from mulligan.objects.frames import PACK_HEADER_SIZE
from tests.stores import store_of


def test_an_error_is_a_sentence_and_a_hint(store):
    failed = store("show", "nowhere")
    assert failed.code == 30
    assert failed.out == ""
    assert failed.err.startswith("Error: 'nowhere' names no point")
    assert failed.err.splitlines()[-1].startswith("Hint:")
    assert "Traceback" not in failed.err


def test_every_usage_error_is_a_sentence(store):
    for arguments in (("prune", "--quota", "lots"), ("purge", "--match", ""), ("log", "-n", "x")):
        failed = store(*arguments)
        assert failed.code == 2
        said = failed.err.splitlines()[0]
        assert said.startswith(f"Error: Invalid value for '{arguments[1]}': ")
        assert said.endswith(".")


def test_an_error_as_json(store):
    for args in (["--json", "show", "nowhere"], ["show", "nowhere", "--json"]):
        failed = store(*args)
        assert failed.out == ""
        assert failed.error["error"] == "UnknownPoint"
        assert failed.error["exit_code"] == failed.code == 30
        assert failed.error["retryable"] is False
        assert failed.error["hint"]


def test_an_ambiguous_point_lists_the_candidates(store):
    known: dict[str, list[str]] = {}
    while not known or max(map(len, known.values())) < 2:
        made = store("checkpoint", "--no-files").out.strip()
        known.setdefault(made[:4], []).append(made)
    [(prefix, twins)] = [item for item in known.items() if len(item[1]) > 1]
    failed = store("restore", prefix)
    assert failed.code == 31
    assert all(identity[:12] in failed.err for identity in twins)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["chekpoint"], "did you mean checkpoint?"),
        (["frobnicate"], "There is no command 'frobnicate'."),
        (["diff"], "Missing argument 'A'"),
        (["log", "--frob"], "No such option"),
        (["init", "--adopt"], "`mulligan init --help`"),
        (["log", "--json=3"], "`mulligan log --help`"),
        (["log", "-n", "-1"], "-n"),
        (["log", "-n", "many"], "-n"),
        (["show", "10m", "ago"], "needs quotes"),
        (["restore"], "Missing argument 'POINT'"),
        (["state", "frob"], "frob"),
        (["--store"], "--store"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(store, args: list[str], said: str):
    failed = store(*args)
    assert failed.code == 2
    assert said in failed.err
    assert "Hint:" in failed.err


def test_a_wrong_command_line_as_json(store):
    failed = store("diff", "--json")
    assert failed.code == 2
    assert failed.error["error"] == "UsageError"
    assert "mulligan diff --help" in failed.error["hint"]


def test_paths_that_hold_no_store(cli, place: Path):
    assert cli("--store", str(place / "nowhere"), "log").code == 10
    (place / ".mulligan").mkdir()
    assert cli("log").code == 11
    (place / ".mulligan/FORMAT").write_text('{"format": 99, "id": "00", "features": []}')
    unknown = cli("log")
    assert unknown.code == 12
    assert "99" in unknown.err


def test_a_file_is_no_project(cli, place: Path):
    (place / "file").touch()
    refused = cli("init", "file")
    assert refused.code == 2
    assert f"{place}/file is not a directory." in refused.err


def test_a_directory_that_was_deleted_under_a_shell(cli, place: Path, monkeypatch):
    (place / "gone").mkdir()
    monkeypatch.chdir(place / "gone")
    (place / "gone").rmdir()
    for args in (["status"], ["init"], ["checkpoint"]):
        failed = cli(*args)
        assert failed.code == 74
        assert "no longer exists" in failed.err
        assert 'cd "$PWD"' in failed.err


def test_a_label_that_was_dropped_or_moved_is_listed_as_such(store):
    store("checkpoint", "--label", "kept")
    store("checkpoint", "--label", "lost")
    store("label", "--drop", "lost")
    listed = store("restore", "lost").err
    assert "(was lost)" in listed
    assert "manual  kept" in listed


def test_a_bug_is_called_one(store, monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(mulligan.Session, "checkpoints", broken)
    failed = store("log")
    assert failed.code == 70
    assert "bug in Mulligan (KeyError: 'oops')" in failed.err
    assert "MULLIGAN_DEBUG=1" in failed.err
    assert "Traceback" not in failed.err
    monkeypatch.setenv("MULLIGAN_DEBUG", "1")
    assert "Traceback" in store("log").err


def test_a_refusal_of_the_system_is_no_bug(store, monkeypatch):
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/x")

    monkeypatch.setattr(mulligan.Session, "checkpoints", refused)
    failed = store("log")
    assert failed.code == 74
    assert "Permission denied" in failed.err
    assert "bug" not in failed.err


def test_an_interruption_is_short(store, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mulligan.Session, "checkpoints", interrupted)
    stopped = store("log")
    assert stopped.code == 130
    assert stopped.err.startswith("Error: Interrupted.")
    assert "Traceback" not in stopped.err


def test_every_error_class_keeps_its_exit_code():
    for error in _classes(mulligan.MulliganError):
        failure = cli_errors.describe(error("A sentence."))
        assert failure.exit_code == error.exit_code
        assert failure.error == error.__name__


def test_verify_names_what_is_broken(store, place: Path):
    store("state", "set", "x", "a" * 5000)
    store("checkpoint")
    sound = store("verify")
    assert sound.code == 0
    assert "no problems found" in sound.out
    _damage(place)
    broken = store("verify", "--full")
    assert broken.code == 60
    assert "✗" in broken.out
    assert "problem" in broken.err
    report = store("verify", "--json")
    assert report.code == 60
    assert report.json["ok"] is False
    assert {p["fault"] for p in report.json["problems"]} <= {
        "gap",
        "object",
        "needed",
        "index",
        "record",
        "state",
    }


def test_verify_quick_says_that_it_was(store):
    assert store("verify", "--quick", "--json").json["full"] is False
    assert "quick" in store("verify", "--quick").out
    assert store("verify", "-q").out == ""


def _damage(place: Path) -> None:
    """Wipe the largest pack behind its header, as a lost sector does."""
    pack = max((store_of(place) / "packs").iterdir(), key=lambda file: file.stat().st_size)
    data = pack.read_bytes()
    pack.write_bytes(data[:PACK_HEADER_SIZE] + bytes(len(data) - PACK_HEADER_SIZE))


def _classes(root: type[mulligan.MulliganError]) -> list[type[mulligan.MulliganError]]:
    return [root, *(found for child in root.__subclasses__() for found in _classes(child))]


def test_a_label_that_moves_says_where_from(store):
    before = store("checkpoint", "--label", "green", "--json")
    assert before.err == ""
    again = store("checkpoint", "--label", "green")
    assert again.code == 0
    assert f"The label green moved here from #{before.json['seq']} of main." in again.err


def test_a_refusal_names_reason_and_path_without_a_number():
    failure = cli_errors.describe(OSError(30, "Read-only file system", "/mnt/project"))
    assert failure.message == "The system refused: Read-only file system: /mnt/project."
    assert "on a writable filesystem" in failure.hint
    assert "Errno" not in failure.message + failure.hint
    two = cli_errors.describe(OSError(18, "Invalid cross-device link", "/a", None, "/b"))
    assert two.message == "The system refused: Invalid cross-device link: /a → /b."
    assert cli_errors.describe(OSError("odd")).message == "The system refused: odd."


@pytest.mark.parametrize(
    ("details", "advice"),
    [
        ([errno.EROFS], "remount"),
        ([errno.ENOSPC], "Free some space"),
        ([errno.EACCES, errno.EACCES], "writable"),
        ([errno.EPERM], "lsattr"),
        ([errno.EBUSY], "Unmount"),
        ([errno.EROFS, errno.EACCES], "Fix the cause given for each"),
        ([errno.EIO], "Fix the cause given for each"),
    ],
)
def test_the_advice_of_an_incomplete_restore_fits_the_reason(details, advice: str, capsys):
    found = [mulligan.Problem("file", "a.txt", os.strerror(code)) for code in details]
    print_problems(CliContext(), found)
    assert f"{advice}" in capsys.readouterr().err


def test_a_mistyped_path_makes_no_directories(cli, place: Path):
    refused = cli("init", "typo/dir/deep")
    assert refused.code == 2
    assert f"There is no directory {place}/typo," in refused.err
    assert f"mkdir -p {place}/typo/dir/deep" in refused.err
    assert list(place.iterdir()) == []
    assert cli("init", "new").code == 0
    assert (place / "new").is_dir()


def test_one_is_singular(store, place: Path):
    (place / "a.txt").write_text("a")
    store("checkpoint")
    shown = store("show").out
    assert "1 file of 1 byte in 1 directory\n" in shown
    (place / "b").mkdir()
    store("checkpoint")
    assert "in 2 directories\n" in store("show").out
    store("init", "-s", "third")
    assert "only event #1." in store("-s", "third", "show", "#5").err


def test_a_command_of_a_group_that_does_not_exist_lists_them(store):
    refused = store("tasks", "foo")
    assert refused.code == 2
    assert "list, add, claim" in refused.err


def test_an_option_under_another_name_is_suggested(store):
    refused = store("run", "--every", "5m", "--", "true")
    assert refused.code == 2
    assert "--checkpoint-interval" in refused.err
    assert "--checkpoint-interval" not in store("log", "--every", "5m").err


def test_a_session_after_a_command_is_an_option(store):
    for name in OF_A_SESSION:
        refused = store(name, "main")
        assert refused.code == 2
        assert f"If main is a session: `mulligan {name} -s main`." in refused.err
    for words in (["log", "two", "words"], ["stores", "main"]):
        assert "is a session" not in store(*words).err
