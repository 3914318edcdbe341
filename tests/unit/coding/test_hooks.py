"""A hook never disturbs its agent: it replies, or notes one line and replies nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mulligan.coding import hook_log
from mulligan.coding.hooks import HookRunner, run_hook
from mulligan.locate import find
from mulligan.make_store import make_store
from tests.coding_agent import CodingAgent
from tests.nobody import NOBODY, as_nobody, place_of_nobody


@pytest.fixture
def agent(tmp_path: Path) -> CodingAgent:
    """An agent in a project without a store."""
    return CodingAgent(tmp_path)


def with_rules(agent: CodingAgent, rules: str) -> CodingAgent:
    (agent.make_store() / "config.toml").write_text(rules)
    return agent


def test_without_a_store_a_line_is_noted(agent: CodingAgent) -> None:
    assert agent.hook("Stop") == b""
    assert "claude Stop s-1" in agent.notes()
    assert "There is no store" in agent.notes()


def test_a_person_is_told_at_a_start_or_a_prompt_that_is_not_recorded(agent: CodingAgent) -> None:
    started = json.loads(agent.hook("SessionStart", source="startup"))["systemMessage"]
    asked = json.loads(agent.hook("UserPromptSubmit", prompt="hi"))["systemMessage"]
    assert started.startswith("Mulligan cannot record this session: There is no store")
    assert asked.startswith("Mulligan has no checkpoint of the files before this prompt: There is")
    assert asked.endswith(" `mulligan doctor` says more.")
    assert run_hook(agent.json("UserPromptSubmit", prompt="hi"), agent.variables, "codex") == b""


def test_a_person_is_told_of_a_prompt_whose_checkpoint_has_no_files(agent: CodingAgent) -> None:
    with_rules(agent, '[retention]\nquota = "1MB"\n')
    (agent.project / "large").write_bytes(os.urandom(2_000_000))
    said = json.loads(agent.hook("UserPromptSubmit", prompt="one"))["systemMessage"]
    assert "no checkpoint of the files before this prompt: the store has reached its quota" in said
    (agent.project / "large").unlink()
    assert agent.hook("UserPromptSubmit", prompt="two") == b""
    assert not agent.notes()


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": 1}', b"\x00" * 1000])
def test_json_that_cannot_be_used_is_one_line(agent: CodingAgent, data: bytes) -> None:
    assert run_hook(data, agent.variables) == b""
    assert len(agent.notes().splitlines()) == 1


def test_an_unknown_event_or_agent_is_ignored_with_a_note(agent: CodingAgent) -> None:
    assert agent.hook("Brainwave") == b""
    assert run_hook(agent.json("Stop"), agent.variables, "cursor") == b""
    assert [line.split(": ")[1] for line in agent.notes().splitlines()] == [
        "The event 'Brainwave' of claude is not known.",
        "Hooks of 'cursor' are not supported.",
    ]


def test_the_next_hook_records_what_a_failed_one_missed(agent: CodingAgent) -> None:
    agent.say({"n": 1})
    agent.hook("UserPromptSubmit", prompt="lost")
    agent.make_store()
    agent.call("t1")
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    second = {"message": {"content": [result]}}
    agent.say(second)
    agent.batch("t1")
    session = agent.session()
    assert session.state.get("conversation") == [{"n": 1}, second]
    assert session.tools.get("t1").status == "returned"


def test_a_session_whose_prompts_had_no_hooks_is_noted_at_its_end(agent: CodingAgent) -> None:
    agent.make_store()
    asked = {"type": "user", "uuid": "u", "message": {"role": "user", "content": "fix it"}}
    agent.hook("SessionStart", source="startup")
    agent.hook("SessionEnd", reason="other")
    assert agent.notes() == "", "nothing was asked"
    agent.say(asked)
    agent.hook("SessionEnd", reason="other")
    assert "no hook of one came" in agent.notes()
    (noted,) = agent.notes().splitlines()
    agent.hook("UserPromptSubmit", prompt="fix it")
    agent.hook("SessionEnd", reason="other")
    assert agent.notes().splitlines() == [noted]


def test_a_session_whose_hooks_failed_is_not_said_to_have_had_none(agent: CodingAgent) -> None:
    version = agent.make_store() / "FORMAT"
    known = version.read_text()
    agent.say({"type": "user", "uuid": "u", "message": {"role": "user", "content": "fix it"}})
    version.write_text("{}")
    agent.hook("UserPromptSubmit", prompt="fix it")
    version.write_text(known)
    agent.hook("Stop")
    agent.hook("SessionEnd", reason="other")
    (noted,) = agent.notes().splitlines()
    assert "UserPromptSubmit s-1" in noted


def test_a_damaged_store_is_a_note(agent: CodingAgent) -> None:
    (agent.make_store() / "FORMAT").write_text("{}")
    assert agent.hook("Stop") == b""
    assert "FORMAT" in agent.notes()


def test_a_copied_project_is_a_note_and_touches_no_store(
    agent: CodingAgent, tmp_path: Path
) -> None:
    agent.make_store()
    shutil.copytree(agent.project, tmp_path / "copy")
    agent.variables["CLAUDE_PROJECT_DIR"] = str(tmp_path / "copy")
    assert b"systemMessage" in agent.hook("UserPromptSubmit", prompt="hi")
    assert str(tmp_path / "copy") in agent.notes()


def test_the_store_is_that_of_the_directory_not_of_a_supervisor(agent: CodingAgent) -> None:
    agent.make_store()
    agent.variables["MULLIGAN_STORE"] = str(agent.home / "elsewhere")
    agent.hook("UserPromptSubmit", prompt="one")
    assert agent.session().checkpoints()
    assert not agent.notes()


def test_a_project_gets_a_store_where_that_is_wanted(agent: CodingAgent) -> None:
    with HookRunner(agent.variables, create=True) as runner:
        runner.handle(agent.json("SessionStart", source="startup"))
        runner.handle(agent.json("UserPromptSubmit", prompt="one"))
    assert agent.session().checkpoints()
    agent.variables["CLAUDE_PROJECT_DIR"] = agent.variables["HOME"]
    with HookRunner(agent.variables, create=True) as runner:
        runner.handle(agent.json("SessionStart", source="startup"))
        runner.handle(agent.json("UserPromptSubmit", prompt="one"))
    assert agent.notes().count("home directory") == 1, "said once, not with every event"


def test_a_worktree_of_a_project_gets_a_store_of_its_own(agent: CodingAgent) -> None:
    """Claude Code runs the hooks of the main work tree there."""
    other = add_worktree(agent)
    (other / "below").mkdir()
    main, agent.project = agent.project, other
    agent.variables["CLAUDE_PROJECT_DIR"] = str(other / "below")
    agent.hook("UserPromptSubmit", prompt="one")
    assert "There is no store" in agent.notes(), "the project has none, either"
    assert not (other / ".mulligan").exists()
    agent.project = main
    store, agent.project = agent.make_store(), other
    assert agent.hook("UserPromptSubmit", prompt="two") == b""
    assert agent.make_store() != store
    assert [one.note for one in agent.session().checkpoints()] == ["two"]


def test_a_store_that_another_hook_has_made_meanwhile_is_found(
    agent: CodingAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of another session, or the call of the MCP server beside a command."""

    def other_first(place: Path, state: Path) -> Path | None:
        make_store(place, agent.variables)
        return new_worktree(place, state)

    agent.make_store()
    agent.project = add_worktree(agent)
    agent.variables["CLAUDE_PROJECT_DIR"] = str(agent.project)
    new_worktree = find.new_worktree
    monkeypatch.setattr(find, "new_worktree", other_first)
    assert agent.hook("UserPromptSubmit", prompt="one") == b""
    assert agent.notes() == ""
    assert [one.note for one in agent.session().checkpoints()] == ["one"]


