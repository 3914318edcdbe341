"""mulligan label, and labels that move."""

from __future__ import annotations

from pathlib import Path


def test_a_label_that_is_given_again_can_be_restored(store, place: Path):
    for text in ("one", "two", "three"):
        (place / "f").write_text(text)
        store("checkpoint", "--label", "green")
    (place / "f").write_text("four")
    assert store("restore", "green").code == 0
    assert (place / "f").read_text() == "three"
    lines = [line for line in store("log").out.splitlines() if "green" in line]
    assert ["(was green)" in line for line in lines] == [False, True, True]
    newest, middle, _ = [e for e in store("log", "--json").json["entries"] if e.get("label")]
    assert newest["label_at"] == middle["label_at"] == newest["checkpoint_id"]
    shown = store("show", middle["checkpoint_id"]).out
    assert f"green (now names {newest['checkpoint_id'][:12]})" in shown


def test_labels_are_listed_and_dropped(store):
    first = store("checkpoint", "--label", "green").out.strip()
    store("checkpoint", "--label", "red")
    listed = store("label", "--json").json
    assert [entry["label"] for entry in listed["labels"]] == ["red", "green"]
    assert listed["labels"][1]["checkpoint_id"] == first
    assert store("label", "-q").out.split() == ["red", "green"]
    assert first[:12] in store("label").out
    dropped = store("label", "--drop", "green")
    assert (dropped.code, "no longer names" in dropped.out) == (0, True)
    assert store("restore", "green").code == 30
    assert store("label", "--drop", "green").code == 30
    assert "green (dropped)" in store("show", first).out
    assert store("label", "--drop", "red", "--json").json["dropped"] == "red"
    assert store("label", "--json").json["labels"] == []
    assert "has no labels" in store("label").err
