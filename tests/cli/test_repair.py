"""mulligan verify --repair, and what other commands say of a checkpoint that lost something."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mulligan.testing.objects import noise
from tests.cli.conftest import Cli
from tests.stores import store_of

FIRST, SECOND = noise(30_000, 7), noise(30_000, 8)


@pytest.fixture
def used(store: Cli, place: Path) -> Cli:
    (place / "first.bin").write_bytes(FIRST)
    assert store("checkpoint", "--label", "one").code == 0
    (place / "second.bin").write_bytes(SECOND)
    assert store("checkpoint", "--label", "two").code == 0
    return store


def flip(place: Path, content: bytes) -> None:
    [pack] = (store_of(place) / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[data.index(content[1000:1100])] ^= 1
    pack.write_bytes(data)


def lose(place: Path, content: bytes, name: str) -> None:
    flip(place, content)
    (place / name).write_bytes(b"changed since")


def test_a_sound_store_needs_no_repair(used: Cli) -> None:
    done = used("verify", "--repair")
    assert done.code == 0
    assert "Nothing to repair" in done.out
    again = used("verify", "--repair", "--json").json
    assert (again["ok"], again["steps"], again["originals"]) == (True, [], [])


def test_content_that_the_workspace_has_is_brought_back(used: Cli, place: Path) -> None:
    flip(place, FIRST)
    done = used("verify", "--repair")
    assert done.code == 0
    assert "first.bin: read again" in done.out
    assert "nothing is lost" in done.out
    assert used("restore", "one", "--to", "out").code == 0
    assert (place / "out" / "first.bin").read_bytes() == FIRST


def test_the_one_intact_checkpoint_is_named_in_the_singular(used: Cli, place: Path) -> None:
    lose(place, SECOND, "second.bin")
    assert "The nearest intact checkpoint is " in used("verify", "--repair").out


def test_a_loss_is_named_by_every_command_that_meets_it(used: Cli, place: Path) -> None:
    lose(place, SECOND, "second.bin")
    done = used("verify", "--repair", "--json")
    assert done.code == 60
    [damaged] = done.json["damaged"]
    assert (damaged["label"], damaged["lost_files"]) == ("two", ["second.bin"])
    assert damaged["nearest_intact"] == used("show", "one", "--json").json["checkpoint_id"]
    assert done.json["verify"]["ok"]
    assert "lost file second.bin" in used("status").out
    [listed] = used("status", "--json").json["sessions"][0]["damaged"]
    assert listed["lost_files"] == ["second.bin"]
    assert re.search(r"lost +file second\.bin\n", used("show", "two").out)
    assert used("show", "two", "--json").json["lost"] == ["file second.bin"]
    assert "lost" not in used("show", "one").out
    refused = used("restore", "two", "--yes")
    assert refused.code == 38
    assert "second.bin" in refused.err
    assert "--partial" in refused.err
    assert used("restore", "two", "--to", "out").code == 38
    assert used("verify", "--full").code == 0


def test_the_rest_is_restored_when_told(used: Cli, place: Path) -> None:
    lose(place, SECOND, "second.bin")
    assert used("verify", "--repair", "-q").code == 60
    (place / "first.bin").write_bytes(b"changed since")
    partial = used("restore", "two", "--partial", "--yes")
    assert partial.code == 0
    assert "lost file second.bin. Only the rest of it comes back." in partial.err
    assert (place / "first.bin").read_bytes() == FIRST
    assert (place / "second.bin").read_bytes() == b"changed since"
    assert used("restore", "two", "--partial", "--to", "out").code == 0
    assert [path.name for path in (place / "out").iterdir()] == ["first.bin"]
    assert used("restore", "two", "--partial", "--only", "memory").code == 2


def test_a_dry_run_says_what_would_be_done(used: Cli, place: Path) -> None:
    flip(place, FIRST)
    done = used("verify", "--repair", "--dry-run")
    assert done.code == 60
    assert "would be healed: file first.bin: read again" in done.out
    assert "a repair would say: its" in done.out
    assert "nothing was changed" in done.out
    assert not (store_of(place) / "damaged").exists()


def test_a_dry_run_names_what_checkpoints_would_lack(used: Cli, place: Path) -> None:
    lose(place, SECOND, "second.bin")
    told = used("verify", "--repair", "--dry-run")
    assert told.code == 60
    assert "(two)" in told.out
    assert "would lack file second.bin" in told.out
    planned = used("verify", "--repair", "--dry-run", "--json").json
    done = used("verify", "--repair", "--json").json
    for field in ("steps", "healed", "damaged", "lost_state", "lost_events"):
        assert planned[field] == done[field]
    assert planned["dry_run"]


def test_status_shows_the_check_of_the_repair_and_not_the_one_before(
    used: Cli, place: Path
) -> None:
    lose(place, SECOND, "second.bin")
    found = used("verify", "--full")
    assert found.code == 60
    assert "`mulligan verify --repair --dry-run` shows" in found.err
    assert "`mulligan verify --repair` repairs it" in used("status").out
    assert used("verify", "--repair").code == 60
    shown = used("status").out
    assert "found damage" not in shown
    assert "all bytes, no problems" in shown
    assert "lost file second.bin" in shown


def test_losses_are_listed_in_the_order_of_the_timeline(used: Cli, place: Path) -> None:
    for _ in range(9):  # beyond #9, where the order of text is another one
        assert used("checkpoint").code == 0
    lose(place, SECOND, "second.bin")
    assert used("verify", "--repair", "-q").code == 60
    shown = used("status").out
    seqs = [int(seq) for seq in re.findall(r"Checkpoint #(\d+)", shown)]
    assert seqs == sorted(seqs)
    assert seqs[-1] > 9
    assert "older ones lost something, too" in shown
    assert used("restore", f"#{seqs[0]}", "--partial", "--yes").code == 0


def test_originals_are_kept_until_discarded(used: Cli, place: Path) -> None:
    flip(place, FIRST)
    kept = used("verify", "--repair", "--json").json["originals"]
    assert [Path(path).is_dir() for path in kept] == [True]
    for options in (["--discard"], ["--discard", "--json"], ["--repair", "--discard"]):
        refused = used("verify", *options)
        assert refused.code == 2
        assert "no terminal to ask on: nothing was changed" in " ".join(refused.err.split())
    assert Path(kept[0]).exists()
    assert used("verify", "--discard", "--yes", "--json").json["discarded_bytes"] > 30_000
    assert not Path(kept[0]).exists()
    assert "no damaged originals" in used("verify", "--discard").out


def test_a_store_without_format_and_journal_is_found_and_repaired(used: Cli, place: Path) -> None:
    home = store_of(place)
    (home / "FORMAT").write_bytes(b"\x00" * 10)
    (home / "journal" / "data.mdb").unlink()
    assert used("log").code != 0
    done = used("verify", "--repair")
    assert done.code == 60  # the event of the newest checkpoint was in the journal alone
    assert "FORMAT" in done.out
    assert "may be lost, if there were any: events after #" in done.out
    assert "nothing is lost" not in done.out
    assert used("restore", "one", "--to", "out").code == 0
    assert (place / "out" / "first.bin").read_bytes() == FIRST


def test_a_store_is_found_without_its_pointer(used: Cli, place: Path) -> None:
    flip(place, FIRST)
    (place / ".mulligan").unlink()
    assert used("verify", "--repair").code == 0


def test_a_damaged_note_of_the_project_is_written_again(used: Cli, place: Path) -> None:
    (store_of(place) / "PROJECT").write_bytes(b"{}")
    assert used("verify", "--repair").code == 0
    (place / "first.bin").unlink()
    assert used("restore", "one", "--yes").code == 0
    assert (place / "first.bin").read_bytes() == FIRST


@pytest.mark.parametrize(
    "options", [["--dry-run"], ["--yes"], ["--discard", "--dry-run"], ["--repair", "--sample", "x"]]
)
def test_options_that_do_not_fit_are_refused(used: Cli, options: list[str]) -> None:
    assert used("verify", *options).code == 2


@pytest.mark.parametrize("lost", [["FORMAT"], ["journal"], ["FORMAT", "journal"]])
def test_a_store_that_lost_a_file_names_the_repair(used: Cli, place: Path, lost: list[str]) -> None:
    for name in lost:
        file = store_of(place) / name
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    for command in ("log", "verify", "checkpoint", "init"):
        refused = used(command)
        assert refused.code != 0
        assert "`mulligan verify --repair`" in refused.err
    used("verify", "--repair")
    assert "one" in used("log").out


def test_a_store_inside_of_its_project_names_the_repair(cli: Cli, place: Path) -> None:
    assert cli("init", "--inside").code == 0
    (place / "a.txt").write_text("one")
    assert cli("checkpoint", "--label", "one").code == 0
    (place / ".mulligan" / "FORMAT").unlink()
    refused = cli("log")
    assert (refused.code, "its file FORMAT is missing" in refused.err) == (11, True)
    assert cli("verify", "--repair").code == 0
    assert "one" in cli("log").out


def test_a_journal_that_is_gone_is_reported_the_same_way_until_the_repair(
    used: Cli, place: Path
) -> None:
    (store_of(place) / "journal" / "data.mdb").unlink()
    for command in ("log", "verify", "checkpoint", "log", "verify"):
        done = used(command)
        assert "no data.mdb" in done.out + done.err
        assert "mulligan verify --repair" in done.out + done.err
    assert used("verify", "--repair").code == 60  # the newest events were there alone
    assert "one" in used("log").out
