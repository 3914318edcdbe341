"""mulligan delete: a session, or some of its checkpoints; it asks first."""

from __future__ import annotations

from pathlib import Path


def test_a_session_is_deleted(store, place: Path):
    store("checkpoint", "--create", "-s", "old")
    done = store("delete", "old", "--yes")
    assert (done.code, "Deleted the session 'old'" in done.out) == (0, True)
    assert "old" not in [one["name"] for one in store("status", "--json").json["sessions"]]
    assert store("log", "-s", "old").code == 20
    assert store("delete", "old", "--yes").code == 20
    assert store("verify").code == 0
    assert store("prune").code == 0
    assert store("verify", "--full").code == 0


def test_without_a_terminal_it_needs_yes(store):
    store("checkpoint", "--create", "-s", "old")
    for options in ((), ("--json",)):
        refused = store("delete", "old", *options)
        assert refused.code == 2
        assert "--yes" in refused.err
    assert store("log", "-s", "old").code == 0


def test_checkpoints_are_deleted(store, place: Path):
    for number in range(3):
        (place / "f").write_text(str(number))
        store("checkpoint", "--create", "-s", "run", "--label", f"l{number}")
    done = store("delete", "run", "l0", "l1", "--yes", "--json").json
    assert (done["session"], done["deleted"]) == ("run", "checkpoints")
    assert [one["label"] for one in done["checkpoints"]] == ["l0", "l1"]
    entries = store("log", "-s", "run", "--json").json["entries"]
    assert [one["label"] for one in entries if one.get("label")] == ["l2"]
    refused = store("delete", "run", "l2", "--yes")
    assert (refused.code, "newest" in refused.err) == (45, True)


def test_json_of_a_session(store):
    store("checkpoint", "--create", "-s", "old")
    done = store("delete", "old", "--yes", "--json").json
    assert done == {"session": "old", "deleted": "session", "checkpoints": []}
