"""The tools, called as a client calls them, on a real project."""

from __future__ import annotations

import os
import shutil
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mulligan
from mulligan.mcp import toolbox, tools
from mulligan.mcp.hooks import HookReply
from mulligan.mcp.tools import Tools
from tests.unit.mcp.conftest import Connection, Handler

NAMES = {
    "checkpoint",
    "status",
    "mark",
    "read_file",
    "log",
    "diff",
    "plan_restore",
    "restore",
    "undo",
    "fork",
    "tasks",
    "effects",
    "search_history",
}


def test_the_tools_are_these_with_their_schemas_and_hints(client: Connection) -> None:
    tools = {tool["name"]: tool for tool in client.ask("tools/list")["result"]["tools"]}
    assert set(tools) == NAMES
    for tool in tools.values():
        assert tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object"
        assert tool["description"].endswith(".")
        assert tool["annotations"]["openWorldHint"] is False
    changing = {n for n, tool in tools.items() if not tool["annotations"]["readOnlyHint"]}
    assert changing == {"checkpoint", "mark", "restore", "undo", "fork"}
    assert {n for n, t in tools.items() if t["annotations"]["destructiveHint"]} == {
        "restore",
        "undo",
    }
    point = tools["plan_restore"]["inputSchema"]
    assert point["required"] == ["point"]
    assert "@latest" in point["properties"]["point"]["description"]


def test_a_checkpoint_is_in_the_log_the_status_and_the_store(
    client: Connection, project: Path
) -> None:
    taken = client.call("checkpoint", note="before", label="start")
    assert (taken["label"], taken["files"], taken["session"]) == ("start", 1, "main")
    entries = client.call("log")["entries"]
    assert [entry["checkpoint_id"] for entry in entries] == [taken["checkpoint_id"]]
    status = client.call("status")
    assert status["current_session"] == "main"
    assert status["sessions"][0]["checkpoint"]["checkpoint_id"] == taken["checkpoint_id"]
    client.end()
    with mulligan.open(project) as store:
        assert store.session("main").checkpoints.at("start").actor == "mcp"


def test_an_argument_that_is_not_known_is_named(client: Connection) -> None:
    said = client.call("checkpoint", lable="typo")
    assert said.startswith("InvalidArguments: ")
    assert "lable" in said
    assert "Hint: Nothing was done." in said
    assert client.call("log")["entries"] == []


def test_an_unknown_point_is_a_tool_error_with_a_hint(client: Connection) -> None:
    said = client.call("read_file", path="a.txt", point="nowhere")
    assert said.startswith("UnknownPoint: ")
    assert "Hint: " in said


def test_without_a_store_the_error_says_how_to_make_one(
    connect: Callable[..., Connection], project: Path
) -> None:
    shutil.rmtree(project / ".mulligan")
    said = connect().call("status")
    assert said.startswith("StoreNotFound: ")
    assert "mulligan init" in said


def test_a_store_that_was_replaced_is_opened_again(client: Connection, project: Path) -> None:
    client.call("checkpoint", label="old")
    (project / ".mulligan").rename(project.parent / "gone")
    with mulligan.open(project) as store:
        store.session("main").checkpoint(label="new")
    labels = [entry["label"] for entry in client.call("log")["entries"]]
    assert labels == ["new"]


def test_a_file_is_read_as_it_was(client: Connection, project: Path) -> None:
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    (project / "raw").write_bytes(b"\xff\x00\x01")
    client.call("checkpoint", label="later")
    assert client.call("read_file", path="a.txt", point="start")["content"] == "one\n"
    part = client.call("read_file", path="a.txt", point="later", offset=1, limit=2)
    assert (part["content"], part["size"], part["truncated"]) == ("wo", 4, True)
    raw = client.call("read_file", path="raw")
    assert (raw["content"], raw["encoding"]) == ("/wAB", "base64")
    assert client.call("read_file", path="../a.txt").startswith(("PathNotFound", "InvalidPath"))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 100])
def test_the_parts_of_a_text_are_text_wherever_they_are_cut(
    client: Connection, project: Path, limit: int
) -> None:
    text = "aä€𝄞b\n" * 3
    (project / "a.txt").write_text(text)
    client.call("checkpoint")
    found, offset = "", 0
    while True:
        part = client.call("read_file", path="a.txt", offset=offset, limit=limit)
        assert part["encoding"] == "utf-8"
        found, offset = found + part["content"], offset + limit
        if not part["truncated"]:
            break
    assert found == text


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 100])
def test_the_parts_of_a_file_in_another_encoding_lose_no_byte(
    client: Connection, project: Path, limit: int
) -> None:
    data = "café at 20 ° or more".encode("latin-1")
    (project / "a.txt").write_bytes(data)
    client.call("checkpoint")
    found = b""
    for offset in range(0, len(data), limit):
        part = client.call("read_file", path="a.txt", offset=offset, limit=limit)
        assert part["encoding"] == "base64"
        found += b64decode(part["content"])
    assert found == data


