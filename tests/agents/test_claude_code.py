"""The real Claude Code runs real tools, and its hooks put all of it on the timeline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mulligan import Session
from mulligan.coding.agent_session import agent_session
from mulligan.recovery.detect import interrupted
from tests.agents.conftest import TOOLS, ClaudeCode, Terminal
from tests.agents.limits import PATIENCE
from tests.agents.model_server import ModelServer, refusal, text, tool

Until = Callable[[Callable[[], Any]], Any]


def shell(command: str) -> dict[str, Any]:
    return tool("Bash", command=command, description="run it")


def taken(session: Session) -> list[tuple[str, Any]]:
    """Return kind and prompt of every checkpoint."""
    return [(c.kind, c.data["prompt"]) for c in session.checkpoints()]


def test_edits_by_write_edit_and_bash(claude: ClaudeCode, model: ModelServer) -> None:
    claude.install()
    file = claude.project / "a.txt"
    turns = [
        [tool("Write", file_path=str(file), content="one\n")],
        [tool("Edit", file_path=str(file), old_string="one", new_string="two")],
        [shell("echo three > a.txt; mkdir made; echo b > made/b.txt")],
        [shell("cat a.txt")],
        [shell("false")],
        [text("all done")],
    ]
    assert "all done" in claude.run(model.prompt("edits", *turns, say="Edit the file"))
    session = claude.session()
    prompt, write, edit, bash = session.checkpoints()
    assert prompt.note == "Edit the file @@edits@@"
    assert taken(session) == [("prompt", 0)] + [("tools", 0)] * 3
    found = [session.files.read(point, "a.txt") for point in (write, edit, bash)]
    assert found == [b"one\n", b"two\n", b"three\n"]
    assert session.files.read(bash, "made/b.txt") == b"b\n"
    statuses = [call.status for call in session.tools.list()]
    assert statuses == ["returned"] * 4 + ["failed"]
    lines = [json.loads(line) for line in claude.transcript().read_text().splitlines()]
    assert session.state.get("conversation") == lines[: session.state.length("conversation")]
    ids = {call.id for call in session.tools.list()}
    assert ids == {f"toolu_edits_{turn}_0" for turn in range(5)}
    claude.mulligan("restore", "-s", session.name, prompt.id, "--yes")
    assert not file.exists()
    assert claude.notes() == ""


def test_a_subagent_has_its_own_transcript(claude: ClaudeCode, model: ModelServer) -> None:
    claude.install()
    inner = model.prompt("inner", [shell("echo s > s.txt")], [text("inner done")])
    task = tool("Task", description="sub", subagent_type="general-purpose", prompt=inner)
    claude.run(model.prompt("outer", [task], [text("outer done")]))
    session = claude.session()
    known = agent_session(session)
    assert known is not None
    (id,) = [id for id, found in known.subagents.items() if found.entries]
    assert "inner done" in json.dumps(session.state.get(("subagents", id)))
    assert session.tools.get("toolu_inner_0_0").status == "returned"
    assert session.files.read(session.checkpoints()[-1], "s.txt") == b"s\n"
    assert claude.notes() == ""


def test_an_agent_that_deletes_its_hooks_is_still_recorded(
    claude: ClaudeCode, model: ModelServer
) -> None:
    (claude.project / ".gitignore").write_text(".claude/\n")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=claude.project, env=claude.variables, check=True)
    claude.install()
    claude.run(model.prompt("clean", [shell("git clean -fdxq")], [text("cleaned")]))
    (id,) = claude.ids()
    claude.run(model.prompt("after", [shell("echo 1 > one")], [text("done")]), "--resume", id)
    assert taken(claude.session())[-2:] == [("prompt", 1), ("tools", 1)]
    assert claude.notes() == ""


def test_parallel_calls_are_one_batch(claude: ClaudeCode, model: ModelServer) -> None:
    claude.install()
    calls = [shell("echo 1 > one"), shell("echo 2 > two")]
    calls.append(tool("Write", file_path=str(claude.project / "three"), content="3\n"))
    claude.run(model.prompt("parallel", calls, [text("done")]))
    session = claude.session()
    batch = session.checkpoints()[1]
    assert batch.data["calls"] == [f"toolu_parallel_0_{number}" for number in range(3)]
    assert [session.files.read(batch, name) for name in ("one", "two", "three")] == [
        b"1\n",
        b"2\n",
        b"3\n",
    ]
    assert [call.status for call in session.tools.list()] == ["returned"] * 3
    assert claude.notes() == ""


def test_a_compaction_has_a_checkpoint_before_it_and_the_session_goes_on(
    claude: ClaudeCode, model: ModelServer
) -> None:
    claude.install()
    claude.run(model.prompt("first", [shell("echo 1 > one")], [text("done")]))
    (id,) = claude.ids()
    claude.run("/compact", "--resume", id)
    assert claude.session().state.get("agents/claude/session_start") == "compact"
    claude.run(model.prompt("after", [shell("echo 2 > two")], [text("done")]), "--resume", id)
    session = claude.session()
    assert [c.kind for c in session.checkpoints()].count("pre_operation") == 1
    assert session.files.read(session.checkpoints()[-1], "two") == b"2\n"
    lines = len(claude.transcript().read_text().splitlines())
    assert session.state.length("conversation") <= lines
    assert claude.ids() == [id]
    assert claude.notes() == ""


def test_a_turn_that_fails_is_recorded_to_its_end(claude: ClaudeCode, model: ModelServer) -> None:
    claude.install()
    turns = [[shell("echo 1 > one")], [refusal("no more")]]
    started = claude.start(model.prompt("fails", *turns))
    out, err = started.communicate(timeout=PATIENCE)
    assert (started.returncode, "no more" in out) == (1, True), err + out
    session = claude.session()
    assert session.files.read(session.checkpoints()[-1], "one") == b"1\n"
    assert session.state.get("agents/claude/session_start") == "startup"
    assert session.state.get("agents/claude/turn_failure"), "StopFailure says why"
    assert "no more" in json.dumps(session.state.tail("conversation", 3))
    with claude.store() as store:
        assert not interrupted(store), "it ended in order"
    assert claude.notes() == ""


def test_a_kill_in_a_tool_leaves_the_call_in_doubt_and_a_resume_goes_on(
    claude: ClaudeCode, model: ModelServer, until: Until
) -> None:
    claude.install()
    fifo = claude.project.parent / "fifo"
    os.mkfifo(fifo)
    call = [shell(f"echo half > half.txt; read line < {fifo}; echo late > late.txt")]
    started = claude.start(model.prompt("killed", call, [text("never")]))
    until((claude.project / "half.txt").exists)
    started.send_signal(signal.SIGKILL)
    started.wait(PATIENCE)
    session = claude.session()
    assert session.tools.get("toolu_killed_0_0").status == "in_doubt"
    with claude.store() as store:
        (found,) = interrupted(store)
    assert [doubt.call for doubt in found.in_doubt] == ["toolu_killed_0_0"]
    fifo.write_text("go on\n")  # the agent's shell survives it, and writes on
    until((claude.project / "late.txt").exists)
    (id,) = claude.ids()
    claude.run(model.prompt("resumed", [shell("echo 2 > two")], [text("done")]), "--resume", id)
    assert taken(session)[-2:] == [("prompt", 1), ("tools", 1)]
    assert session.state.get("agents/claude/session_start") == "resume"
    before = session.checkpoints()[-2]
    assert session.files.read(before, "late.txt") == b"late\n", "whoever wrote it"
    with claude.store() as store:
        assert not interrupted(store)
    assert claude.notes() == ""


def test_two_sessions_in_one_directory(claude: ClaudeCode, model: ModelServer) -> None:
    claude.install()
    running = [
        claude.start(model.prompt(name, [shell(f"echo {name} > {name}")], [text("done")], say=name))
        for name in ("left", "right")
    ]
    for one in running:
        out, err = one.communicate(timeout=PATIENCE)
        assert one.returncode == 0, err + out
    assert len(claude.ids()) == 2
    for number in range(2):
        session = claude.session(number)
        assert session.checkpoints()[0].kind == "prompt"
        assert [call.status for call in session.tools.list()] == ["returned"]
    assert claude.mulligan("verify").returncode == 0
    assert claude.notes() == ""


def test_a_person_at_the_terminal_interrupts_clears_and_leaves(
    claude: ClaudeCode, model: ModelServer, until: Until
) -> None:
    claude.install()
    fifo = claude.project.parent / "fifo"
    os.mkfifo(fifo)
    call = [shell(f"echo half > half.txt; read line < {fifo}")]
    first = model.prompt("esc", call, [text("never")], say="first")
    second = model.prompt("second", [shell("echo 2 > two")], [text("all two done")], say="second")
    with Terminal(claude, "--permission-mode", "default") as terminal:

        def sees(look: Callable[[], Any]) -> None:
            # Its output is read meanwhile: a program that cannot print does not go on.
            until(lambda: terminal.shows("") and look())

        def enter(typed: str) -> None:
            terminal.type(typed)
            until(lambda: terminal.shows(typed))
            terminal.type("\r")

        until(lambda: terminal.shows("\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"))
        enter(first)
        sees((claude.project / "half.txt").exists)
        terminal.type("\x1b")
        sees(lambda: "interrupted by user" in claude.transcript().read_text())
        enter("/clear")
        sees(lambda: len(claude.ids()) == 2)
        enter(second)
        until(lambda: terminal.shows("all two done"))
        enter("/exit")
        sees(lambda: terminal.process.poll() is not None)
    session = claude.session(0)
    assert session.tools.get("toolu_esc_0_0").status != "called", "it has ended, or is in doubt"
    assert taken(session)[0] == ("prompt", 0)
    cleared = claude.session(1)
    assert taken(cleared) == [("prompt", 0), ("tools", 0)]
    assert cleared.state.get("agents/claude/session_start") == "clear"
    with claude.store() as store:
        assert not interrupted(store), "both ended in order"
    back = claude.mulligan("rewind", claude.ids()[0], "--to", "1", "--dry-run")
    assert "half.txt" in back.stdout, f"a prompt that was stopped can be gone back to: {back}"
    assert claude.notes() == ""


def test_a_rule_denies_a_call(claude: ClaudeCode, model: ModelServer) -> None:
    claude.install()
    with claude.store() as store:
        config = os.path.join(str(store.path), "config.toml")
    with open(config, "w") as file:
        file.write('[[effects.rules]]\nname = "Bash(touch *)"\napproval = "deny"\n')
    claude.run(model.prompt("denied", [shell("touch never")], [text("understood")]))
    assert not (claude.project / "never").exists()
    assert claude.session().tools.get("toolu_denied_0_0").status == "failed"
    assert claude.notes() == ""


def test_a_rule_asks_although_the_tool_is_allowed(claude: ClaudeCode, model: ModelServer) -> None:
    claude.install()
    with claude.store() as store:
        config = os.path.join(str(store.path), "config.toml")
    with open(config, "w") as file:
        file.write('[[effects.rules]]\nname = "Bash(touch *)"\napproval = "ask"\n')
    claude.run(model.prompt("asked", [shell("touch never")], [text("understood")]))
    assert not (claude.project / "never").exists(), "there is no terminal to ask at"
    asked = claude.session().tools.get("toolu_asked_0_0")
    assert (asked.status, "says so" in str(asked.error)) == ("failed", True)
    assert claude.notes() == ""


def test_hooks_of_a_user_make_a_store_for_each_project(
    claude: ClaudeCode, model: ModelServer
) -> None:
    claude.install("--user")
    claude.run(model.prompt("user", [shell("echo 1 > one")], [text("done")]))
    assert taken(claude.session()) == [("prompt", 0), ("tools", 0)]
    assert claude.notes() == ""


def test_a_worktree_of_the_project_is_recorded(claude: ClaudeCode, model: ModelServer) -> None:
    """The program reads the settings of the main work tree there, too."""
    other = claude.home / "other"
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init"], ["commit", "--allow-empty", "-m", "1"], ["worktree", "add", other]):
        subprocess.run(["git", *identity, *command], cwd=claude.project, check=True)
    claude.install()
    claude.project = other
    done = claude.mulligan("doctor")
    assert "the agent's first session makes it" in done.stdout, done
    claude.run(model.prompt("other", [shell("echo 1 > one")], [text("done")]), directory=other)
    assert taken(claude.session()) == [("prompt", 0), ("tools", 0)]
    assert claude.mulligan("doctor").returncode == 0
    assert claude.notes() == ""


def test_hooks_of_a_user_and_of_a_project_record_once(
    claude: ClaudeCode, model: ModelServer
) -> None:
    claude.install()
    claude.install("--user")
    prompt = model.prompt("both", [shell("echo 1 > one")], [text("done")])
    claude.run(prompt)
    (id,) = claude.ids()
    claude.run(prompt, "--resume", id)  # the same text is another prompt
    batches = [(kind, prompt) for prompt in range(2) for kind in ("prompt", "tools")]
    assert taken(claude.session()) == batches
    assert claude.notes() == ""


def test_a_server_that_a_shell_starts_writes_for_the_agent(
    claude: ClaudeCode, model: ModelServer
) -> None:
    claude.add_server()
    config = claude.home / ".claude.json"
    known = json.loads(config.read_text())
    command = f"{Path(sys.executable).with_name('mulligan')} mcp; true"
    server = {"type": "stdio", "command": "sh", "args": ["-c", command], "env": {}}
    known["projects"][str(claude.project)]["mcpServers"]["mulligan"] = server
    config.write_text(json.dumps(known))
    claude.install()
    claude.run(model.prompt("shell", [shell("echo 1 > one")], [text("done")]))
    assert {c.actor for c in claude.session().checkpoints()} == {"claude"}
    assert claude.notes() == ""


def test_hooks_through_the_mcp_server(claude: ClaudeCode, model: ModelServer) -> None:
    claude.add_server()
    claude.install()
    assert "through the MCP server" in claude.mulligan("doctor").stdout
    calls = [shell("echo 1 > one"), shell("echo 2 > two")]
    claude.run(model.prompt("server", calls, [shell("false")], [text("done")]))
    session = claude.session()
    assert taken(session) == [("prompt", 0), ("tools", 0)]
    assert [call.status for call in session.tools.list()] == ["returned", "returned", "failed"]
    assert session.state.length("conversation") > 0
    lease = session.internal.lease_of("claude")
    assert lease is not None
    assert lease.released, "the end of the session is recorded by a command"
    assert claude.notes() == ""


def test_hooks_of_an_earlier_version_catch_up_at_the_end_without_the_server(
    claude: ClaudeCode, model: ModelServer
) -> None:
    """They only call the server; a new `install` adds a command beside that."""
    claude.add_server()
    claude.install()
    file = claude.project / ".claude/settings.local.json"
    settings = json.loads(file.read_text())
    settings["hooks"] = {event: groups[:1] for event, groups in settings["hooks"].items()}
    file.write_text(json.dumps(settings))
    (claude.home / ".claude.json").unlink()
    answer = claude.run(model.prompt("gone", [shell("echo 1 > one")], [text("all done")]))
    assert "all done" in answer
    assert (claude.project / "one").exists()
    assert "they record nothing" in claude.mulligan("doctor").stdout
    assert claude.session().state.length("conversation") > 0, "the end of the session catches up"
    assert "no hook of one came" in claude.notes()


def test_a_server_that_a_person_turned_off_is_not_called(
    claude: ClaudeCode, model: ModelServer
) -> None:
    claude.install()
    server = {"command": str(Path(sys.executable).with_name("mulligan")), "args": ["mcp"]}
    shared = claude.project / ".mcp.json"
    shared.write_text(json.dumps({"mcpServers": {"mulligan": server}}))
    claude.install()
    done = claude.mulligan("doctor")
    assert "a hook recorded through it" in done.stdout, done
    settings = claude.project / ".claude/settings.local.json"
    off = {"disabledMcpjsonServers": ["mulligan"]}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | off))
    done = claude.mulligan("doctor")
    assert (done.returncode, "turned off" in done.stdout) == (105, True), done
    claude.install()
    claude.run(model.prompt("off", [shell("echo 1 > one")], [text("all done")]))
    assert taken(claude.session()) == [("prompt", 0), ("tools", 0)]
    assert claude.notes() == ""


def test_the_agent_goes_on_without_a_store(claude: ClaudeCode, model: ModelServer) -> None:
    claude.install()
    with claude.store() as store:
        path = str(store.path)
    os.rename(path, claude.home / "away")
    answer = claude.run(model.prompt("alone", [shell("echo 1 > one")], [text("all done")]))
    assert "all done" in answer
    assert (claude.project / "one").exists()
    assert "store" in claude.notes()


def test_doctor_says_that_all_is_well(claude: ClaudeCode) -> None:
    claude.install()
    done = claude.mulligan("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recorded a checkpoint" in done.stdout


def test_a_watch_beside_hooks_leaves_the_session_to_them(
    claude: ClaudeCode, model: ModelServer
) -> None:
    claude.install()
    words = ["-p", model.prompt("watched", [shell("echo 1 > one")], [text("done")])]
    program = [str(claude.program), "--allowedTools", TOOLS, *words]
    done = claude.mulligan("run", "--watch", "--", *program)
    assert done.returncode == 0, done.stderr
    assert "transcripts are" not in done.stderr
    assert [one.data["event"] for one in claude.session().checkpoints()][:2] == [
        "UserPromptSubmit",
        "PostToolBatch",
    ]
    assert claude.notes() == ""
