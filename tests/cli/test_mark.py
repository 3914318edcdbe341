"""mulligan mark, and where the verdicts show."""

from __future__ import annotations

from pathlib import Path


def test_a_mark_shows_in_log_show_and_status(store, place: Path):
    one = store("checkpoint", "--label", "one").out.strip()
    two = store("checkpoint", "--label", "two").out.strip()
    assert store("mark", "one", "good", "-m", "tests pass").out.split()[-1] == "good"
    assert store("mark", "two", "bad", "-q").out.strip() == two
    lines = store("log").out.splitlines()
    assert "bad" in lines[0].split()
    assert "good" in lines[1].split()
    entries = store("log", "--json").json["entries"]
    assert [entry["verdict"] for entry in entries] == ["bad", "good"]
    assert "good, by cli: tests pass" in store("show", "@good").out
    shown = store("show", "@good", "--json").json
    assert (shown["checkpoint_id"], shown["verdict"]) == (one, "good")
    (session,) = store("status", "--json").json["sessions"]
    assert session["checkpoint"]["verdict"] == "bad"


def test_a_restore_goes_to_the_good_one(store, place: Path):
    (place / "a.txt").write_text("works\n")
    store("checkpoint")
    store("mark", "@latest", "good")
    (place / "a.txt").write_text("broken\n")
    store("checkpoint")
    store("mark", "@latest", "bad")
    assert store("restore", "@good").code == 0
    assert (place / "a.txt").read_text() == "works\n"


def test_wrong_verdicts_and_points(store):
    assert store("mark", "@latest", "good").code == 30
    store("checkpoint")
    assert store("mark", "@latest", "perfect").code == 2
    failed = store("show", "@good", "--json")
    assert failed.code == 30
    assert "mulligan mark" in failed.error["hint"]
