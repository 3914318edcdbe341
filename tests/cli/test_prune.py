"""mulligan prune and mulligan pin: the text, the JSON and the exit codes."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from mulligan.cli import upkeep
from mulligan.cli.commands.prune import _freed
from mulligan.upkeep.retention.prune import Pruned, PrunePlan
from mulligan.upkeep.retention.rulings import RetentionPlan


def five(store, place: Path) -> list[str]:
    """Take five routine checkpoints, each with a file of its own; return their ids."""
    found = []
    for number in range(5):
        (place / "file").write_bytes(os.urandom(50_000))
        found.append(store("checkpoint", "--kind", "routine", "-q").out.strip())
        assert found[-1], number
    return found


def directory(store) -> Path:
    return Path(store("status", "--json").json["store"])


def test_a_dry_run_explains_every_line_and_changes_nothing(store, place: Path):
    taken = five(store, place)
    shown = store("prune", "--dry-run")
    lines = shown.out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["remove", "remove", "keep", "keep", "keep"]
    assert "No rule for routine checkpoints keeps it" in lines[0]
    assert "One of the last 3 routine checkpoints of 'cli'." in lines[4]
    said = " ".join(line.strip() for line in lines[5:])
    assert said.startswith(
        "Would remove 2 checkpoints, which hold 68 KB of files; 3 checkpoints kept."
    )
    assert len(store("log", "--json").json["entries"]) == 5
    found = store("prune", "--dry-run", "--json").json
    assert (found["dry_run"], found["kept"], found["removed"]) == (True, 3, 2)
    # The first file shares its frame with trees that stay, and counts an equal part of it.
    assert 60_000 <= found["bytes_freed"] < 80_000
    assert found["size_after_bytes"] is None
    assert [one["checkpoint_id"] for one in found["checkpoints"]] == taken
    assert found["checkpoints"][0]["rule"] == "routine"
    assert found["checkpoints"][0]["actor"] == "cli"


def test_a_prune_says_what_is_freed_now_and_what_later(store, place: Path):
    five(store, place)
    done = store("prune", "--json").json
    assert done["freed_now_bytes"] == max(0, done["size_bytes"] - done["size_after_bytes"])


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (1000, 400, "Freed 600 bytes now. "),
        (1000, 900, "Freed 100 bytes now. A later prune frees up to 400 bytes more. "),
        (1000, 1010, "Nothing is freed yet. A later prune frees up to 500 bytes. "),
    ],
)
def test_what_is_freed_now_and_what_later(before: int, after: int, said: str):
    plan = PrunePlan(RetentionPlan(rulings=()), (), {}, before, None, freed=500)
    assert _freed(plan, Pruned(plan, 1, size_before=before, size_after=after)) == said


def test_a_prune_removes_and_says_so(store, place: Path):
    taken = five(store, place)
    before = store("status", "--json").json
    assert before["upkeep"]["last_prune"] is None
    done = store("prune")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["remove", "remove", "keep"]
    assert lines[2].split() == ["keep", "3", "checkpoints", "routine.keep_last"]
    assert lines[3] == "Removed 2 checkpoints; 3 checkpoints kept."
    entries = [e for e in store("log", "--json").json["entries"] if e["kind"] == "routine"]
    assert [entry["checkpoint_id"] for entry in reversed(entries)] == taken[2:]
    after = store("status", "--json").json["upkeep"]
    assert (after["removed"], after["error"], after["state_only"]) == (2, None, None)
    assert "2 checkpoints removed" in store("status").out
    assert store("verify").code == 0
    assert store("prune", "-q").out == ""


def test_every_checkpoint_that_stays_is_listed_if_asked(store, place: Path):
    taken = five(store, place)
    lines = store("prune", "--verbose").out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["remove", "remove", "keep", "keep", "keep"]
    assert [line.split()[1] for line in lines[:5]] == [identity[:12] for identity in taken]
    assert "One of the last 3 routine checkpoints of 'cli'." in lines[4]


def test_a_prune_says_how_long_writers_waited(store, place: Path):
    five(store, place)
    assert store("prune", "-n", "--json").json["longest_hold_ms"] is None
    assert store("prune", "--json").json["longest_hold_ms"] > 0


def test_recovery_checkpoints_are_cleared(store, place: Path):
    store("checkpoint", "--kind", "recovery")
    store("checkpoint")
    assert store("prune", "-n", "--json").json["removed"] == 0
    cleared = store("prune", "--clear", "recovery", "--json").json
    assert cleared["removed"] == 1
    assert cleared["checkpoints"][0]["rule"] == "cleared"


def test_options_come_before_the_configuration(store, place: Path):
    five(store, place)
    (directory(store) / "config.toml").write_text("[retention.routine]\nkeep_last = 5\n")
    assert store("prune", "-n", "--json").json["removed"] == 0
    assert store("prune", "-n", "--keep-last", "2", "--json").json["removed"] == 3
    within = store("prune", "-n", "--keep-last", "0", "--keep-within", "1d", "--json")
    assert within.json["removed"] == 0


def test_wrong_options(store):
    for wrong in (
        ("--keep-within", "soon"),
        ("--quota", "large"),
        ("--keep-last", "-1"),
        ("--undo-window", "-3d"),
    ):
        assert store("prune", *wrong).code == 2, wrong


def test_options_that_contradict_the_policy(store):
    (directory(store) / "config.toml").write_text("[retention]\nkeep_all = true\n")
    failed = store("prune", "--quota", "1GB")
    assert failed.code == 2
    assert "keep_all keeps every checkpoint" in failed.err


def test_a_mistake_in_the_configuration_names_file_and_line(store):
    (directory(store) / "config.toml").write_text("[retention]\n\nkeep_lats = 5\n")
    failed = store("prune", "--json")
    assert failed.code == 17
    assert "config.toml:3: retention.keep_lats" in failed.error["message"]


def test_a_quota_that_cannot_be_met(store, place: Path):
    five(store, place)
    failed = store("prune", "--quota", "1KB")
    assert failed.code == 29
    assert "quota: The store exceeds its quota" in failed.out
    assert "more than its quota of 1,000" in failed.err
    (directory(store) / "config.toml").write_text("[retention]\nquota = '1KB'\n")
    (place / "file").write_bytes(os.urandom(50_000))
    taken = store("checkpoint", "--json")
    assert (taken.code, taken.error["error"]) == (29, "QuotaExceeded")
    assert taken.json["workspace"] is None
    assert "reached its quota" in taken.json["note"]
    status = store("status")
    assert "Checkpoints hold no files now: the store has reached its quota" in status.out
    assert "no files" in store("log").out
    assert "quota" in store("status", "--json").json["upkeep"]["state_only"]
    assert "holds no files: the store has reached its quota" in taken.error["message"]


def test_a_quota_that_is_nearly_reached_is_a_warning(store, place: Path):
    five(store, place)
    size = store("prune", "--json").json["size_after_bytes"]
    for quota, is_near in ((2 * size, False), (size + 1000, True)):
        (directory(store) / "config.toml").write_text(f"[retention]\nquota = {quota}\n")
        assert (store("status", "--json").json["upkeep"]["warning"] is not None) == is_near
    assert "beyond it, checkpoints hold no files." in store("status").words


def test_a_kind_that_no_checkpoint_has(store, place: Path):
    five(store, place)
    assert store("prune", "-n", "--clear", "recvoery").err == (
        "No checkpoint is of the kind 'recvoery'.\n"
    )


def test_another_process_looks_after_the_store(store, place: Path):
    five(store, place)
    with (directory(store) / "locks" / "upkeep").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        busy = store("prune", "--json")
        assert busy.code == 26
        assert busy.error["retryable"]
        assert f"Process {os.getpid()} " in busy.error["message"]
        assert "--wait" in busy.error["hint"]
        assert store("prune", "-n").code == 0
    assert store("prune").code == 0


def test_a_command_starts_upkeep_for_a_store_that_no_program_looks_after(
    store, place: Path, monkeypatch: pytest.MonkeyPatch
):
    started: list[list[str]] = []
    monkeypatch.setattr(upkeep, "start", started.append)
    five(store, place)
    assert started == []  # it is new
    file = directory(store) / "FORMAT"
    os.utime(file, (0, file.stat().st_mtime - 3700))
    store("status")
    assert started == []
    store("checkpoint", "--kind", "routine")
    [command] = started
    # What was started does it, silently.
    done = subprocess.run(command, check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert store("status", "--json").json["upkeep"]["removed"] == 3
    # Not again before ten minutes have passed.
    store("checkpoint", "--kind", "routine")
    assert len(started) == 1


def test_a_pinned_checkpoint_stays(store, place: Path):
    first, *_ = five(store, place)
    assert (store("pin").out, store("pin").err) == (
        "",
        "Session 'main' has no pinned checkpoints.\n",
    )
    assert "is pinned and stays" in store("pin", first, "-m", "before the migration").out
    assert "before the migration" in store("pin").out
    found = store("pin", "--json").json
    assert [one["checkpoint_id"] for one in found["pinned"]] == [first]
    assert (found["pinned"][0]["by"], found["session"]) == ("cli", "main")
    rules = {
        one["checkpoint_id"]: one["rule"] for one in store("prune", "--json").json["checkpoints"]
    }
    assert rules[first] == "pinned"
    assert "is no longer pinned" in store("pin", "--drop", first).out
    assert store("pin", "--drop", first).code == 0
    assert store("pin", "-q").out == ""
    assert store("prune", "--json").json["removed"] == 1
    assert store("pin", first).code == 37
    assert store("pin", "--drop").code == 2
