"""The real Claude Code resumes what `mulligan rewind` made, and both branches are recorded."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mulligan.coding.transcripts.claude_transcript import folder_name
from mulligan.coding.transcripts.transcript_format import INTERRUPTED
from mulligan.recovery.detect import interrupted
from tests.agents.conftest import ClaudeCode, Terminal
from tests.agents.limits import PATIENCE
from tests.agents.model_apis import Api, Block, Json
from tests.agents.model_server import ModelServer, text, tool

Until = Callable[[Callable[[], Any]], Any]


def shell(command: str) -> dict[str, Any]:
    return tool("Bash", command=command, description="run it")


def files(directory: Path) -> dict[str, str]:
    """Return the files of a directory, without those of the agent and of Mulligan."""
    found = (one for one in directory.iterdir() if not one.name.startswith("."))
    return {one.name: one.read_text().strip() for one in found}


class Prompts:
    """An agent to which one prompt after another is given; each has a shell write a file."""

    def __init__(self, claude: ClaudeCode, model: ModelServer) -> None:
        self.claude, self.model = claude, model
        claude.install()

    def first(self, *names: str) -> str:
        """Give the first prompts; return the id of the session."""
        self.claude.run(self.prompt(names[0]))
        (id,) = self.claude.ids()
        for name in names[1:]:
            self.go_on(id, name)
        return id

    def prompt(self, name: str) -> str:
        call = shell(f"echo {name} > {name}; echo {name} > newest")
        return self.model.prompt(name, [call], [text(f"done {name}")], say=f"say {name}")

    def go_on(self, id: str, name: str, directory: Path | None = None) -> str:
        """Continue a session with another prompt."""
        return self.claude.run(self.prompt(name), "--resume", id, directory=directory)

    def rewind(self, *args: str) -> dict[str, Any]:
        done = self.claude.mulligan("rewind", *args, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def seen(self) -> list[str]:
        """Return which prompts the model saw in the last request of a conversation."""
        messages = self.model.requests[-1]["messages"]
        said = json.dumps([one for one in messages if one["role"] == "user"])
        return re.findall(r"say (\w+) @@", said)


@pytest.fixture
def prompts(claude: ClaudeCode, model: ModelServer) -> Prompts:
    return Prompts(claude, model)


def test_both_branches_go_on(prompts: Prompts, claude: ClaudeCode) -> None:
    old = prompts.first("one", "two", "three")
    listed = prompts.rewind()["prompts"]
    assert [(one["number"], one["text"][:9].strip()) for one in listed] == [
        (1, "say one @"),
        (2, "say two @"),
        (3, "say three"),
    ]
    assert all(one["checkpoint_id"] for one in listed)
    found = prompts.rewind("--to", "2")
    new = found["new_agent_session"]
    assert files(claude.project) == {"one": "one", "newest": "one"}
    assert "done other" in prompts.go_on(new, "other")
    assert prompts.seen() == ["one", "other"]
    assert files(claude.project) == {"one": "one", "other": "other", "newest": "other"}
    with claude.store() as store:
        branch = store.session(found["new_session"], create=False)
        assert branch.parent is not None
        assert branch.parent.session == found["session"]
        last = branch.checkpoints()[-1]
        assert branch.files.read(last, "other") == b"other\n"
        assert [c.data["prompt"] for c in branch.checkpoints(kind="prompt")] == [0, 1, 1]
        lines = Path(found["transcript"]).read_text().splitlines()
        said = branch.state.get("conversation")
        assert said == [json.loads(line) for line in lines[: len(said)]]
    assert claude.ids() == [old, new], "the branch is no session of its own"
    undone = prompts.rewind("--undo")
    assert undone["command"] == f"claude --resume {old}"
    assert files(claude.project)["newest"] == "three"
    prompts.go_on(old, "four")
    assert prompts.seen() == ["one", "two", "three", "four"]
    assert set(files(claude.project)) == {"one", "two", "three", "four", "newest"}
    assert claude.mulligan("verify", "--full").returncode == 0
    assert claude.notes() == ""


def test_the_conversation_alone(prompts: Prompts, claude: ClaudeCode) -> None:
    prompts.first("one", "two")
    found = prompts.rewind("--to", "2", "--chat")
    assert set(files(claude.project)) == {"one", "two", "newest"}
    prompts.go_on(found["new_agent_session"], "other")
    assert prompts.seen() == ["one", "other"]
    assert set(files(claude.project)) == {"one", "two", "other", "newest"}
    assert claude.notes() == ""


def test_files_alone(prompts: Prompts, claude: ClaudeCode) -> None:
    id = prompts.first("one", "two")
    prompts.rewind("--to", "2", "--files")
    assert set(files(claude.project)) == {"one", "newest"}
    prompts.go_on(id, "three")
    assert prompts.seen() == ["one", "two", "three"]
    assert claude.ids() == [id]
    assert claude.notes() == ""


def test_before_the_first_prompt(prompts: Prompts, claude: ClaudeCode) -> None:
    prompts.first("one")
    found = prompts.rewind("--to", "1")
    assert files(claude.project) == {}
    new = found["new_agent_session"]
    claude.run(prompts.prompt("other"), "--session-id", new)
    assert prompts.seen() == ["other"]
    with claude.store() as store:
        branch = store.session(found["new_session"], create=False)
        assert branch.parent is not None
        assert branch.files.read("@latest", "other") == b"other\n"
    assert claude.notes() == ""


def test_a_fork_beside_the_present(prompts: Prompts, claude: ClaudeCode) -> None:
    old = prompts.first("one", "two", "three")
    copy = claude.home / "copy of it"
    found = prompts.rewind("--to", "3", "--fork", str(copy))
    new = found["new_agent_session"]
    assert found["command"] == f"cd '{copy}' && claude --resume {new}"
    running = [
        claude.start(prompts.prompt("left"), "--resume", old),
        claude.start(prompts.prompt("right"), "--resume", new, directory=copy),
    ]
    for one in running:
        out, err = one.communicate(timeout=PATIENCE)
        assert one.returncode == 0, err + out
    assert set(files(claude.project)) == {"one", "two", "three", "left", "newest"}
    assert set(files(copy)) == {"one", "two", "right", "newest"}
    assert files(copy)["newest"] == "right"
    assert Path(found["transcript"]).parent.name == folder_name(os.path.realpath(copy))
    with claude.store() as store:
        branch = store.session(found["new_session"], create=False)
        assert branch.files.read("@latest", "right") == b"right\n"
    prompts.go_on(new, "again", directory=copy)
    assert prompts.seen() == ["one", "two", "right", "again"]
    moved = json.dumps(prompts.model.requests[-1]["messages"])
    assert f"This conversation continues in {copy}" in moved
    assert claude.notes() == ""


def test_after_a_kill_in_a_tool(
    prompts: Prompts, claude: ClaudeCode, model: ModelServer, until: Until
) -> None:
    id = prompts.first("one")
    fifo = claude.home / "fifo"
    os.mkfifo(fifo)
    turns = [[shell("echo 1 > done-first")], [shell(f"echo half > half; read line < {fifo}")]]
    started = claude.start(model.prompt("killed", *turns, say="say killed"), "--resume", id)
    until((claude.project / "half").exists)
    started.send_signal(signal.SIGKILL)
    started.wait(PATIENCE)
    fifo.write_text("go on\n")
    with claude.store() as store:
        assert interrupted(store)
        head = store.session(f"claude-{id}", create=False).head.seq
    now = prompts.rewind("--to", f"#{head}", "--chat")
    # The transcript lags: the last call may not have been in it when the agent was killed.
    assert now["closed_calls"] in (0, 1)
    prompts.go_on(now["new_agent_session"], "closed")
    assert prompts.seen() == ["one", "killed", "closed"]
    sent = json.dumps(model.requests[-1]["messages"])
    assert (json.dumps(INTERRUPTED)[1:-1] in sent) == bool(now["closed_calls"])
    found = prompts.rewind(id, "--to", "2")
    assert set(files(claude.project)) == {"one", "newest"}
    prompts.go_on(found["new_agent_session"], "other")
    assert prompts.seen() == ["one", "other"]
    assert claude.notes() == ""


def test_between_two_batches_of_a_turn(
    prompts: Prompts, claude: ClaudeCode, model: ModelServer
) -> None:
    claude.run(
        model.prompt(
            "turn",
            [shell("echo 1 > a"), shell("echo 1 > b")],
            [shell("echo 2 > a")],
            [text("done")],
            say="say turn",
        )
    )
    batches = claude.session().checkpoints(kind="tools")
    found = prompts.rewind("--to", batches[0].id)
    assert files(claude.project) == {"a": "1", "b": "1"}
    assert found["closed_calls"] == 0
    prompts.go_on(found["new_agent_session"], "other")
    said = json.dumps(model.requests[-1]["messages"])
    assert all(id in said for id in ("toolu_turn_0_0", "toolu_turn_0_1"))
    assert "toolu_turn_1_0" not in said
    assert claude.notes() == ""


@pytest.mark.parametrize(("number", "seen"), [("2", ["one", "other"]), ("3", ["other"])])
def test_before_and_after_a_compaction(
    prompts: Prompts, claude: ClaudeCode, number: str, seen: list[str]
) -> None:
    id = prompts.first("one", "two")
    claude.run("/compact", "--resume", id)
    prompts.go_on(id, "three")
    found = prompts.rewind("--to", number)
    prompts.go_on(found["new_agent_session"], "other")
    assert prompts.seen() == seen
    said = json.dumps(prompts.model.requests[-1]["messages"])
    assert ("This session is being continued" in said) == (number == "3")
    assert claude.notes() == ""


def test_beside_an_agent_at_work(
    prompts: Prompts, claude: ClaudeCode, model: ModelServer, until: Until
) -> None:
    id = prompts.first("one")
    fifo = claude.home / "fifo"
    os.mkfifo(fifo)
    call = shell(f"echo busy > busy; read line < {fifo}; echo late > late")
    started = claude.start(model.prompt("busy", [call], [text("done")]), "--resume", id)
    until((claude.project / "busy").exists)
    done = claude.mulligan("rewind", "--to", "2")
    assert done.returncode == 0, done.stderr
    assert "Warning: claude is at work" in done.stderr
    assert set(files(claude.project)) == {"one", "newest"}
    fifo.write_text("go on\n")
    out, err = started.communicate(timeout=PATIENCE)
    assert started.returncode == 0, err + out
    assert set(files(claude.project)) == {"one", "newest", "late"}
    assert claude.notes() == ""


def test_a_fork_that_the_program_made_goes_back_to_before_it(
    prompts: Prompts, claude: ClaudeCode
) -> None:
    old = prompts.first("one", "two")
    claude.run(prompts.prompt("three"), "--resume", old, "--fork-session")
    assert len(claude.ids()) == 2
    listed = prompts.rewind()["prompts"]
    assert [[file["path"] for file in one["files"]] for one in listed] == [
        ["newest", "one"],
        ["newest", "two"],
        ["newest", "three"],
    ]
    found = prompts.rewind("--to", "2")
    assert files(claude.project) == {"one": "one", "newest": "one"}
    prompts.go_on(found["new_agent_session"], "other")
    assert prompts.seen() == ["one", "other"]
    assert claude.notes() == ""
    forked = claude.session(1)
    assert forked.state.get("agents/claude/session_start") == "fork"


def test_a_deleted_transcript_comes_back(prompts: Prompts, claude: ClaudeCode) -> None:
    prompts.first("one", "two")
    claude.transcript().unlink()
    found = prompts.rewind("--to", "@latest", "--chat")
    prompts.go_on(found["new_agent_session"], "three")
    assert prompts.seen() == ["one", "two", "three"]
    assert claude.notes() == ""


def test_a_command_of_the_project_is_a_prompt(
    prompts: Prompts, claude: ClaudeCode, model: ModelServer
) -> None:
    asked = model.prompt("asked", [shell("echo c > command")], [text("done")], say="say asked")
    commands = claude.project / ".claude/commands"
    commands.mkdir(parents=True)
    (commands / "fix.md").write_text(asked + " $ARGUMENTS")
    id = prompts.first("one")
    claude.run("/fix the build", "--resume", id)
    found = prompts.rewind()["prompts"]
    assert [one["text"] for one in found][1:] == ["/fix the build"]
    done = prompts.rewind("--to", "2")
    assert set(files(claude.project)) == {"one", "newest"}
    prompts.go_on(done["new_agent_session"], "other")
    assert prompts.seen() == ["one", "other"]
    assert claude.notes() == ""


def test_a_subagent_comes_along(prompts: Prompts, claude: ClaudeCode, model: ModelServer) -> None:
    inner = model.prompt("inner", [shell("echo s > sub")], [text("inner done")])
    task = tool("Task", description="sub", subagent_type="general-purpose", prompt=inner)
    claude.run(model.prompt("outer", [task], [text("outer done")], say="say outer"))
    (id,) = claude.ids()
    prompts.go_on(id, "two")
    found = prompts.rewind("--to", "2")
    copies = Path(found["transcript"]).with_suffix("").glob("subagents/*.jsonl")
    assert "inner done" in "".join(one.read_text() for one in copies)
    prompts.go_on(found["new_agent_session"], "other")
    assert "inner done" in json.dumps(model.requests[-1]["messages"])
    assert claude.notes() == ""


def test_a_large_result_comes_along(
    prompts: Prompts, claude: ClaudeCode, model: ModelServer
) -> None:
    claude.run(model.prompt("long", [shell("seq 1 60000")], [text("done")], say="say long"))
    (id,) = claude.ids()
    prompts.go_on(id, "two")
    found = prompts.rewind("--to", "2")
    (copy,) = Path(found["transcript"]).with_suffix("").glob("tool-results/*")
    assert copy.read_text().split()[-1] == "60000"
    prompts.go_on(found["new_agent_session"], "other")
    said = json.dumps(model.requests[-1]["messages"])
    assert str(copy) in said
    assert f"{id}/tool-results" not in said
    assert claude.notes() == ""


@pytest.mark.parametrize(
    "name", ["odd dir ü.x_y (1)", "😀", "/".join(["abcdefghijklmnopqrstuvwxyz0123456789"] * 7)]
)
def test_the_folder_of_a_project_is_the_one_that_the_program_uses(
    claude: ClaudeCode, model: ModelServer, name: str
) -> None:
    directory = claude.home / name
    directory.mkdir(parents=True)
    claude.run(model.prompt("hello", [text("hi")]), directory=directory)
    (folder,) = (claude.home / ".claude/projects").iterdir()
    assert folder.name == folder_name(os.path.realpath(directory))


def test_the_program_resumes_it_on_a_terminal(
    prompts: Prompts, claude: ClaudeCode, until: Until
) -> None:
    prompts.first("one", "two")
    found = prompts.rewind("--to", "2")
    with Terminal(claude, "--resume", found["new_agent_session"]) as terminal:
        # What was said before is shown, and what is typed is taken.
        until(lambda: terminal.shows("done one"))
        terminal.type(prompts.prompt("other"))
        until(lambda: terminal.shows("say other @@other@@"))
        terminal.type("\r")
        until(lambda: terminal.shows("done other"))
    assert prompts.seen() == ["one", "other"]


def test_prompts_that_were_typed_during_a_turn(
    prompts: Prompts, claude: ClaudeCode, model: ModelServer, until: Until
) -> None:
    fifo, goes_on, answer = claude.home / "fifo", threading.Event(), model.answer
    os.mkfifo(fifo)

    def held(request: Json, api: Api) -> list[Block]:
        is_last = "turn-result" in json.dumps(request["messages"][-1])
        return answer(request, api) if not is_last or goes_on.wait(PATIENCE) else []

    model.answer = held  # type: ignore[method-assign]
    first = shell(f"echo 1 > one; read line < {fifo}; echo 2 > two; echo turn-result")
    turn = model.prompt("turn", [first], [text("done turn")], say="say turn")
    with Terminal(claude, "--permission-mode", "acceptEdits") as terminal:
        until(lambda: terminal.shows("accept edits"))
        for said, then in ((turn, claude.project / "one"), ("inside", None)):
            terminal.type(said)
            until(lambda said=said: terminal.shows(said))
            terminal.type("\r")
            until(lambda then=then, said=said: then.exists() if then else heard(claude, said))
        fifo.write_text("go on\n")
        until((claude.project / "two").exists)
        until(lambda: "PostToolBatch" in events(claude))
        terminal.type(prompts.prompt("three"))
        until(lambda: terminal.shows("@@three@@"))
        terminal.type("\r")
        until(lambda: heard(claude, "say three"))
        goes_on.set()
        until(lambda: terminal.shows("done three"))
    listed = prompts.rewind()["prompts"]
    assert [(one["text"][:9], len(one["files"])) for one in listed] == [
        ("say turn ", 2),
        ("say three", 2),
    ]
    prompts.rewind("--to", "2")
    assert files(claude.project) == {"one": "1", "two": "2"}
    prompts.rewind("--undo")
    prompts.rewind("--to", "1")
    assert files(claude.project) == {}
    assert claude.notes() == ""


def heard(claude: ClaudeCode, said: str) -> bool:
    """Whether the hook of a prompt has run."""
    found = claude.session().checkpoints(kind="prompt")
    return any(str(one.note).startswith(said) for one in found)


def events(claude: ClaudeCode) -> list[str]:
    return [one.data["event"] for one in claude.session().checkpoints()]