def test_long_lists_are_cut_and_say_so(
    client: Connection, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MAX_LISTED", 3)
    with mulligan.open(project) as store:
        session = store.session("main")
        session.tasks.plan([f"task {n}" for n in range(5)])
        for n in range(5):
            with session.effect("mail.send", {"n": n}):
                pass
        for task in list(session.tasks)[:3]:
            session.tasks.complete(task.id)
    found = client.call("tasks")
    assert [task["title"] for task in found["tasks"]] == ["task 2", "task 3", "task 4"]
    assert found["truncated"]
    with monkeypatch.context() as more:
        more.setattr(tools, "MAX_LISTED", 6)
        found = client.call("tasks")
    assert [task["title"] for task in found["tasks"]] == [f"task {n}" for n in range(5)]
    assert not found["truncated"]
    ids = [effect["id"] for effect in client.call("effects")["effects"]]
    with mulligan.open(project) as store:
        assert ids == [effect.id for effect in store.session("main").effects.list()[-3:]]
        store.session("main").tasks.plan([f"task {n}" for n in range(9)])
    assert client.call("tasks")["tasks"][0]["title"] == "task 3"
    assert client.call("effects", in_doubt=True)["truncated"] is False


def test_a_diff_has_patches_and_states(client: Connection, project: Path) -> None:
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    found = client.call("diff", before="start")
    (change,) = found["files"]
    assert (change["path"], change["change"]) == ("a.txt", "changed")
    assert "-one\n+two\n" in change["patch"]
    assert client.call("diff", before="start", patch=False)["files"][0]["patch"] is None
    assert client.call("diff", before="start", paths=["b"]).startswith("PathNotFound")
    assert client.call("diff", before="start", paths=[]).startswith("InvalidArguments")


def test_a_long_diff_is_cut_and_says_so(client: Connection, project: Path) -> None:
    client.call("checkpoint", label="start")
    for n in range(3):
        (project / f"{n}.txt").write_text(f"{n} {'x' * 100}\n" * 250)
    found = client.call("diff", before="start")
    assert found["truncated"]
    assert [bool(change["patch"]) for change in found["files"]] == [True, False, False]


def plan(client: Connection, **given: Any) -> str:
    made = client.call("plan_restore", **given)
    id: str = made["plan_id"]
    return id


def test_a_restore_does_what_its_plan_said_and_undo_takes_it_back(
    client: Connection, project: Path
) -> None:
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    (project / "b.txt").write_text("new\n")
    made = client.call("plan_restore", point="start")
    assert {(f["path"], f["change"]) for f in made["files"]} == {
        ("a.txt", "changed"),
        ("b.txt", "removed"),
    }
    assert (project / "a.txt").read_text() == "two\n"  # only planned
    done = client.call("restore", plan_id=made["plan_id"])
    assert done["restored_files"] >= 2
    assert done["problems"] == []
    assert (project / "a.txt").read_text() == "one\n"
    assert not (project / "b.txt").exists()
    client.call("undo")
    assert (project / "a.txt").read_text() == "two\n"
    assert (project / "b.txt").read_text() == "new\n"


def test_a_restore_of_paths_leaves_other_files_alone(client: Connection, project: Path) -> None:
    (project / "b.txt").write_text("b\n")
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    (project / "b.txt").write_text("bb\n")
    client.call("restore", plan_id=plan(client, point="start", paths=["a.txt"]))
    assert (project / "a.txt").read_text() == "one\n"
    assert (project / "b.txt").read_text() == "bb\n"


def test_a_restore_without_a_plan_is_refused(client: Connection, project: Path) -> None:
    client.call("checkpoint", label="start")
    said = client.call("restore", plan_id="0123456789abcdef")
    assert said.startswith("PlanOutdated: ")
    assert "plan_restore" in said
    assert client.call("restore").startswith("InvalidArguments: ")


def test_a_plan_can_be_applied_once(client: Connection, project: Path) -> None:
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    id = plan(client, point="start")
    client.call("restore", plan_id=id)
    assert client.call("restore", plan_id=id).startswith("PlanOutdated: ")


@pytest.mark.parametrize("size", ["same", "other"])
def test_a_file_that_changed_since_the_plan_is_not_replaced(
    client: Connection, project: Path, size: str
) -> None:
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    id = plan(client, point="start")
    written = "six\n" if size == "same" else "seven\n"
    (project / "a.txt").write_text(written)
    os.utime(project / "a.txt", ns=(1, 10**18))  # whatever the clock of the file system shows
    said = client.call("restore", plan_id=id)
    assert said.startswith("PlanOutdated: Files have changed")
    assert (project / "a.txt").read_text() == written


def test_a_plan_does_not_outlive_another_restore(client: Connection, project: Path) -> None:
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    first, second = plan(client, point="start"), plan(client, point="start", paths=["a.txt"])
    client.call("restore", plan_id=first)
    client.call("undo")
    said = client.call("restore", plan_id=second)
    assert said.startswith("PlanOutdated: Something was restored")


def test_files_can_be_restored_after_events_that_leave_files_alone(
    client: Connection, project: Path
) -> None:
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    id = plan(client, point="start")
    with mulligan.open(project) as store:  # as a hook does before every call of a tool
        store.session("main").state.set("memory/seen", True)
    client.call("restore", plan_id=id)
    assert (project / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("what", ["state", "both"])
def test_a_plan_of_the_state_needs_the_same_head(
    client: Connection, project: Path, what: str
) -> None:
    with mulligan.open(project) as store:
        session = store.session("main")
        session.state.set("memory/step", 1)
        client.call("checkpoint", label="start")
        session.state.set("memory/step", 2)
        id = plan(client, point="start", what=what)
        session.state.set("memory/other", 3)
        said = client.call("restore", plan_id=id)
        assert said.startswith("PlanOutdated: The session went on from #")
        assert session.state.get("memory/step") == 2
        client.call("restore", plan_id=plan(client, point="start", what=what))
        assert session.state.get("memory") == {"step": 1}


def test_a_plan_covers_nothing_that_was_written_while_it_was_made(
    client: Connection, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = client.call("checkpoint")["checkpoint_id"]
    preview = Tools._preview

    def slow(*arguments: Any) -> Any:
        found = preview(*arguments)
        with mulligan.open(project) as store:
            store.session("main").state.set("late", True)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Tools, "_preview", slow)
        plan = client.call("plan_restore", point=point, what="both")
    assert not plan["state"]
    assert "PlanOutdated" in client.call("restore", plan_id=plan["plan_id"])
    with mulligan.open(project) as store:
        assert store.session("main").state.get("late") is True


def test_a_session_that_was_deleted_is_opened_anew(client: Connection, project: Path) -> None:
    client.call("checkpoint", note="of the first one")
    with mulligan.open(project) as store:
        store.delete("main")
    assert "UnknownSession" in client.call("log", session="main")
    client.call("checkpoint", note="of the second one")
    assert [entry["note"] for entry in client.call("log")["entries"]] == ["of the second one"]


def test_a_fork_gets_a_directory_and_a_session(
    client: Connection, project: Path, tmp_path: Path
) -> None:
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    made = client.call("fork", point="start", name="bold", directory=str(tmp_path / "bold"))
    assert made["session"] == "bold"
    assert (tmp_path / "bold" / "a.txt").read_text() == "one\n"
    assert (project / "a.txt").read_text() == "two\n"
    assert client.call("fork", point="start")["directory"] is None
    names = [session["name"] for session in client.call("status")["sessions"]]
    assert names[:2] == ["main", "bold"]


def test_tasks_effects_and_verdicts_are_shown(client: Connection, project: Path) -> None:
    with mulligan.open(project) as store:
        session = store.session("main")
        session.tasks.add("write the parser")
        with session.effect("mail.send", {"to": "a"}) as effect:
            effect.result = 1
    (task,) = client.call("tasks")["tasks"]
    assert (task["title"], task["status"]) == ("write the parser", "pending")
    (effect_,) = client.call("effects")["effects"]
    assert (effect_["name"], effect_["status"]) == ("mail.send", "done")
    assert client.call("effects", in_doubt=True)["effects"] == []
    client.call("checkpoint")
    assert client.call("mark", verdict="good")["verdict"] == "good"
    assert client.call("mark", verdict="fine").startswith("InvalidArguments: ")


def test_effects_that_stay_in_the_world_are_accepted_by_name(
    client: Connection, project: Path
) -> None:
    def act(number: int) -> None:
        with (
            mulligan.open(project) as store,
            store.session("main").effect("mail.send", {"number": number}),
        ):
            pass

    client.call("checkpoint", label="start")
    act(1)
    id = plan(client, point="start", what="both")
    assert client.call("restore", plan_id=id).startswith("LeftBehind: ")
    assert client.call("restore", plan_id=id, accept_left_behind=True)["mode"] == "restore"
    act(2)
    refused = client.call("undo")
    assert refused.startswith("LeftBehind: ")
    assert "accept_left_behind" in refused
    assert client.call("undo", accept_left_behind=True)["mode"] == "undo"


def test_the_history_is_searched_for_texts_and_paths(client: Connection, project: Path) -> None:
    with mulligan.open(project) as store:
        session = store.session("main")
        session.state.append("conversation", {"role": "user", "content": "Fix the Parser, please"})
    client.call("checkpoint", label="start")
    (project / "a.txt").write_text("two\n")
    client.call("checkpoint", label="later")
    (project / "b.txt").write_text("b\n")
    client.call("checkpoint", label="last")
    found = client.call("search_history", text="the parser")
    assert [match["excerpt"] for match in found["matches"]] == ["Fix the Parser, please"]
    holder = found["matches"][0]["checkpoint_id"]
    entries = client.call("log")["entries"]
    assert holder == entries[-1]["checkpoint_id"]  # the first checkpoint after it
    assert found["complete"]
    changed = client.call("search_history", path="a.txt")["matches"]
    seqs = {entry["seq"]: entry["label"] for entry in entries}
    assert [seqs[match["seq"]] for match in changed] == ["later", "start"]
    assert client.call("search_history").startswith("InvalidArguments: ")
    limited = client.call("search_history", text="checkpoint", limit=1)
    assert len(limited["matches"]) <= 1


def test_checkpoints_and_files_are_resources(client: Connection, project: Path) -> None:
    taken = client.call("checkpoint", label="start", note="why")
    listed = client.ask("resources/list")["result"]["resources"]
    assert [one["name"] for one in listed] == ["start"]
    (content,) = client.ask("resources/read", uri=listed[0]["uri"])["result"]["contents"]
    record = msgspec.json.decode(content["text"])
    assert (record["checkpoint_id"], record["note"]) == (taken["checkpoint_id"], "why")
    templates = client.ask("resources/templates/list")["result"]["resourceTemplates"]
    assert [one["name"] for one in templates] == ["checkpoint", "file"]
    (project / "a b.txt").write_text("spaced\n")
    client.call("checkpoint")
    uri = "mulligan://main/files/@latest/a%20b.txt"
    (content,) = client.ask("resources/read", uri=uri)["result"]["contents"]
    assert content["text"] == "spaced\n"
    gone = client.ask("resources/read", uri="mulligan://main/files/start/none")["error"]
    assert gone["code"] == -32002


def test_resources_come_in_pages(client: Connection) -> None:
    for n in range(52):
        client.call("checkpoint", label=f"c{n}")
    first = client.ask("resources/list")["result"]
    assert [first["resources"][0]["name"], len(first["resources"])] == ["c51", 50]
    second = client.ask("resources/list", cursor=first["nextCursor"])["result"]
    assert [one["name"] for one in second["resources"]] == ["c1", "c0"]
    assert "nextCursor" not in second


def test_the_session_of_the_conversation_is_the_default_one(
    connect: Callable[..., Connection], project: Path
) -> None:
    with mulligan.open(project) as store:
        store.session("main").checkpoint()
        store.session("claude-1").checkpoint(label="of-claude")
    client = connect(hook=Handler(lambda given: HookReply("{}", "claude-1")))
    assert client.call("log")["session"] == "main"
    client.ask("tools/call", name="hook", arguments={})
    assert client.call("log")["session"] == "claude-1"
    assert client.call("log", session="main")["session"] == "main"


def test_without_main_the_session_that_was_written_last_is_meant(
    tmp_path: Path, connect: Callable[..., Connection], project: Path
) -> None:
    shutil.rmtree(project / ".mulligan")
    with mulligan.open(project) as store:
        for name in ("first", "second", "first"):
            store.session(name).checkpoint()
    assert connect().call("log")["session"] == "first"


@pytest.mark.parametrize("tool", toolbox.TOOLS, ids=lambda tool: tool.name)
def test_no_arguments_of_any_type_end_the_server(client: Connection, tool: toolbox.Tool) -> None:
    for given in (None, [], "x", 7, {"session": 7}, {"session": ""}, {"point": []}):
        reply = client.ask("tools/call", name=tool.name, arguments=given)
        assert "result" in reply