def add_worktree(agent: CodingAgent) -> Path:
    """Make the project a repository with another worktree, and return that."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    other = agent.home / "other"
    for command in (["init"], ["commit", "--allow-empty", "-m", "1"], ["worktree", "add", other]):
        subprocess.run(["git", *identity, *command], cwd=agent.project, check=True)
    return other


def test_a_store_that_no_process_looks_after_is_named(agent: CodingAgent) -> None:
    store = agent.make_store()
    with HookRunner(agent.variables) as runner:
        runner.handle(agent.json("Stop"))
        assert runner.overdue() == []
        os.utime(store / "FORMAT", (0, 0))
        assert runner.overdue() == [store]


def test_a_defect_is_noted_with_its_class(
    agent: CodingAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: HookRunner, event: object) -> bytes:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(HookRunner, "_handle", broken)
    assert agent.hook("Stop") == b""
    assert "ZeroDivisionError: oops" in agent.notes()


def test_a_call_that_a_rule_asks_about_is_asked_about(agent: CodingAgent) -> None:
    with_rules(agent, '[[effects.rules]]\nname = "Bash(git push*)"\napproval = "ask"\n')
    reply = json.loads(agent.call("t1", tool_input={"command": "git push -f"}))
    found = reply["hookSpecificOutput"]
    assert (found["hookEventName"], found["permissionDecision"]) == ("PreToolUse", "ask")
    assert "git push*" in found["permissionDecisionReason"]
    assert agent.call("t2", tool_input={"command": "git status"}) == b""


def test_a_call_that_a_rule_denies_is_recorded_as_failed(agent: CodingAgent) -> None:
    with_rules(agent, '[[effects.rules]]\nname = "mcp__mail__*"\napproval = "deny"\n')
    reply = json.loads(agent.call("t1", "mcp__mail__send"))
    assert reply["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert agent.session().tools.get("t1").status == "failed"


def test_the_first_rule_that_matches_decides_and_one_for_all_effects_does_not(
    agent: CodingAgent,
) -> None:
    rules = [("Bash(git push --dry-run*)", "auto"), ("Bash(git push*)", "deny"), ("*", "deny")]
    with_rules(
        agent, "".join(f'[[effects.rules]]\nname = "{n}"\napproval = "{a}"\n' for n, a in rules)
    )
    assert agent.call("t1", tool_input={"command": "git push --dry-run"}) == b""
    assert agent.call("t2", tool_input={"command": "ls"}) == b""
    assert b"deny" in agent.call("t3", tool_input={"command": "git push"})


def test_a_runner_that_stays_handles_many_and_ends_sessions_in_order(agent: CodingAgent) -> None:
    agent.make_store()
    with HookRunner(agent.variables, stays=True) as runner:
        runner.handle(agent.json("UserPromptSubmit", prompt="one"))
        (agent.project / "a").write_text("1")
        runner.handle(agent.json("PostToolBatch", tool_calls=[]))
        runner.handle(agent.json("SessionEnd", reason="other"))
        runner.handle(agent.json("SessionStart", source="resume"))
        runner.handle(agent.json("UserPromptSubmit", prompt="two"))
    assert [c.note for c in agent.session().checkpoints()] == ["one", "batch end", "two"]
    assert not agent.notes()


def test_a_runner_that_stays_finds_a_store_that_was_made_again(agent: CodingAgent) -> None:
    first = agent.make_store()
    with HookRunner(agent.variables, stays=True) as runner:
        runner.handle(agent.json("UserPromptSubmit", prompt="one"))
        shutil.rmtree(first)
        (agent.project / ".mulligan").unlink()
        runner.handle(agent.json("UserPromptSubmit", prompt="lost"))
        agent.make_store()
        runner.handle(agent.json("UserPromptSubmit", prompt="two"))
    assert [c.note for c in agent.session().checkpoints()] == ["two"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a store of another user")
def test_a_store_of_another_user_is_a_note() -> None:
    with place_of_nobody() as place:
        agent = CodingAgent(place)
        store = agent.make_store()
        for directory in (place / "state", place / "state" / "mulligan", store.parent):
            os.chown(directory, NOBODY, NOBODY)

        def body() -> None:
            assert agent.hook("Stop") == b""
            assert "claude Stop" in agent.notes()

        as_nobody(body)


def test_the_log_of_hooks_is_private_and_does_not_grow_for_ever(
    agent: CodingAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_log, "MAX_BYTES", 300)
    for _ in range(20):
        run_hook(b"{", agent.variables)
    directory = agent.home / "state" / "mulligan"
    assert sum(f.stat().st_size for f in directory.glob("hooks.log*")) < 1500
    assert (directory / "hooks.log").stat().st_mode & 0o777 == 0o600
    assert len(hook_log.last_notes(directory, 3)) == 3


def test_a_note_is_one_line_whatever_it_says(agent: CodingAgent) -> None:
    with HookRunner(agent.variables) as runner:
        assert runner.note("claude", "a\nb\x1b[31m" + "x" * 10_000)
    (line,) = agent.notes().splitlines()
    assert len(line) == hook_log.MAX_LINE


def test_a_log_that_cannot_be_written_disturbs_nothing(agent: CodingAgent) -> None:
    (agent.home / "state").write_text("a file")
    assert agent.hook("Stop") == b""
