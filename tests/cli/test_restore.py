"""diff, restore, undo, redo, fork."""

from __future__ import annotations

from pathlib import Path

import pytest

import mulligan


@pytest.fixture
def changed(store):
    """A checkpoint ``one``, and a state that has changed since."""
    store("state", "set", "memory", '{"goal": "first", "keep": true}')
    store("state", "set", "todo", '["a"]')
    store("checkpoint", "--label", "one")
    store("state", "set", "memory/goal", "second")
    store("state", "delete", "memory/keep")
    store("state", "append", "todo", "b")
    store("state", "append", "conversation", '{"role": "user", "content": "hello\\nyou"}')
    return store


def test_diff_for_people(changed):
    assert changed("diff", "one").out.splitlines() == [
        "main #4 → the present, main #8",
        '~ memory/goal  "first" → "second"',
        "- memory/keep  true",
        '+ todo/1  "b"',
        "+ conversation/0  user: hello you",
    ]


def test_diff_as_json_leaves_out_what_is_not_there(changed):
    found = changed("diff", "one", "--json").json
    assert found["before"]["session"] == "main"
    assert len(found["before"]["checkpoint_id"]) == 32
    assert found["state"] == [
        {"path": "memory/goal", "change": "changed", "before": "first", "after": "second"},
        {"path": "memory/keep", "change": "removed", "before": True},
        {"path": "todo/1", "change": "added", "after": "b"},
    ]
    (message,) = found["conversation"]
    assert message["path"] == "conversation"


def test_diff_of_a_point_with_itself(changed):
    same = changed("diff", "one", "one")
    assert same.code == 0
    assert "Nothing differs" in same.out


def test_diff_can_be_narrowed_and_quiet(changed):
    assert changed("diff", "one", "--only", "memory", "-q").out == "memory/goal\nmemory/keep\n"


def test_diff_shortens_long_values_but_not_in_json(store):
    store("state", "set", "x", "a" * 5000)
    assert max(map(len, store("diff", "#1").out.splitlines())) < 120
    assert len(store("diff", "#1", "--json").json["state"][0]["after"]) == 5000


def test_diff_between_sessions(changed):
    changed("fork", "one", "--name", "branch")
    changed("state", "set", "memory/goal", "third", "-s", "branch")
    found = changed("diff", "#8", "branch:#6", "--only", "memory/goal", "--json").json
    assert found["state"][0]["after"] == "third"


def test_restore_says_what_changes_and_how_to_undo(changed):
    done = changed("restore", "one")
    assert done.code == 0
    assert '~ memory/goal  "second" → "first"' in done.out
    assert "mulligan undo" in done.out
    (safety,) = changed("log", "-q", "-n", "1").out.splitlines()
    assert safety[:12] in done.out
    assert changed("state", "get", "memory").json == {"goal": "first", "keep": True}


def test_restore_as_json(changed):
    done = changed("restore", "one", "--json").json
    assert done["applied"] is True
    assert done["to"]["seq"] == 4
    assert done["only"] is None
    assert {change["path"] for change in done["changes"]} >= {"memory/goal", "todo/1"}
    before = changed("state", "get", "memory/goal", "--at", done["safety"])
    assert before.json == "second"


def test_restore_of_parts_leaves_the_rest(changed):
    done = changed("restore", "one", "--only", "memory/goal", "--only", "todo", "--json").json
    assert done["only"] == ["memory/goal", "todo"]
    state = changed("state", "get").json
    assert state["memory"] == {"goal": "first"}
    assert state["todo"] == ["a"]
    assert "conversation" in state


def test_a_dry_run_changes_nothing(changed):
    before = changed("events", "--json").out
    dry = changed("restore", "one", "--dry-run")
    assert "~ memory/goal" in dry.out
    assert "dry run" in dry.out
    shown = changed("restore", "one", "--dry-run", "--json").json
    assert (shown["applied"], shown["safety"], shown["seq"]) == (False, None, None)
    assert len(shown["changes"]) == 4
    assert changed("events", "--json").out == before


def test_a_restore_of_what_is_there_already_writes_nothing(changed):
    changed("restore", "one")
    before = changed("events", "--json").out
    again = changed("restore", "one")
    assert again.code == 0
    assert "Nothing to restore" in again.out
    assert changed("restore", "one", "--json").json["applied"] is False
    assert changed("events", "--json").out == before


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_part_that_never_was_is_an_error(changed, more: list[str]):
    failed = changed("restore", "one", "--only", "memroy", *more)
    assert failed.code == 42
    assert "'memroy'" in failed.err


def test_undo_and_redo_walk(changed):
    changed("restore", "one")
    undone = changed("undo", "--json").json
    assert undone["mode"] == "undo"
    assert changed("state", "get", "memory/goal").json == "second"
    assert "mulligan undo" in changed("redo").out
    assert changed("state", "get", "memory/goal").json == "first"
    nothing = changed("redo")
    assert nothing.code == 32
    assert "mulligan log" in nothing.err


