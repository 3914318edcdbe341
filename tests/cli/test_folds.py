"""What commands say of events that were folded away and of files that were pruned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mulligan
from mulligan.upkeep.space.fold import fold_session

ONE = ("checkpoint", "--label", "one")


@pytest.fixture
def folded(store, place: Path):
    """A store whose #3 to #11 are folded away; the files of the checkpoint #13 are pruned."""
    for count in range(12):
        command = ("state", "set", "memory/count", str(count)) if count else ONE
        store(*command)
    Path("new").write_text("new")
    store("checkpoint", "--label", "two")
    store("state", "set", "memory/count", "99")
    store("checkpoint", "--no-files")
    with mulligan.open(place) as opened:
        engine = opened._engine
        with engine.read() as view:
            [record] = view.sessions()
            places = view.checkpoints(record.number, 1, 99)
        with engine.write(session=record.number) as txn:
            txn.prune(record.number, [places[1][0]])
        fold_session(engine, record, 12, min_events=1)
    return store


def test_events_say_where_some_were_folded_away(folded):
    lines = folded("events").out.splitlines()
    assert lines[2].startswith("#3")
    assert "9 events up to #11 folded away" in lines[2]
    assert lines[3].startswith("#12")
    found = [json.loads(line) for line in folded("events", "--json").out.splitlines()]
    assert [one["seq"] for one in found][:4] == [1, 2, 11, 12]
    fold = found[2]
    assert (fold["kind"], fold["prev"]) == ("events.folded", None)
    assert (fold["payload"]["first"], fold["payload"]["last"]) == (3, 11)
    assert found[3]["prev"] == fold["hash"]
    assert fold.keys() == found[3].keys()


def test_events_are_counted_across_a_fold(folded):
    head = json.loads(folded("events", "--json").out.splitlines()[-1])["seq"]
    last = [
        json.loads(line)["seq"]
        for line in folded("events", "-n", "6", "--json").out.split("\n")
        if line
    ]
    assert last == [1, 2, *range(12, head + 1)][-6:]
    since = folded("events", "--since", "#5", "--json").out.splitlines()
    assert [json.loads(line)["seq"] for line in since][:2] == [11, 12]


def test_a_folded_point_is_an_error_of_its_own(folded):
    for command in (["show", "#5"], ["diff", "#5"], ["restore", "#5", "--yes"], ["fork", "#5"]):
        failed = folded(*command)
        assert failed.code == 35, command
        assert "#2 and #12" in failed.err
        assert "one" in failed.err


def test_pruned_files_are_an_error_of_their_own(folded):
    point = json.loads(folded("events", "--json").out.splitlines()[-1])["seq"]
    failed = folded("restore", f"#{point}", "--yes")
    assert failed.code == 36
    assert "was pruned" in failed.err
    assert folded("restore", f"#{point}", "--only", "memory", "--yes").code == 0
    assert folded("show", "@latest").code == 0  # the checkpoint before it is the pruned one
    assert folded("log").code == 0
    assert folded("status").code == 0


def test_the_id_or_label_of_a_pruned_checkpoint_says_when_and_why_it_went(store, place: Path):
    taken = []
    for number in range(6):
        Path("file").write_text(str(number))
        label = ("--label", "first") if number == 0 else ()
        taken.append(store("checkpoint", "--kind", "routine", "-q", *label).out.strip())
    store("label", "--drop", "first")
    assert store("prune").code == 0
    for name in (taken[0], taken[0][:8], "first"):
        shown = store("restore", name, "--json")
        assert shown.code == 37, shown.err
        said = shown.error["message"]
        assert (
            f"Checkpoint {taken[0][:12]} at #2 of session 'main' was removed by retention" in said
        )
        assert "(rule 'routine')" in said
        assert f"nearest checkpoints are:\n  {taken[3][:12]}" in said
        assert "mulligan pin" in shown.error["hint"]


def test_the_id_of_a_checkpoint_that_was_folded_away_has_a_hint(folded):
    shown = folded("restore", "0123456789ab", "--json")
    assert shown.code == 30
    assert "folded away" in shown.error["hint"]


def test_the_log_says_where_events_were_folded_away(folded):
    assert "9 events folded away: #3 to #11." in folded("log").out
    [fold] = folded("log", "--json").json["folds"]
    assert (fold["first"], fold["last"]) == (3, 11)
    assert folded("log", "-n", "1", "--json").json["folds"] == []