def test_undo_and_redo_say_what_they_take_back_and_how_to_get_it_again(changed):
    changed("restore", "one")
    changed("state", "set", "memory/later", "work")
    undone = changed("undo").out
    assert '- memory/later  "work"' in undone
    assert '~ memory/goal  "first" → "second"' in undone
    assert "redo with `mulligan redo`" in undone
    assert '+ memory/later  "work"' in changed("redo").out


def test_quiet_restores_print_the_safety_checkpoint(changed):
    for command in (["restore", "one"], ["undo"], ["redo"]):
        safety = changed(*command, "-q").out.strip()
        assert changed("show", safety, "--json").json["kind"] == "pre_operation"


def test_fork_prints_the_name_alone(changed):
    assert changed("fork", "one").out == "main-fork-1\n"
    named = changed("fork", "one", "--name", "bold", "--json").json
    assert named == {
        "session": "bold",
        "parent": {"session": "main", "seq": 4},
        "seq": 5,
        "directory": None,
    }
    assert changed("state", "get", "memory/goal", "-s", "bold").json == "first"


def test_fork_refuses_a_name_that_is_taken(changed):
    assert changed("fork", "one", "--name", "main").code == 21


def test_a_file_is_named_from_the_top_or_from_here(store, place: Path, monkeypatch):
    (place / "src").mkdir()
    (place / "src/app.py").write_text("one")
    (place / "other.txt").write_text("one")
    store("checkpoint", "--label", "one")
    monkeypatch.chdir(place / "src")
    for named in ("./app.py", "../src/app.py", str(place / "src/app.py"), "src/app.py"):
        (place / "src/app.py").write_text("two")
        (place / "other.txt").write_text("two")
        done = store("restore", "one", "--only", named, "--json")
        assert (done.code, done.json["only"]) == (0, ["workspace/src/app.py"])
        assert (place / "src/app.py").read_text() == "one"
        assert (place / "other.txt").read_text() == "two"
    refused = store("restore", "one", "--only", "../../elsewhere")
    assert (refused.code, "not in the workspace" in refused.err) == (2, True)
    whole = store("restore", "one", "--only", "..", "--json")
    assert whole.code == 42  # two dots alone are no path of a workspace
    assert store("restore", "one", "--only", "../", "--json").json["only"] == ["workspace"]


@pytest.mark.parametrize(
    "args", [("restore", "one", "--only", ""), ("state", "set", "", "{}"), ("state", "delete", "")]
)
def test_an_empty_part_is_not_taken_for_everything(store, args: tuple[str, ...]):
    store("state", "set", "memory/x", "1")
    store("checkpoint", "--label", "one")
    assert store(*args).code == 2
    assert store("state", "get", "memory/x").out == "1\n"


def test_an_id_that_is_too_short_says_so(store):
    refused = store("show", "ab")
    assert (refused.code, "4 digits" in refused.err) == (30, True)


def test_bringing_one_agent_back_names_what_others_used_of_it(store, write):
    store("tasks", "add", "design")
    store("tasks", "add", "build", "--after", "design")
    write("agents/planner/plan", "first")
    store("checkpoint", "--label", "one")
    write("agents/planner/plan", "second")
    store("tasks", "claim", "design", "--agent", "planner")
    store("tasks", "complete", "design", "--agent", "planner")
    store("mail", "send", "coder", "Go", "--id", "go", "--agent", "planner")
    store("mail", "receive", "--agent", "coder")
    store("tasks", "claim", "build", "--agent", "coder")
    said = store("restore", "one", "--only", "agents/planner").err
    assert "mail go of planner" in said
    assert "task design of planner" in said
    assert store("state", "get", "agents/planner/plan", "--raw").out == "first\n"


def test_a_restore_names_the_agents_that_are_at_work(store, place: Path):
    with mulligan.open(place) as opened:
        agent = opened.agent("coder", session="main")
        agent.agent.update(state="working")
        store("checkpoint", "--label", "one")
        agent.agent.update(working_on="more")
        for command in (("restore", "one"), ("undo",), ("redo",)):
            assert "coder is at work here" in store(*command).err
        agent.close()
    assert "at work" not in store("undo").err


# --- points after a restore ------------------------------------------------------------------


def test_a_point_after_a_restore_has_the_files_that_came_back(store, place: Path):
    (place / "f").write_text("good")
    store("checkpoint", "--label", "A")
    (place / "f").write_text("bad")
    assert store("restore", "A").code == 0
    after = f"#{store('status', '--json').json['sessions'][0]['seq']}"
    for point in (after, "0s ago"):
        out = place.parent / f"out{point}"
        assert store("restore", point, "--to", str(out)).code == 0
        assert (out / "f").read_text() == "good"
    assert store("diff", "A", after, "--json").json["files"] == []
    assert store("fork", after, "--to", str(place.parent / "fork")).code == 0
    assert (place.parent / "fork/f").read_text() == "good"
    (place / "f").write_text("worse")
    done = store("restore", after)
    assert "the restore #" in done.err
    assert (place / "f").read_text() == "good"
    assert store("verify").code == 0
